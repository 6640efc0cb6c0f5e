"""The records of a data_dir, whatever the files: opened and checked before training, then read by number.

    data_dir -> files in name order -> each checked and indexed -> RecordSet -> arrays of any records

Records are numbered through the files from 0. Nothing is kept but the index, 8 bytes a record.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from headrace.errors import InputError
from headrace.modelzoo.records.csv_file import open_csv_file
from headrace.modelzoo.records.csv_rows import read_meta
from headrace.modelzoo.records.decode import Column
from headrace.modelzoo.records.hdf5_file import open_hdf5_file
from headrace.modelzoo.records.layouts import PREDICTION_COLUMN, Layout, check_lengths, check_same
from headrace.modelzoo.records.tfrecord_file import open_tfrecord_file
from headrace.modelzoo.records.token_rows import TokenRule

PATTERNS = ("*.tfrecord*", "*.csv", "*.h5", "*.hdf5")
CHECKED_RECORDS = 200_000
"""What `check_records` reads at most: a few seconds of TFRecords."""
_CHECK_BATCH = 512


class RecordFile(Protocol):
    """What every kind of file can do."""

    @property
    def path(self) -> Path: ...
    @property
    def num_records(self) -> int: ...
    @property
    def layout(self) -> Layout: ...
    @property
    def columns(self) -> Mapping[str, Column]: ...

    def where(self, number: int) -> str:
        """A record of the file, for messages."""
        ...

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of records (B,) of the file; raises InputError naming the one that is damaged."""
        ...


