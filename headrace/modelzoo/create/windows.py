"""Masked-LM examples without pairs, by the rule of create_tfrecords_mlm_only.py: windows that slide over a document,
each sharing `overlap_size` tokens with the one before; what is left at the end is an example too.

With --allow_cross_document_examples what is left, a separator and the next document make one text. Documents then
follow each other in a random order, and that stream is written to disk, where a window is again two numbers.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from headrace.modelzoo.create.flags import Settings
from headrace.modelzoo.create.pairs import target_length
from headrace.modelzoo.create.token_store import TokenStore

_COPY_TOKENS = 1 << 20


def windows(length: int, settings: Settings, draw: random.Random) -> Iterator[tuple[int, int]]:
    """(start, stop) of the windows that fit into `length` tokens, then of what is left.

    A length that was drawn stays until another is drawn, as in the script."""
    start, target = 0, target_length(settings, draw, settings.room)
    while start + target <= length:
        yield start, start + target
        start += target - settings.overlap_size
        if draw.random() < settings.short_seq_prob:
            target = draw.randint(settings.min_short_seq_length, settings.room)
    yield start, length


def document_windows(
    store: TokenStore, document: int, settings: Settings, draw: random.Random
) -> Iterator[tuple[int, int]]:
    start, stop = store.document_tokens(document)
    for window in windows(stop - start, settings, draw):
        if window[1] > window[0]:
            yield start + window[0], start + window[1]


def stream_windows(
    store: TokenStore, order: np.ndarray, separator_id: int, settings: Settings, draw: random.Random, folder: Path
) -> Iterator[tuple[int, int]]:
    """The windows of all documents in this order; writes their stream, tokens.bin and word_starts.bin, to `folder`."""
    names = ["tokens", "word_starts"] if store.has_word_starts else ["tokens"]
    files = {name: (folder / f"{name}.bin").open("wb") for name in names}
    separator = {"tokens": np.array([separator_id], store.dtype).tobytes(), "word_starts": b"\1"}
    read = {"tokens": store.tokens, "word_starts": store.word_starts}
    base = end = 0  # of what is left of the documents before
    try:
        for document in order.tolist():
            if end > base:
                for name in names:
                    files[name].write(separator[name])
                end += 1
            start, stop = store.document_tokens(document)
            for at in range(start, stop, _COPY_TOKENS):
                for name in names:
                    files[name].write(read[name](at, min(at + _COPY_TOKENS, stop)))
            end += stop - start
            window = None
            for following in windows(end - base, settings, draw):
                if window is not None:
                    yield base + window[0], base + window[1]
                window = following
            assert window is not None
            base += window[0]  # what is left waits for the next document
        if end > base:
            yield base, end
    finally:
        for file in files.values():
            file.close()
