"""What a run's tokens are made of: the user's files, how they are read, and whether that is still the same."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.params import Params, TextParams
from headrace.progress import say
from headrace.text.document import SeriesOptions
from headrace.text.documents import Document, read_documents
from headrace.text.formats import detect_format, detected_encodings
from headrace.text.tokens import sha256_of
from headrace.text.vocabulary import open_vocabulary


def format_of(text: TextParams, paths: list[Path]) -> str:
    found = text.format
    if found == "auto":
        found, why = detect_format(paths, text.encoding)
        say(f"Text format: {found} ({why}); text.format overrides it")
        if found == "fasta" and text.language not in ("dna", "protein"):
            raise UserError(
                f"text.language = {text.language!r} does not fit {paths[0]}, a FASTA file ({why}); use dna or protein, or set "
                "text.format"
            )
    if text.encoding == "auto" and found != "parquet":
        say(f"Text encoding: {', '.join(detected_encodings(paths))}; text.encoding overrides it")
    return found


def documents_of(text: TextParams, paths: list[Path], text_format: str, counts: Counter[str]) -> Iterator[Document]:
    return read_documents(
        paths,
        format=text_format,
        encoding=text.encoding,
        errors=text.invalid_bytes,
        text_field=text.text_field,
        counts=counts,
        language=text.language,
        series=series_options(text),
    )


def series_options(text: TextParams) -> SeriesOptions | None:
    given = text.series
    if given is None:
        return None
    return SeriesOptions(
        given.id,
        given.time,
        tuple(given.values),
        given.length,
        given.stride or given.length,
        given.horizon,
        given.held_out_points,
    )


def word_rule(params: Params, kind: str) -> str:
    """What marks words: the tokenizer's own marks unless whole words are masked or `text.words` says otherwise."""
    if params.text.words != "auto":
        return params.text.words
    if not params.task.whole_words or kind.startswith("wordpiece"):
        return "marks"
    return "mecab" if params.text.language == "ja" else "whitespace"


def source_of(params: Params, paths: list[Path], text_format: str, chunk_characters: int) -> dict[str, Any]:
    others = {"input", "workers", "vocabulary", "words"} | ({"series"} if params.text.series is None else set())
    text = params.text.model_dump(mode="json", exclude=others)
    text |= {"format": text_format, "words": word_rule(params, open_vocabulary(params.run.folder / "tokenizer").kind)}
    return {
        "text": text,
        "chunk_characters": chunk_characters,
        "vocabulary_sha256": sha256_of(params.run.folder / "tokenizer" / "vocabulary.json"),
        "files": files_of(paths),
    }


def files_of(paths: list[Path]) -> list[list[Any]]:
    return [[str(path), path.stat().st_size, _fingerprint(path)] for path in paths]


def anything_done(tokens: Path) -> bool:
    """Whether any chunk is: until then nothing is lost when text or settings change."""
    return any((tokens / "chunks").glob("*.json"))


def _fingerprint(path: Path, num_bytes: int = 1 << 20) -> str:
    """A hash of a file's first and last MiB: tells a changed input without reading all of it."""
    with path.open("rb") as file:
        head = file.read(num_bytes)
        file.seek(max(path.stat().st_size - num_bytes, 0))
        return hashlib.blake2b(head + file.read(num_bytes), digest_size=16).hexdigest()


def refuse_other_source(path: Path, source: dict[str, Any]) -> None:
    if not path.is_file():
        return
    made_from = json.loads(path.read_text("utf-8"))
    if made_from != json.loads(json.dumps(source)):
        raise UserError(
            f"{path.parent} was made from other input or settings: {changes(made_from, source)}. Undo the change, choose "
            f"another run.folder, or delete {path.parent}"
        )


def changes(before: Any, now: Any, path: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted(before.keys() | now.keys())
        found = (changes(before.get(key), now.get(key), f"{path}.{key}" if path else key) for key in keys)
        return "; ".join(each for each in found if each)
    if json.loads(json.dumps(before)) == json.loads(json.dumps(now)):
        return ""
    return f"{path} was {_short(before)}, now {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
