"""Chunks of documents -> shards of tokens, in worker processes."""

import json
import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from headrace.text.documents import Document, clean_document
from headrace.text.sentences import overlapping_pieces, split_long_line, split_sentences
from headrace.text.tokens import SPLITS, ShardBuilder, document_hash, is_held_out, write_atomically
from headrace.text.vocabulary import Vocabulary, open_vocabulary
from headrace.text.workers import end_with_parent

ENCODE_CHARACTERS = 100_000  # encoded at once: bounds the tokenizer's own memory, some 500 bytes a character
LONGEST_SENTENCE_BYTES = 30_000  # a longer one is no sentence, and costs the tokenizer memory in one piece
ROUND_TRIP_EVERY = 50  # sentences


@dataclass(frozen=True)
class Recipe:
    """Everything a worker needs besides the documents."""

    tokenizer: Path
    tokens: Path
    text_format: str
    language: str
    held_out: float
    words: str


class _Inline:
    """One worker: chunks are encoded by this process, at once."""

    def __init__(self, recipe: Recipe):
        self.recipe = recipe

    def __enter__(self):
        _start_worker(self.recipe, in_worker=False)
        return self._submit

    def __exit__(self, *_: object) -> None:
        pass

    def _submit(self, number: int, documents: list[Document]) -> Future[None]:
        future: Future[None] = Future()
        future.set_result(encode_chunk(number, documents))
        return future


class _Pool:
    def __init__(self, num_workers: int, recipe: Recipe):
        # spawn: a forked child of a process with the tokenizer's threads may hang.
        context = multiprocessing.get_context("spawn")
        self.executor = ProcessPoolExecutor(num_workers, context, initializer=_start_worker, initargs=(recipe, True))

    def __enter__(self):
        return lambda number, documents: self.executor.submit(encode_chunk, number, documents)

    def __exit__(self, kind: object, *_: object) -> None:
        self.executor.shutdown(wait=True, cancel_futures=kind is not None)


def worker_pool(num_workers: int, recipe: Recipe) -> "_Inline | _Pool":
    return _Inline(recipe) if num_workers == 1 else _Pool(num_workers, recipe)


_worker: tuple[Recipe, Vocabulary] | None = None  # set once in each worker process


def _start_worker(recipe: Recipe, in_worker: bool) -> None:
    global _worker
    if in_worker:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent ends the pool
        end_with_parent()
    _worker = (recipe, open_vocabulary(recipe.tokenizer, in_worker))


def encode_chunk(number: int, documents: list[Document]) -> None:
    """Clean, split and encode documents; write the chunk's shards, then its record."""
    assert _worker is not None
    recipe, vocabulary = _worker
    builders = {split: ShardBuilder(vocabulary.size) for split in SPLITS}
    counts: Counter[str] = Counter()
    lost: list[str] = []
    for group in _groups(documents, recipe, vocabulary, counts):
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
        for document, each in group:
            hashed = document_hash(document.identity)
            held_out = is_held_out(document_hash(document.split_key), recipe.held_out)
            split = "held_out" if held_out else "train"
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


def _groups(
    documents: list[Document], recipe: Recipe, vocabulary: Vocabulary, counts: Counter[str]
) -> Iterator[list[tuple[Document, list[str]]]]:
    """Documents with their sentences, those of about ENCODE_CHARACTERS at a time."""
    group: list[tuple[Document, list[str]]] = []
    size = 0
    for document in documents:
        cleaned = clean_document(document, recipe.text_format)
        sentences = [
            piece
            for sentence in split_sentences(cleaned, recipe.language, document.lines_are_sentences)
            for piece in _pieces(sentence, vocabulary)
        ]
        if not sentences:
            counts["dropped: document without sentences"] += 1
            continue
        group.append((document, sentences))
        size += len(cleaned)
        if size >= ENCODE_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _pieces(sentence: str, vocabulary: Vocabulary) -> list[str]:
    """A sentence in pieces short enough to encode; of overlapping k-mers none is lost or made twice."""
    if vocabulary.shared_characters:
        return overlapping_pieces(sentence, LONGEST_SENTENCE_BYTES, vocabulary.shared_characters)
    return split_long_line(sentence, LONGEST_SENTENCE_BYTES)


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
