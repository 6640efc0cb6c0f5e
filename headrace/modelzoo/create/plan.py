"""Where each example lies, and its place in the random order: rows on disk, some 50 bytes an example.

Work is cut into units of one round of --dupe_factor and some documents. A unit's rows are a function of (seed, round,
document) alone, so neither the cut nor the number of workers shows in them. The order is that of a hash: the rows of
each file are sorted by it, and a slice of all files by hash is a slice of the shuffled whole.
"""

import json
import random
from bisect import bisect_left
from collections.abc import Iterator
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
LARGEST_FILE = 100_000
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


def record_path(folder: Path, unit: Unit) -> Path:
    """Written last: how many files of rows the unit has, its examples, and those with a random next sentence."""
    return folder / f"{unit.number:06d}.json"


def rows_path(folder: Path, unit_number: int, part: int) -> Path:
    return folder / f"{unit_number:06d}-{part:04d}.npy"


def stream_folder(folder: Path, turn: int) -> Path:
    return folder / f"stream-{turn}"


def plan_unit(unit: Unit, folder: Path, store: TokenStore, separator_id: int, settings: Settings) -> None:
    """Write the unit's rows, then its record."""
    rows = _Rows(folder, unit, settings)
    if settings.allow_cross_document_examples:
        order = unit.first + generator("documents", settings.seed, unit.round).permutation(unit.after - unit.first)
        draw = random.Random(key("windows", settings.seed, unit.round))
        target = stream_folder(folder, unit.round)
        target.mkdir(exist_ok=True)
        rows.add(0, stream_windows(store, order, separator_id, settings, draw, target))
    else:
        of_pass = range(*unit.pass_documents)
        for document in range(unit.first, unit.after):
            draw = random.Random(key("document", settings.seed, unit.round, document))
            if settings.pairs:
                rows.add(document, document_pairs(store, document, of_pass, settings, draw))
            else:
                rows.add(document, document_windows(store, document, settings, draw))
    rows.write()
    record = {"files": rows.files, "examples": rows.examples, "random_next": rows.random_next}
    write_atomically(record_path(folder, unit), json.dumps(record).encode())


class _Rows:
    """Rows of a unit under way; LARGEST_FILE of them at most are in memory."""

    def __init__(self, folder: Path, unit: Unit, settings: Settings):
        self.folder, self.unit, self.settings = folder, unit, settings
        self.files = self.examples = self.random_next = 0
        self._rows: list[tuple[int, ...]] = []
        self._places: list[tuple[int, int]] = []  # document, ordinal in it

    def add(self, document: int, examples: Iterator[tuple[int, ...]]) -> None:
        for ordinal, row in enumerate(examples):
            self._rows.append(row)
            self._places.append((document, ordinal))
            if len(self._rows) == LARGEST_FILE:
                self.write()

    def write(self) -> None:
        """A file of the rows so far, sorted by key."""
        settings, count = self.settings, len(self._rows)
        if not count:
            return
        table = np.zeros(count, ROW)
        values = np.array(self._rows, np.int64)
        table["a"] = values[:, :2]
        table["label"] = NO_LABEL
        if settings.pairs:
            table["b"], table["label"] = values[:, 2:4], values[:, 4]
        table["stream"] = self.unit.round if settings.allow_cross_document_examples else -1
        document, ordinal = np.array(self._places, np.int64).T
        of_document = bits(key("example", settings.seed, self.unit.round), document)
        table["key"] = bits(of_document, ordinal)
        path = rows_path(self.folder, self.unit.number, self.files)
        np.save(path, table[np.argsort(table["key"], kind="stable")])
        self.files += 1
        self.examples += count
        self.random_next += int((table["label"] == 1).sum())
        self._rows, self._places = [], []


def write_summary(folder: Path, all_units: list[Unit]) -> None:
    """After the last unit: each pass's examples and files of rows, and how many examples have a random next sentence."""
    passes: dict[int, dict[str, Any]] = {}
    random_next = 0
    for unit in all_units:
        record = json.loads(record_path(folder, unit).read_text("utf-8"))
        of_pass = passes.setdefault(unit.pass_number, {"examples": 0, "files": []})
        of_pass["examples"] += record["examples"]
        of_pass["files"] += [[unit.number, part] for part in range(record["files"])]
        random_next += record["random_next"]
    summary = {
        "examples": sum(each["examples"] for each in passes.values()),
        "passes": [passes[number] for number in sorted(passes)],
        "random_next": random_next,
    }
    write_atomically(folder / "plan.json", json.dumps(summary).encode())


def rows_between(folder: Path, files: list[list[int]], low: int, high: int) -> np.ndarray:
    """The rows of a pass whose key lies in [low, high), in order. files: the pass's (unit, part)."""
    parts = [np.empty(0, ROW)]
    for unit, part in files:
        table = np.load(rows_path(folder, unit, part), mmap_mode="r")
        keys = table["key"]
        start = bisect_left(keys, low)  # touches a few pages; numpy's own search would copy all keys
        stop = bisect_left(keys, high) if high < 1 << 64 else len(keys)
        parts.append(np.array(table[start:stop]))
    rows = np.concatenate(parts)
    return rows[np.argsort(rows["key"], kind="stable")]
