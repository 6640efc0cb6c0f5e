"""From raw files to a vocabulary and tokens on disk: streaming, parallel, resumable.

    files -> documents -> chunks of about a million characters -> a process each: clean, split, encode -> shards

What a chunk holds depends on the input alone, and each finished chunk leaves a record. So a killed prepare reads the
input again, which is fast, and skips every chunk that is done. Memory: a few chunks, whatever the size of the input.
"""

import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import UserError
from headrace.params import Params, TextParams
from headrace.progress import progress, say
from headrace.run_folder import RunFolder
from headrace.text.documents import Document, clean_document, read_documents
from headrace.text.files import expand_paths
from headrace.text.formats import detect_format
from headrace.text.sampling import reservoir_sample
from headrace.text.sentences import split_long_line, split_sentences
from headrace.text.tokens import (
    SPLITS,
    ShardBuilder,
    TokenFolder,
    document_hash,
    duplicate_documents,
    is_held_out,
    open_tokens,
    overlapping_documents,
    sha256_of,
    write_atomically,
)
from headrace.text.vocabulary import Vocabulary, load_vocabulary, open_vocabulary, train_vocabulary
from headrace.text.workers import end_with_parent

CHUNK_CHARACTERS = 1_000_000
ENCODE_CHARACTERS = 100_000  # encoded at once: bounds the tokenizer's own memory, some 500 bytes a character
LONGEST_SENTENCE_BYTES = 30_000  # a longer one is no sentence, and costs the tokenizer memory in one piece
LONGEST_TRAINER_LINE_BYTES = 4_000  # SentencePiece drops lines over 4,192 bytes
ROUND_TRIP_EVERY = 50  # sentences
ONE_SENTENCE_WARNING_SHARE = 0.9


def prepare(params: Params, run: RunFolder) -> tuple[Vocabulary, TokenFolder]:
    """Make what is missing of vocabulary and tokens; both are opened when they are there already.

    Raises UserError: bad input (file and line), settings other than those the folder was made with, no space.
    """
    paths = expand_paths(params.text.input)
    text_format = _format_of(params.text, paths)
    vocabulary = _vocabulary(params, run, paths, text_format)
    source = _source(params, paths, text_format)
    if _anything_done(run.tokens):
        _refuse_other_source(run.tokens / "source.json", source)
    if not (run.tokens / "manifest.json").is_file() or open_tokens(run.tokens).missing():
        _write_tokens(params, run, paths, text_format, vocabulary, source)
    return vocabulary, open_tokens(run.tokens)


def word_rule(params: Params, kind: str) -> str:
    """What marks words: the tokenizer's own marks unless whole words are masked or `text.words` says otherwise."""
    if params.text.words != "auto":
        return params.text.words
    if not params.task.whole_words or kind.startswith("wordpiece"):
        return "marks"
    return "mecab" if params.text.language == "ja" else "whitespace"


def _format_of(text: TextParams, paths: list[Path]) -> str:
    if text.format != "auto":
        return text.format
    found, why = detect_format(paths, text.encoding)
    say(f"Text format: {found} ({why}); text.format overrides it")
    return found


# --- vocabulary


