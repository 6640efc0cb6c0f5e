"""From raw files to a vocabulary and tokens on disk: streaming, parallel, resumable.

    files -> documents -> chunks of about a million characters -> a process each: clean, split, encode -> shards

What a chunk holds depends on the input alone, and each finished chunk leaves a record. So a killed prepare reads the
input again, which is fast, and skips every chunk that is done. Memory: a few chunks, whatever the size of the input.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.params import Params
from headrace.progress import progress
from headrace.run_folder import RunFolder
from headrace.text.documents import Document
from headrace.text.encode import Recipe, worker_pool
from headrace.text.files import expand_paths
from headrace.text.input_report import write_manifest
from headrace.text.make_vocabulary import make_vocabulary
from headrace.text.source import anything_done, documents_of, format_of, refuse_other_source, source_of, word_rule
from headrace.text.tokens import TokenFolder, open_tokens, write_atomically
from headrace.text.vocabulary import Vocabulary
from headrace.text.workers import num_cores

CHUNK_CHARACTERS = 1_000_000


def prepare(params: Params, run: RunFolder) -> tuple[Vocabulary, TokenFolder]:
    """Make what is missing of vocabulary and tokens; both are opened when they are there already.

    Raises UserError: bad input (file and line), settings other than those the folder was made with, no space.
    """
    paths = expand_paths(params.text.input)
    text_format = format_of(params.text, paths)
    vocabulary = make_vocabulary(params, run, paths, text_format)
    source = source_of(params, paths, text_format, CHUNK_CHARACTERS)
    if anything_done(run.tokens):
        refuse_other_source(run.tokens / "source.json", source)
    if not (run.tokens / "manifest.json").is_file() or open_tokens(run.tokens).missing():
        _write_tokens(params, run, paths, text_format, vocabulary, source)
    return vocabulary, open_tokens(run.tokens)


def _write_tokens(
    params: Params, run: RunFolder, paths: list[Path], text_format: str, vocabulary: Vocabulary, source: dict[str, Any]
) -> None:
    for folder in (run.tokens / "chunks", run.tokens / "train", run.tokens / "held_out"):
        folder.mkdir(parents=True, exist_ok=True)
    write_atomically(run.tokens / "source.json", json.dumps(source, indent=1, ensure_ascii=False).encode())
    recipe = Recipe(
        run.tokenizer,
        run.tokens,
        text_format,
        params.text.language,
        params.text.held_out,
        word_rule(params, vocabulary.kind),
    )
    seen = json.loads((run.root / "vocabulary.json").read_text("utf-8"))["report"].get("seen_characters")
    counts: Counter[str] = Counter()
    num_workers = params.text.workers or num_cores()
    started_s = time.monotonic()
    num_chunks = 0
    with progress("Tokenizing", seen, "characters") as meter, worker_pool(num_workers, recipe) as submit:
        waiting: dict[Future[None], int] = {}
        for number, documents in enumerate(_chunks(documents_of(params.text, paths, text_format, counts))):
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
    write_manifest(params, run, vocabulary, source, counts, num_chunks, time.monotonic() - started_s)


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
