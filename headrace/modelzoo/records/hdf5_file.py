"""One HDF5 file of GPT records: `data` (n, 3, S) int32, or a dataset `example_{k}` (3, S) a record.

The three rows are input_ids, attention_mask (1 = the label counts in the loss) and labels: create_hdf5_dataset.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import InputError, MissingExtraError, UserError
from headrace.modelzoo.records.decode import Column
from headrace.modelzoo.records.layouts import CAUSAL, Layout, check_layout, columns_of
from headrace.modelzoo.records.unpack import Unpacked

_ROWS = ("input_ids", "input_mask", "labels")
_UNPACKED_RECORDS = 256  # at a time


@dataclass(frozen=True)
class Hdf5File:
    """unpacked: the records as plain int32 (n, 3, S), where the file's chunks hold several records each."""

    path: Path
    num_records: int
    columns: Mapping[str, Column]
    one_dataset: bool
    unpacked: Unpacked | None
    layout: Layout = CAUSAL
    tokens: None = None

    def where(self, number: int) -> str:
        return f"{self.path}: record {number}"

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of the records `numbers` (B,), see layouts. Raises InputError."""
        length = self.columns["input_ids"].length
        found = np.empty((len(numbers), 3, length), np.int64)
        if self.unpacked is not None:
            found[:] = np.memmap(self.unpacked.path, np.int32, "r", shape=(self.num_records, 3, length))[numbers]
        else:
            with _open(self.path) as file:
                for k, number in enumerate(numbers.tolist()):
                    found[k] = self._record(file, number, (3, length))
        return {name: found[:, k] for k, name in enumerate(_ROWS)}

    def _record(self, file: Any, number: int, shape: tuple[int, int]) -> np.ndarray:
        try:
            record = file["data"][number] if self.one_dataset else file[f"example_{number}"][()]
        except (OSError, KeyError) as error:
            raise InputError(
                f"{self.where(number)} is damaged: {error}; copy the file again, or make it anew"
            ) from None
        if record.shape != shape:
            raise InputError(f"{self.where(number)}: has shape {record.shape} where the first record has {shape}")
        return record


def open_hdf5_file(path: Path, wanted: Layout | None, unpack_folder: Path | None) -> Hdf5File | None:
    """Check an HDF5 file; None when it holds no records. Where its chunks hold several records, reading one would
    decompress all of them, so the file is unpacked once. Raises InputError, UserError, MissingExtraError."""
    with _open(path) as file:
        one_dataset = "data" in file
        if not one_dataset and "example_0" not in file and not file.attrs.get("n_examples") == 0:
            raise InputError(
                f"{path}: holds {', '.join(sorted(file)) or 'nothing'}; allowed is a dataset `data` (n, 3, "
                f"max_sequence_length), or `example_0`, `example_1`, ... as create_hdf5_dataset.py writes them"
            )
        data = file["data"] if one_dataset else None
        num_records = data.shape[0] if data is not None else int(file.attrs.get("n_examples", len(file)))
        if not num_records:
            return None
        shape = data.shape[1:] if data is not None else file["example_0"].shape
        dtype = data.dtype if data is not None else file["example_0"].dtype
        if len(shape) != 2 or shape[0] != 3 or dtype.kind not in "iu":
            raise InputError(
                f"{path}: records have shape {shape} of {dtype}; allowed is (3, max_sequence_length) of int32"
            )
        layout = check_layout(str(path), CAUSAL, _ROWS, wanted)
        columns = columns_of(layout, dict.fromkeys(_ROWS, shape[1]))
        unpacked = None
        if data is not None and data.chunks is not None and data.chunks[0] > 1:
            unpacked = _unpack(path, data, unpack_folder)
        return Hdf5File(path, num_records, columns, one_dataset, unpacked)


def _unpack(path: Path, data: Any, folder: Path | None) -> Unpacked:
    unpacked = Unpacked(folder, path.name)
    step = -(-_UNPACKED_RECORDS // data.chunks[0]) * data.chunks[0]
    with unpacked.path.open("wb") as out:
        for start in range(0, len(data), step):
            try:
                records = data[start : start + step]
            except OSError as error:
                raise InputError(
                    f"{path}: records {start} to {min(start + step, len(data)) - 1} cannot be read ({error}); copy the file "
                    f"again, or make it anew"
                ) from None
            if records.dtype.itemsize > 4 and len(records) and np.abs(records).max() > np.iinfo(np.int32).max:
                raise InputError(f"{path}: records {start} to {start + len(records) - 1} hold numbers beyond 32 bits")
            try:
                out.write(np.ascontiguousarray(records, np.int32).data)
            except OSError as error:
                raise UserError(
                    f"{path}: cannot be unpacked into {unpacked.folder} ({error.strerror}); free space there, or set TMPDIR "
                    f"to a larger disk"
                ) from None
    return unpacked


def _open(path: Path) -> Any:
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("Reading HDF5 files", "h5py", "modelzoo") from error
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise InputError(f"{path}: is no whole HDF5 file ({error}); copy it again, or make it anew") from None