def _vocabulary(params: Params, run: RunFolder, paths: list[Path], text_format: str) -> Vocabulary:
    text, wanted = params.text, params.text.vocabulary
    settings: dict[str, Any] = {
        "vocabulary": wanted.model_dump(mode="json"),
        "text": text.model_dump(mode="json", include={"unicode", "lowercase", "strip_accents"}),
    }
    if wanted.load is None:
        settings["files"] = _files(paths)
    record = run.root / "vocabulary.json"
    if record.is_file():
        made_with = json.loads(record.read_text("utf-8"))["settings"]
        if made_with == settings:
            return open_vocabulary(run.tokenizer)
        if _anything_done(run.tokens):
            raise UserError(
                f"{run.tokenizer} was made with other settings: {_changes(made_with, settings)}. Undo the change, choose "
                f"another run.folder, or delete {run.root}"
            )
    if wanted.load is not None:
        vocabulary = load_vocabulary(
            wanted.load,
            run.tokenizer,
            unicode=text.unicode if "unicode" in text.model_fields_set else None,  # else the tokenizer's own
            lowercase=text.lowercase,
            strip_accents=text.strip_accents,
        )
        report: dict[str, Any] = {"loaded": str(wanted.load)}
    else:
        sample = reservoir_sample(
            _sampled_sentences(params, paths, text_format), wanted.sample_characters, params.run.seed
        )
        if not sample.texts:
            raise UserError(f"text.input = {text.input}: holds no text to train a vocabulary on")
        say(
            f"Training a {wanted.kind} vocabulary on {sample.sampled_characters:,} of {sample.seen_characters:,} "
            f"characters ({len(sample.texts):,} lines, seed {params.run.seed})"
        )
        vocabulary, trained = train_vocabulary(
            sample.texts,
            run.tokenizer,
            kind=wanted.kind,
            size=wanted.size,
            unicode=text.unicode,
            lowercase=text.lowercase,
            strip_accents=text.strip_accents,
            character_coverage=wanted.character_coverage,
        )
        report = {
            "sampled_characters": sample.sampled_characters,
            "seen_characters": sample.seen_characters,
            "seen_lines": sample.seen_texts,
            **asdict(trained),
        }
        skipped = trained.lines_given - trained.lines_used
        say(f"Vocabulary: {vocabulary.size:,} entries; {skipped / max(trained.lines_given, 1):.2%} of lines skipped")
    write_atomically(record, json.dumps({"settings": settings, "report": report}, indent=1).encode())
    return vocabulary


def _sampled_sentences(params: Params, paths: list[Path], text_format: str) -> Iterator[tuple[str, str]]:
    """(key, line) of every training sentence, short enough for the trainer."""
    text = params.text
    number = 0
    with progress("Reading text for the vocabulary", None, "characters") as meter:
        for document in _documents(text, paths, text_format, Counter()):
            meter.advance(len(document.text))
            if is_held_out(document_hash(document.text), text.held_out):
                continue
            cleaned = clean_document(document, text_format)
            for sentence in split_sentences(cleaned, text.language, document.lines_are_sentences):
                for piece in split_long_line(sentence, LONGEST_TRAINER_LINE_BYTES):
                    number += 1
                    yield str(number), piece


def _documents(text: TextParams, paths: list[Path], text_format: str, counts: Counter[str]) -> Iterator[Document]:
    return read_documents(
        paths,
        format=text_format,
        encoding=text.encoding,
        errors=text.invalid_bytes,
        text_field=text.text_field,
        counts=counts,
    )


# --- tokens


@dataclass(frozen=True)
class _Recipe:
    """Everything a worker needs besides the documents."""

    tokenizer: Path
    tokens: Path
    text_format: str
    language: str
    held_out: float
    words: str


def _write_tokens(
    params: Params, run: RunFolder, paths: list[Path], text_format: str, vocabulary: Vocabulary, source: dict[str, Any]
) -> None:
    for folder in (run.tokens / "chunks", run.tokens / "train", run.tokens / "held_out"):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(run.tokens / "source.json", json.dumps(source, indent=1, ensure_ascii=False).encode())
    recipe = _Recipe(
        run.tokenizer,
        run.tokens,
        text_format,
        params.text.language,
        params.text.held_out,
        word_rule(params, vocabulary.kind),
    )
    seen = json.loads((run.root / "vocabulary.json").read_text("utf-8"))["report"].get("seen_characters")
    counts: Counter[str] = Counter()
    num_workers = params.text.workers or len(os.sched_getaffinity(0))
    started_s = time.monotonic()
    num_chunks = 0
    with progress("Tokenizing", seen, "characters") as meter, _pool(num_workers, recipe) as submit:
        waiting: dict[Future[None], int] = {}
        for number, documents in enumerate(_chunks(_documents(params.text, paths, text_format, counts))):
            num_chunks = number + 1
            characters = sum(len(document.text) for document in documents)
            if _is_done(run.tokens, number):
                meter.advance(characters)
                continue
            waiting[submit(number, documents)] = characters
            if len(waiting) > num_workers:
                _collect(waiting, meter)
        while waiting:
            _collect(waiting, meter)
    _finish(params, run, vocabulary, source, counts, num_chunks, time.monotonic() - started_s)


