"""Where each example lies, and its place in the random order: rows on disk, some 50 bytes an example.

Work is cut into units of one round of --dupe_factor and some documents. A unit's rows are a function of (seed, round,
document) alone, so neither the cut nor the number of workers shows in them. The order is that of a hash: the rows of a
unit are stored sorted by it, and a slice of all units by hash is a slice of the shuffled whole.
"""

import json
import random
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from headrace.modelzoo.create.flags import Settings
from headrace.modelzoo.create.pairs import document_pairs
from headrace.modelzoo.create.token_store import TokenStore
from headrace.modelzoo.create.windows import document_windows, stream_windows
from headrace.text.random import bits, generator, key
from headrace.text.tokens import write_atomically

UNIT_SENTENCES = 100_000
NO_LABEL = -1
ROW = np.dtype([("key", "<u8"), ("a", "<i8", 2), ("b", "<i8", 2), ("label", "<i4"), ("stream", "<i4")])
"""key: place in the order, and what masks are drawn from. a, b: places in the tokens of the store, or of a stream of
documents when `stream` is not -1."""


@dataclass(frozen=True)
class Unit:
    """One piece of planning: some documents of a pass in one round; all of them where examples cross documents."""

    number: int
    pass_number: int
    round: int
    first: int
    after: int
    pass_documents: tuple[int, int]


def units(store: TokenStore, settings: Settings) -> list[Unit]:
    """All units, pass by pass."""
    found: list[Unit] = []
    begin = 0
    for pass_number, count in enumerate(store.counts["passes"]):
        end = begin + count
        cuts = [begin, end] if settings.allow_cross_document_examples else _cuts(store, begin, end)
        for turn in range(settings.dupe_factor):
            for first, after in pairwise(cuts):
                if after > first:
                    found.append(Unit(len(found), pass_number, turn, first, after, (begin, end)))
        begin = end
    return found


def _cuts(store: TokenStore, begin: int, end: int, block: int = 1 << 16) -> list[int]:
    """Documents at which a pass is cut so that a unit holds about UNIT_SENTENCES."""
    cuts, cut_sentence = [begin], None
    for first in range(begin, end, block):
        after = min(first + block, end)
        for document, sentence in zip(range(first, after), store.document_starts(first, after), strict=False):
            cut_sentence = sentence if cut_sentence is None else cut_sentence
            if sentence - cut_sentence >= UNIT_SENTENCES:
                cuts.append(document)
                cut_sentence = sentence
    return [*cuts, end]


def plan_path(folder: Path, unit: Unit) -> Path:
    return folder / f"{unit.number:06d}.npy"


def stream_folder(folder: Path, turn: int) -> Path:
    return folder / f"stream-{turn}"


def plan_unit(unit: Unit, folder: Path, store: TokenStore, separator_id: int, settings: Settings) -> None:
    """Write the unit's rows, sorted by key."""
    rows: list[tuple[int, ...]] = []
    documents: list[int] = []
    counts: list[int] = []
    if settings.allow_cross_document_examples:
        order = unit.first + generator("documents", settings.seed, unit.round).permutation(unit.after - unit.first)
        draw = random.Random(key("windows", settings.seed, unit.round))
        target = stream_folder(folder, unit.round)
        target.mkdir(exist_ok=True)
        rows += stream_windows(store, order, separator_id, settings, draw, target)
        documents, counts = [0], [len(rows)]
    else:
        of_pass = range(*unit.pass_documents)
        for document in range(unit.first, unit.after):
            draw = random.Random(key("document", settings.seed, unit.round, document))
            before = len(rows)
            if settings.pairs:
                rows += document_pairs(store, document, of_pass, settings, draw)
            else:
                rows += document_windows(store, document, settings, draw)
            documents.append(document)
            counts.append(len(rows) - before)
    table = np.zeros(len(rows), ROW)
    values = np.array(rows, np.int64).reshape(len(rows), 5 if settings.pairs else 2)
    table["a"] = values[:, :2]
    table["label"] = NO_LABEL
    if settings.pairs:
        table["b"], table["label"] = values[:, 2:4], values[:, 4]
    table["stream"] = unit.round if settings.allow_cross_document_examples else -1
    ordinal = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    of_document = bits(key("example", settings.seed, unit.round), np.array(documents, np.uint64))
    table["key"] = bits(np.repeat(of_document, counts), ordinal)
    path = plan_path(folder, unit)
    with path.with_suffix(".tmp").open("wb") as file:
        np.save(file, table[np.argsort(table["key"], kind="stable")])
    path.with_suffix(".tmp").replace(path)


def write_summary(folder: Path, all_units: list[Unit]) -> dict[str, Any]:
    """After the last unit: examples in each pass, and how many have a random next sentence."""
    examples: dict[int, int] = {}
    random_next = 0
    for unit in all_units:
        table = np.load(plan_path(folder, unit))
        examples[unit.pass_number] = examples.get(unit.pass_number, 0) + len(table)
        random_next += int((table["label"] == 1).sum())
    summary = {"examples": sum(examples.values()), "passes": sorted(examples.items()), "random_next": random_next}
    write_atomically(folder / "plan.json", json.dumps(summary).encode())
    return summary


def rows_between(folder: Path, of_pass: list[Unit], low: int, high: int) -> np.ndarray:
    """The rows of a pass whose key lies in [low, high), in order."""
    parts = []
    for unit in of_pass:
        table = np.load(plan_path(folder, unit), mmap_mode="r")
        keys = table["key"]
        start = int(np.searchsorted(keys, np.uint64(low)))
        stop = len(keys) if high >= 1 << 64 else int(np.searchsorted(keys, np.uint64(high)))
        parts.append(np.array(table[start:stop]))
    rows = np.concatenate(parts) if parts else np.empty(0, ROW)
    return rows[np.argsort(rows["key"], kind="stable")]
