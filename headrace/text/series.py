"""Tables of numbers in, time series out, and windows of them as documents: their values over the window's own scale, as words.

    CSV, TSV or Parquet -> Series(name, values) -> windows of `length` points, every `stride` -> "0.9841 1.0342 nan 1.1"

A table is long (a column says which series a row belongs to, its rows stand together) or wide (each column is a series).
A window's scale is the mean size of the values before its last `horizon`, as in forecasting, which knows no more; 1 where
they are all zero or missing (Chronos, Ansari et al. 2024). All windows of one series train or all are held out, and the
last `held_out_points` of every series are in none of them: forecasts are judged there. Memory: one series.
"""

import csv
import io
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import InputError, MissingExtraError, UserError
from headrace.text.document import DOCUMENTS, Document, ReadOptions, SeriesOptions
from headrace.text.files import iter_lines

MISSING_WORDS = frozenset(("", "na", "nan", "n/a", "null", "none", "."))
POINTS, MISSING, SHORT, NO_VALUES = (
    "points",
    "missing values",
    "dropped: series of fewer than two points",
    "dropped: window without values",
)


@dataclass(frozen=True)
class Series:
    name: str
    """file:id, file:column, or file:id:column"""
    source: str
    """file:line where it begins"""
    values: np.ndarray  # (N,) float64, nan = missing
    last_time: str | None