def _is_done(tokens: Path, number: int) -> bool:
    """Whether a chunk has its record and every shard that the record names."""
    record = tokens / "chunks" / f"{number:05d}.json"
    if not record.is_file():
        return False
    shards = json.loads(record.read_text("utf-8"))["shards"].values()
    return all((tokens / info["path"]).is_file() for info in shards)


def _collect(waiting: dict[Future[None], int], meter: Any) -> None:
    """Wait for at least one chunk; raises what went wrong in it."""
    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
        characters = waiting.pop(future)
        try:
            future.result()
        except BrokenProcessPool:
            raise UserError(
                "a tokenizing process was killed, most likely because memory ran out; set text.workers to fewer "
                "processes and run again: finished chunks stay done"
            ) from None
        meter.advance(characters)


def _chunks(documents: Iterator[Document]) -> Iterator[list[Document]]:
    chunk: list[Document] = []
    characters = 0
    for document in documents:
        chunk.append(document)
        characters += len(document.text)
        if characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


class _Inline:
    """One worker: chunks are encoded by this process, at once."""

    def __init__(self, recipe: _Recipe):
        self.recipe = recipe

    def __enter__(self):
        _start_worker(self.recipe, in_worker=False)
        return self._submit

    def __exit__(self, *_: object) -> None:
        pass

    def _submit(self, number: int, documents: list[Document]) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(_encode_chunk(number, documents))
        return future


class _Pool:
    def __init__(self, num_workers: int, recipe: _Recipe):
        # spawn: a forked child of a process with the tokenizer's threads may hang.
        context = multiprocessing.get_context("spawn")
        self.executor = ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=(recipe, True))

    def __enter__(self):
        return lambda number, documents: self.executor.submit(_encode_chunk, number, documents)

    def __exit__(self, kind: object, *_: object) -> None:
        self.executor.shutdown(wait=True, cancel_futures=kind is not None)


def _pool(num_workers: int, recipe: _Recipe) -> "_Inline | _Pool":
    return _Inline(recipe) if num_workers == 1 else _Pool(num_workers, recipe)


_worker: tuple[_Recipe, Vocabulary] | None = None  # set once in each worker process


def _start_worker(recipe: _Recipe, in_worker: bool) -> None:
    global _worker
    if in_worker:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent ends the pool
        end_with_parent()
    _worker = (recipe, open_vocabulary(recipe.tokenizer, in_worker))


def _encode_chunk(number: int, documents: list[Document]) -> None:
    """Clean, split and encode documents; write the chunk's shards, then its record."""
    assert _worker is not None
    recipe, vocabulary = _worker
    builders = {split: ShardBuilder(vocabulary.size) for split in SPLITS}
    counts: Counter[str] = Counter()
    lost: list[str] = []
    for group in _groups(documents, recipe, counts):
        sentences = [sentence for _, each in group for sentence in each]
        arrays: list[np.ndarray] = []
        starts: list[np.ndarray] = []
        for some in _some_at_a_time(sentences):
            ids = vocabulary.encode_batch(some)
            arrays += [np.array(each, np.int32) for each in ids]
            starts += (
                [vocabulary.starts_word(each) for each in ids]
                if recipe.words == "marks"
                else vocabulary.word_starts_batch(some, ids, recipe.words)  # pyright: ignore[reportArgumentType]
            )
        at = 0
        for hashed, each in group:
            split = "held_out" if is_held_out(hashed, recipe.held_out) else "train"
            kept = [i for i in range(at, at + len(each)) if len(arrays[i])]
            counts["dropped: sentence without tokens"] += len(each) - len(kept)
            for i in range(at, at + len(each)):
                if (counts["sentences"] + i) % ROUND_TRIP_EVERY == 0:
                    counts["round trips tried"] += 1
                    if not vocabulary.round_trips(sentences[i], arrays[i]):
                        counts["round trips lossy"] += 1
                        lost.append(sentences[i][:80])
            at += len(each)
            counts["characters"] += sum(map(len, each))
            if not kept:
                counts["dropped: document without tokens"] += 1
                continue
            builders[split].add_document([arrays[i] for i in kept], [starts[i] for i in kept], hashed)
        counts["sentences"] += len(sentences)
    shards = {
        split: builder.write(recipe.tokens / split / f"{number:05d}.safetensors", recipe.tokens)
        for split, builder in builders.items()
    }
    record = {
        "counts": counts,
        "lossy": lost[:5],
        "shards": {split: asdict(info) for split, info in shards.items() if info is not None},
    }
    write_atomically(recipe.tokens / "chunks" / f"{number:05d}.json", json.dumps(record, ensure_ascii=False).encode())


