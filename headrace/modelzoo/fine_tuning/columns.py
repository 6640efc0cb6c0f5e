"""Records of fine-tuning data sets, one at a time: CSV rows as text, TFRecords as arrays."""

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import InputError
from headrace.modelzoo.records.csv_rows import MAX_ROW_BYTES, header_of
from headrace.modelzoo.records.example import ParseError, parse_example
from headrace.modelzoo.records.record_set import find_files
from headrace.modelzoo.records.tfrecord import damaged, read_tfrecords
from headrace.text.csv_limit import csv_fields_up_to

_INTEGERS = re.compile(r"\[\s*(-?\d+(?:\s*,\s*-?\d+)*)?\s*\]")


def read_records(
    data_dir: Sequence[str], csv_columns: Sequence[str], features: Sequence[str], notes: list[str]
) -> Iterator[tuple[Path, str, dict[str, Any]]]:
    """File, place and values of each record: the columns of a CSV file, or the features of a TFRecord. Raises InputError for
    damage, missing columns, and another number of rows than meta.dat says."""
    for path, stated in find_files(list(data_dir), notes).items():
        num_records = 0
        for where, values in _csv_rows(path, csv_columns) if path.suffix == ".csv" else _examples(path, features):
            num_records += 1
            yield path, where, values
        if stated is not None and stated != num_records:
            raise InputError(
                f"{path}: has {num_records} records, and meta.dat says {stated}; copy the file again, or delete meta.dat to "
                f"read what is there"
            )


def _csv_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    _check_names(str(path), header_of(path), columns, "columns")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file, csv_fields_up_to(MAX_ROW_BYTES):
            for number, row in enumerate(csv.DictReader(file, strict=True)):
                if None in row or None in row.values():
                    raise InputError(
                        f"{path}: record {number}: has another number of cells than the header; copy it again"
                    )
                yield f"{path}: record {number}", row
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is damaged ({error}); copy the file again, or make it anew") from None


def _examples(path: Path, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    for frame in read_tfrecords(path):
        try:
            features = parse_example(frame.payload)
        except ParseError as error:
            raise damaged(path, frame.number, frame.offset, f"it is no tf.train.Example: {error}") from None
        where = f"{path}: record {frame.number}"
        _check_names(where, features, names, "features")
        yield where, features


def _check_names(where: str, found: Any, wanted: Sequence[str], what: str) -> None:
    if missing := [name for name in wanted if name not in found]:
        raise InputError(
            f"{where}: lacks the {what} {', '.join(missing)}; it has {', '.join(sorted(found)) or 'none'}. Records of another "
            f"tool, or of another release of it, are not read; make them with the tool's script for this data processor"
        )


def integers(where: str, name: str, value: Any) -> np.ndarray:
    """int64 (n,) of a feature, or of a cell like [101, 7592, 102]. Raises InputError."""
    if isinstance(value, np.ndarray):
        return value.astype(np.int64)
    if isinstance(value, str) and (match := _INTEGERS.fullmatch(value.strip())) is not None:
        return np.array([int(each) for each in (match[1] or "").split(",") if each.strip()], np.int64)
    raise InputError(f"{where}: {name} should be a list of integers like [101, 7592, 102], and is {str(value)[:60]!r}")


def integer(where: str, name: str, value: Any) -> int | None:
    """One integer; None for an empty cell. Raises InputError."""
    if isinstance(value, str):
        if not value.strip():
            return None
        if re.fullmatch(r"-?\d+", value.strip()):
            return int(value)
        raise InputError(f"{where}: {name} should be an integer, and is {value[:60]!r}")
    found = integers(where, name, value)
    if len(found) != 1:
        raise InputError(f"{where}: {name} should be one integer, and there are {len(found)}")
    return int(found[0])