def read_series(path: Path, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    """A Reader of `headrace.text.documents`: windows of every series in a file. Raises InputError with file:line."""
    given = options.series
    if given is None:
        raise UserError("text.format = series: text.series should say which columns to read; see docs/domains.md")
    for series in iter_series(path, given, options.encoding, options.errors, counts):
        values = series.values[: len(series.values) - given.held_out_points]
        counts[POINTS] += len(series.values)
        counts[MISSING] += int(np.isnan(series.values).sum())
        if len(values) < 2:
            counts[SHORT] += 1
            continue
        for start in window_starts(len(values), given.length, given.stride):
            window = values[start : start + given.length]
            if np.isnan(window).all():
                counts[NO_VALUES] += 1
                continue
            known = max(len(window) - given.horizon, 1)
            counts[DOCUMENTS] += 1
            yield Document(words_of(window / scale_of(window[:known])), series.source, group=series.name)


def window_starts(num_points: int, length: int, stride: int) -> list[int]:
    """Where windows begin so that they reach the last point: every `stride` points, counted from the end, and at 0."""
    last = max(num_points - length, 0)
    return sorted({0, *range(last, -1, -stride)})


def scale_of(values: np.ndarray) -> float:
    """Mean absolute value, missing ones left out; 1 where that is nothing."""
    known = np.abs(values[~np.isnan(values)])
    mean = float(known.mean()) if len(known) else 0.0
    return mean if mean > 0 else 1.0


def words_of(scaled: np.ndarray) -> str:
    return " ".join("nan" if math.isnan(value) else f"{value:.5g}" for value in scaled.tolist())


def iter_series(
    path: Path, given: SeriesOptions, encoding: str = "auto", errors: str = "strict", counts: Counter[str] | None = None
) -> Iterator[Series]:
    """The series of a file, one after the other."""
    rows = _parquet_rows(path) if _is_parquet(path) else _csv_rows(path, encoding, errors, counts)
    try:
        columns = next(rows)[1]
    except StopIteration:
        return
    at = _Columns.find(path, columns, given)
    growing: _Growing | None = None
    finished: set[str] = set()
    for number, row in rows:
        if len(row) != len(columns):
            raise InputError(f"{path}:{number}: {len(row)} fields, and the first line names {len(columns)} columns.")
        id = "" if at.id is None else str(row[at.id])
        if growing is None or id != growing.id:
            if growing is not None:
                yield from growing.finish()
                finished.add(growing.id)
            if id in finished:
                raise InputError(
                    f"{path}:{number}: series {id!r} goes on here after another one; sort the rows by {given.id!r}."
                )
            growing = _Growing(path, number, id, at, columns)
        growing.add(number, row)
    yield from growing.finish() if growing else ()


@dataclass(frozen=True)
class _Columns:
    """Where in a row things stand."""

    id: int | None
    time: int | None
    values: tuple[int, ...]

    @classmethod
    def find(cls, path: Path, columns: Sequence[str], given: SeriesOptions) -> "_Columns":
        def place(key: str, name: str) -> int:
            if name not in columns:
                raise InputError(f"{path}: text.series.{key} = {name!r}: no such column; found: {', '.join(columns)}.")
            return list(columns).index(name)

        id = None if given.id is None else place("id", given.id)
        time = None if given.time is None else place("time", given.time)
        values = tuple(place("values", name) for name in given.values)
        if not values:
            values = tuple(i for i in range(len(columns)) if i not in (id, time))
        if not values:
            raise InputError(f"{path}: has no column of values beside {', '.join(columns)}.")
        return cls(id, time, values)


class _Growing:
    """The series under way: one a column of values."""

    def __init__(self, path: Path, number: int, id: str, at: _Columns, columns: Sequence[str]):
        self.path, self.id, self.at, self.columns = path, id, at, columns
        self.source = f"{path}:{number}"
        self._values = [array("d") for _ in at.values]
        self._last_time: Any = None

    def add(self, number: int, row: Sequence[Any]) -> None:
        if self.at.time is not None:
            time = row[self.at.time]
            if self._last_time is not None and not _is_later(time, self._last_time):
                raise InputError(
                    f"{self.path}:{number}: time {time} does not come after {self._last_time}; sort the rows of each series by "
                    f"{self.columns[self.at.time]!r}, each time once."
                )
            self._last_time = time
        for values, column in zip(self._values, self.at.values, strict=True):
            values.append(self._number(row[column], number, column))

    def _number(self, value: Any, number: int, column: int) -> float:
        if value is None or (isinstance(value, str) and value.strip().lower() in MISSING_WORDS):
            return math.nan
        try:
            found = float(value)
        except (TypeError, ValueError):
            raise InputError(
                f"{self.path}:{number}: {self.columns[column]} = {value!r} is no number; name the columns of numbers in "
                "text.series.values, and leave missing ones empty."
            ) from None
        if math.isinf(found):
            raise InputError(
                f"{self.path}:{number}: {self.columns[column]} is infinite; leave it empty if it is missing."
            )
        return found

    def finish(self) -> Iterator[Series]:
        for values, column in zip(self._values, self.at.values, strict=True):
            parts = [self.path.name] + ([self.id] if self.at.id is not None else [])
            if len(self.at.values) > 1 or self.at.id is None:
                parts.append(self.columns[column])
            last_time = None if self._last_time is None else str(self._last_time)
            yield Series(":".join(parts), self.source, np.array(values, np.float64), last_time)


def _is_later(time: Any, before: Any) -> bool:
    """Numbers by size, other texts by their letters, which is right for ISO dates."""
    try:
        return float(time) > float(before)
    except (TypeError, ValueError):
        return str(time) > str(before)


def _csv_rows(
    path: Path, encoding: str, errors: str, counts: Counter[str] | None
) -> Iterator[tuple[int, Sequence[Any]]]:
    """(line, fields) of each row, the column names first. Commas, or tabs or semicolons where the first line has them."""
    delimiter = None
    pieces: list[str] = []
    for line in iter_lines(path, encoding, errors, counts):
        pieces.append(line.text)
        if not line.ends:
            continue
        text, pieces = "".join(pieces), []
        if not text.strip():
            continue
        if delimiter is None:
            delimiter = max("\t;,", key=text.count)
        try:
            yield line.number, next(csv.reader(io.StringIO(text), delimiter=delimiter, strict=True))
        except csv.Error as error:
            raise InputError(f"{path}:{line.number}: not a row of CSV ({error}).") from None


def _is_parquet(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PAR1"


def _parquet_rows(path: Path) -> Iterator[tuple[int, Sequence[Any]]]:
    """The same of a Parquet file; the number is the row's."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Reading Parquet files", "pyarrow", "parquet") from error
    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            yield 0, file.schema_arrow.names
            for batch in file.iter_batches(batch_size=4096):
                for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    number += 1
                    yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}:{number + 1}: the Parquet data is damaged ({error}).") from None