def _groups(documents: list[Document], recipe: _Recipe, counts: Counter[str]) -> Iterator[list[tuple[int, list[str]]]]:
    """(hash, sentences) of documents, those of about ENCODE_CHARACTERS at a time."""
    group: list[tuple[int, list[str]]] = []
    size = 0
    for document in documents:
        cleaned = clean_document(document, recipe.text_format)
        sentences = [
            piece
            for sentence in split_sentences(cleaned, recipe.language, document.lines_are_sentences)
            for piece in split_long_line(sentence, LONGEST_SENTENCE_BYTES)
        ]
        if not sentences:
            counts["dropped: document without sentences"] += 1
            continue
        group.append((document_hash(document.text), sentences))
        size += len(cleaned)
        if size >= ENCODE_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _some_at_a_time(sentences: list[str]) -> Iterator[list[str]]:
    """About ENCODE_CHARACTERS of sentences, of which one document may hold many times more."""
    some: list[str] = []
    characters = 0
    for sentence in sentences:
        some.append(sentence)
        characters += len(sentence)
        if characters >= ENCODE_CHARACTERS:
            yield some
            some, characters = [], 0
    if some:
        yield some


# --- the input report


def _finish(
    params: Params,
    run: RunFolder,
    vocabulary: Vocabulary,
    source: dict[str, Any],
    read: Counter[str],
    num_chunks: int,
    elapsed_s: float,
) -> None:
    counts: Counter[str] = Counter()
    lossy: list[str] = []
    shards: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for number in range(num_chunks):
        record = json.loads((run.tokens / "chunks" / f"{number:05d}.json").read_text("utf-8"))
        counts.update(record["counts"])
        lossy += record["lossy"]
        for split, info in record["shards"].items():
            shards[split].append(info)
    manifest: dict[str, Any] = {
        "version": 1,
        "vocabulary_size": vocabulary.size,
        "vocabulary_sha256": sha256_of(run.tokenizer / "vocabulary.json"),
        "shards": shards,
        "report": {},
    }
    tokens = TokenFolder(run.tokens, manifest)
    if not shards["train"]:
        raise UserError(
            f"text.input = {params.text.input}: gives no training documents ({_sentence(read) or 'nothing was read'})"
        )
    if overlap := overlapping_documents(tokens):
        raise UserError(
            f"{run.tokens}: {overlap} held-out documents also are in training; delete the folder, run again"
        )
    frequency = np.zeros(vocabulary.size, np.int64)
    for shard in (shard for split in SPLITS for shard in tokens.shards(split)):
        frequency += np.bincount(shard.tokens, minlength=vocabulary.size)
        shard.close()
    totals = {
        split: {
            unit: sum(info[f"num_{unit}"] for info in shards[split]) for unit in ("documents", "sentences", "tokens")
        }
        for split in SPLITS
    }
    num_tokens = int(frequency.sum())
    special = {vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id}
    order = np.argsort(-frequency, kind="stable")
    manifest["report"] = {
        "files": [name for name, *_ in source["files"]],
        "input_bytes": sum(size for _, size, _ in source["files"]),
        "format": source["text"]["format"],
        "read": dict(read),
        "characters": counts["characters"],
        **totals,
        "dropped": {key: n for key, n in counts.items() if key.startswith("dropped") and n},
        "duplicate_documents": duplicate_documents(tokens),
        "unknown_token_rate": int(frequency[vocabulary.unk_id]) / num_tokens,
        "characters_per_token": counts["characters"] / num_tokens,
        "round_trips_tried": counts["round trips tried"],
        "round_trips_lossy": counts["round trips lossy"],
        "lossy_examples": lossy[:5],
        "word_rule": word_rule(params, vocabulary.kind),
        "vocabulary": {"kind": vocabulary.kind, "size": vocabulary.size},
        "commonest_token_ids": [int(i) for i in order[:10_000] if frequency[i] and int(i) not in special],
        "prepare_s": elapsed_s,
    }
    write_atomically(run.tokens / "manifest.json", json.dumps(manifest, ensure_ascii=False, indent=1).encode())
    for line in describe_input(manifest["report"]):
        say(line)
    _warn(params, read)