@dataclass(frozen=True)
class RecordSet:
    """Records of one layout and shape. notes: what the user should know."""

    files: Sequence[RecordFile]
    vocabulary_size: int | None
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def layout(self) -> Layout:
        return self.files[0].layout

    @property
    def columns(self) -> Mapping[str, Column]:
        """Name -> dtype and length; the arrays are (B, length)."""
        return self.files[0].columns

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum([file.num_records for file in self.files])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of records (B,), in the order asked for. Raises InputError naming file and record of one that is
        damaged, has an id outside the vocabulary or predicts a position outside its sequence."""
        out = {name: np.empty((len(numbers), column.length), column.dtype) for name, column in self.columns.items()}
        of_file = np.searchsorted(self._ends, numbers, side="right")
        for f in np.unique(of_file).tolist():
            rows = np.flatnonzero(of_file == f)
            file, inside = self.files[f], numbers[rows] - (self._ends[f] - self.files[f].num_records)
            by_place = np.argsort(inside, kind="stable")
            rows, inside = rows[by_place], inside[by_place]
            arrays = file.read(inside)
            check_values(file, inside, arrays, self.vocabulary_size)
            for name, values in out.items():
                values[rows] = arrays[name]
        return out


def open_records(
    data_dir: str | Path | Sequence[str | Path],
    *,
    layout: Layout | None = None,
    max_sequence_length: int | None = None,
    max_predictions_per_seq: int | None = None,
    vocabulary_size: int | None = None,
    tokens: TokenRule | None = None,
    unpack_folder: Path | None = None,
    check_payloads: bool = True,
) -> RecordSet:
    """Open the records of one or several folders (or files, or patterns of files) and check every file.

    layout: what the data processor wants, None = what the files hold. tokens: how token strings become ids, for records
    that are masked at load. unpack_folder: where files that cannot be read in any order are unpacked for as long as the
    set is open. check_payloads: compare the checksum of every TFRecord now, not only when it is read.
    Raises InputError or UserError: no file, no record, damage, other lengths than asked for, missing features.
    """
    notes: list[str] = []
    files: list[RecordFile] = []
    for path, stated in find_files(data_dir, notes).items():
        if path.suffix == ".csv":
            file = open_csv_file(path, layout, tokens)
        elif path.suffix in (".h5", ".hdf5"):
            file = open_hdf5_file(path, layout, unpack_folder)
        else:
            file = open_tfrecord_file(path, layout, tokens, unpack_folder, check_payloads=check_payloads)
        if file is None:
            notes.append(f"{path}: holds no records")
            continue
        if stated is not None and stated != file.num_records:
            raise InputError(
                f"{path}: has {file.num_records} records, and meta.dat says {stated}; copy the file again, or delete "
                f"meta.dat to read what is there"
            )
        predictions = max_predictions_per_seq if PREDICTION_COLUMN in file.columns else None
        layout = layout or file.layout
        if files:
            check_same(path, file.columns, files[0].path, files[0].columns)
        check_lengths(path, file.columns, max_sequence_length, predictions)
        files.append(file)
    if not files:
        raise InputError(f"{_shown(data_dir)}: no file holds a record ({'; '.join(notes)}); make the records anew")
    return RecordSet(files, vocabulary_size, tuple(notes))


def find_files(data_dir: str | Path | Sequence[str | Path], notes: list[str]) -> dict[Path, int | None]:
    """The record files of folders, files and patterns, each folder's in name order, with the number of records that a
    meta.dat states; adds to notes what is odd.

    With a meta.dat in a folder its CSV files are those named there. Raises InputError."""
    given = [data_dir] if isinstance(data_dir, str | Path) else list(data_dir)
    found: dict[Path, int | None] = {}
    for each in given:
        path = Path(each).expanduser()
        if path.is_dir():
            found |= _files_of(path, notes)
        elif path.is_file():
            found[path] = None
        elif matches := [match for match in sorted(path.parent.glob(path.name)) if match.is_file()]:
            found |= dict.fromkeys(matches)
        else:
            raise InputError(f"{path}: there is no such file or folder; set data_dir to where the records are")
    if not found:
        raise InputError("data_dir is an empty list; name the folder that holds the records")
    return found


def _files_of(folder: Path, notes: list[str]) -> dict[Path, int | None]:
    kinds = {pattern: sorted(path for path in folder.glob(pattern) if _is_record_file(path)) for pattern in PATTERNS}
    kinds = {pattern: paths for pattern, paths in kinds.items() if paths}
    if not kinds:
        names = sorted(path.name for path in folder.iterdir())
        listed = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
        raise InputError(
            f"{folder}: holds no records ({', '.join(PATTERNS)}), but {listed or 'nothing'}; set data_dir to where they are"
        )
    if len(kinds) > 1:
        raise InputError(
            f"{folder}: holds records of several kinds ({', '.join(kinds)}); name one, as data_dir: {folder}/*.csv"
        )
    ((pattern, paths),) = kinds.items()
    if pattern != "*.csv":
        return dict.fromkeys(paths)
    counts = read_meta(folder)
    if counts is None:
        notes.append(f"{folder}: has no meta.dat; all {len(paths)} .csv files are read, and their rows counted")
        return dict.fromkeys(paths)
    if left := [path.name for path in paths if path not in counts]:
        notes.append(f"{folder}: meta.dat does not name {', '.join(left)}, so they are not read")
    return dict(counts)


def _is_record_file(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".") and path.suffix != ".tmp"


def _shown(data_dir: str | Path | Sequence[str | Path]) -> str:
    return str(data_dir) if isinstance(data_dir, str | Path) else ", ".join(map(str, data_dir))


def check_values(
    file: RecordFile, numbers: np.ndarray, arrays: Mapping[str, np.ndarray], vocabulary_size: int | None
) -> None:
    """What no reader may meet later: ids outside the vocabulary, predicted positions outside the sequence, weights other
    than 0 and 1, labels other than 0 and 1. Raises InputError naming file and record."""

    def refuse(bad: np.ndarray, name: str, allowed: str, remedy: str) -> None:
        if bad.any():
            row, column = (int(at[0]) for at in np.nonzero(bad))
            value = arrays[name][row, column]
            raise InputError(f"{file.where(int(numbers[row]))}: {name} holds {value:g}; {allowed}; {remedy}")

    for name in ("input_ids", "masked_lm_ids", "labels"):
        if name in arrays:
            counts = arrays["input_mask"] != 0 if name == "labels" else True
            refuse((arrays[name] < 0) & counts, name, "ids are 0 or more", "make the records anew")
            if vocabulary_size is not None:
                refuse(
                    (arrays[name] >= vocabulary_size) & counts,
                    name,
                    f"the vocabulary has {vocabulary_size} entries",
                    "set vocab_file or vocab_size to the one the records were made with",
                )
    remedy = "make the records anew"
    if "masked_lm_positions" in arrays:
        positions, length = arrays["masked_lm_positions"], arrays["input_ids"].shape[1]
        refuse((positions < 0) | (positions >= length), "masked_lm_positions", f"allowed is 0 to {length - 1}", remedy)
        weights = arrays["masked_lm_weights"]
        refuse((weights != 0) & (weights != 1), "masked_lm_weights", "allowed are 0 (padding) and 1", remedy)
    for name in ("segment_ids", "next_sentence_labels"):
        if name in arrays:
            counts = arrays["input_mask"] != 0 if name == "segment_ids" else True
            refuse((arrays[name] != 0) & (arrays[name] != 1) & counts, name, "allowed are 0 and 1", remedy)


def check_records(records: RecordSet, most: int = CHECKED_RECORDS) -> list[str]:
    """Read records once before training, all of them or `most` spread evenly over the set, and return notes on what is
    odd. Raises what reading raises: damage, ids outside the vocabulary."""
    total = len(records)
    numbers = np.unique(np.linspace(0, total - 1, min(total, most)).astype(np.int64))
    unknown, first = 0, None
    for start in range(0, len(numbers), _CHECK_BATCH):
        batch = numbers[start : start + _CHECK_BATCH]
        arrays = records.read(batch)
        if "unknown_tokens" in arrays:
            unknown += int(arrays["unknown_tokens"].sum())
            with_unknown = np.flatnonzero(arrays["unknown_tokens"])
            first = int(batch[with_unknown[0]]) if first is None and len(with_unknown) else first
    if first is None:
        return []
    return [
        f"{unknown} tokens of {len(numbers)} records are not in the vocabulary and are read as the unknown token; the first "
        f"is in record {first}"
    ]