def describe_input(report: dict[str, Any]) -> list[str]:
    """The input report in lines a person reads."""
    train, held_out = report["train"], report["held_out"]
    documents = train["documents"] + held_out["documents"]
    tokens = train["tokens"] + held_out["tokens"]
    tried = report["round_trips_tried"]
    lines = [
        f"Text: {documents:,} documents, {train['sentences'] + held_out['sentences']:,} sentences, "
        f"{report['characters']:,} characters, {tokens:,} tokens ({report['characters_per_token']:.2f} characters a token)",
        f"Split: {train['documents']:,} documents train, {held_out['documents']:,} held out, none in both; "
        f"{report['duplicate_documents']:,} duplicates",
        f"Unknown tokens: {report['unknown_token_rate']:.3%}; encode-decode round trip exact for "
        f"{1 - report['round_trips_lossy'] / max(tried, 1):.2%} of {tried:,} sentences tried",
    ]
    dropped = {**{k: n for k, n in report["read"].items() if k.startswith("dropped")}, **report["dropped"]}
    if dropped:
        lines.append("Dropped: " + _sentence(Counter(dropped)))
    return lines


def _warn(params: Params, read: Counter[str]) -> None:
    share = read["documents of one sentence"] / max(read["documents"], 1)
    if share > ONE_SENTENCE_WARNING_SHARE and params.task.examples != "sentences":
        say(
            f"Warning: {share:.0%} of documents are a single sentence. If blank lines separate sentences, not documents, "
            f"set text.format = document_per_line or remove them; next-sentence pairs need longer documents"
        )


def _sentence(counts: Counter[str]) -> str:
    return ", ".join(f"{n:,} {key.removeprefix('dropped: ')}" for key, n in counts.items() if n)


# --- what the tokens are made of


def _source(params: Params, paths: list[Path], text_format: str) -> dict[str, Any]:
    text = params.text.model_dump(mode="json", exclude={"input", "workers", "vocabulary", "words"})
    text |= {"format": text_format, "words": word_rule(params, open_vocabulary(params.run.folder / "tokenizer").kind)}
    return {
        "text": text,
        "chunk_characters": CHUNK_CHARACTERS,
        "vocabulary_sha256": sha256_of(params.run.folder / "tokenizer" / "vocabulary.json"),
        "files": _files(paths),
    }


def _files(paths: list[Path]) -> list[list[Any]]:
    return [[str(path), path.stat().st_size, _fingerprint(path)] for path in paths]


def _anything_done(tokens: Path) -> bool:
    """Whether any chunk is: until then nothing is lost when text or settings change."""
    return any((tokens / "chunks").glob("*.json"))


def _fingerprint(path: Path, num_bytes: int = 1 << 20) -> str:
    """A hash of a file's first and last MiB: tells a changed input without reading all of it."""
    import hashlib

    with path.open("rb") as file:
        head = file.read(num_bytes)
        file.seek(max(path.stat().st_size - num_bytes, 0))
        return hashlib.blake2b(head + file.read(num_bytes), digest_size=16).hexdigest()


def _refuse_other_source(path: Path, source: dict[str, Any]) -> None:
    if not path.is_file():
        return
    made_from = json.loads(path.read_text("utf-8"))
    if made_from != json.loads(json.dumps(source)):
        raise UserError(
            f"{path.parent} was made from other input or settings: {_changes(made_from, source)}. Undo the change, choose "
            f"another run.folder, or delete {path.parent}"
        )


def _changes(before: Any, now: Any, path: str = "") -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        keys = sorted(before.keys() | now.keys())
        found = (_changes(before.get(key), now.get(key), f"{path}.{key}" if path else key) for key in keys)
        return "; ".join(each for each in found if each)
    if json.loads(json.dumps(before)) == json.loads(json.dumps(now)):
        return ""
    return f"{path} was {_short(before)}, now {_short(now)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else text[:97] + "..."
