"""The CSV records of the Model Zoo's PyTorch tools: rows of Python list literals, read without running any of it.

    tokens, segment_ids, is_random_next                                       create_csv.py
    tokens                                                                    create_csv_mlm_only.py
    input_ids, token_type_ids, next_sentence_label, masked_lm_weights, masked_lm_positions, attention_mask, labels
                                                                              create_csv_static_masking.py
    the same without token_type_ids and next_sentence_label                   create_csv_mlm_only_static_masking.py

Made under NumPy 2, numbers read `np.int32(101)`. A row is a line, except that a quoted cell may hold line ends.
"""

import ast
import csv
import json
import re
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import InputError
from headrace.text.csv_limit import csv_fields_up_to

MAX_ROW_BYTES = 1 << 26
"""A row above this is refused: a quote that is lost joins rows."""

_CHUNK_BYTES = 1 << 20
_NUMPY_SCALAR = re.compile(r"\[(np\.(?:u?int|float)\d+\()")
_STRING = r"""(?:'([^'\\]*)'|"([^"\\]*)")"""
_ANY_STRING = re.compile(_STRING)
_STRING_LIST = re.compile(rf"\[(?:{_STRING}(?:, {_STRING})*)?\]")
_SCALARS = ("is_random_next", "next_sentence_label")
_FLOATS = ("masked_lm_weights",)


class CellError(ValueError):
    """A cell is not what its column holds; the caller knows file and row."""


def row_offsets(path: Path) -> np.ndarray:
    """Where the n rows behind the header begin, and where the last one ends, int64 (n + 1,); memory holds a block.

    Empty lines are no rows. Raises InputError when the file ends inside a quoted cell or a row is beyond
    all measure."""
    starts, at, num_quotes, start = array("q"), 0, 0, 0
    with path.open("rb") as file:
        while block := file.read(_CHUNK_BYTES):
            data = np.frombuffer(block, np.uint8)
            quotes = np.cumsum(data == ord('"')) + num_quotes
            num_quotes = int(quotes[-1])
            for end in (np.flatnonzero((data == ord("\n")) & (quotes % 2 == 0)) + at + 1).tolist():
                starts.append(start)
                start = end
            at += len(block)
    if num_quotes % 2:
        raise InputError(
            f"{path}: record {max(0, len(starts) - 1)} at byte {start:,} is damaged: the file ends inside a quoted cell; copy "
            f"the file again, or make it anew"
        )
    if start < at:
        starts.append(start)
    starts.append(at)
    offsets = _without_empty_lines(path, np.array(starts, np.int64))
    if len(offsets) > 1 and (sizes := np.diff(offsets)).max() > MAX_ROW_BYTES:
        k = int(sizes.argmax())
        raise InputError(
            f"{path}: record {max(0, k - 1)} at byte {offsets[k]:,} is damaged: it has {sizes[k]:,} bytes, and "
            f"{MAX_ROW_BYTES:,} are allowed; is a quote missing?"
        )
    return offsets[1:]


def _without_empty_lines(path: Path, starts: np.ndarray) -> np.ndarray:
    """Drop the starts of lines of a line end only; each row then takes in the empty lines behind it."""
    suspicious = np.flatnonzero(np.diff(starts) <= 2)
    if not len(suspicious):
        return starts
    with path.open("rb") as file:
        empty = []
        for k in suspicious.tolist():
            file.seek(int(starts[k]))
            if not file.read(int(starts[k + 1] - starts[k])).strip(b"\r\n"):
                empty.append(k)
    return np.delete(starts, empty)


def header_of(path: Path) -> list[str]:
    """The names in the first row; raises InputError when it is no CSV header of text."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return next(csv.reader(file), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: is no CSV file of UTF-8 text ({error})") from None


def parse_row(line: bytes, names: list[str]) -> dict[str, Any]:
    """The cells of a row by column name, literals parsed; raises CellError saying which one is wrong."""
    try:
        text = line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise CellError(f"no UTF-8 text ({error})") from None
    cells = _cells(text)
    if len(cells) != len(names):
        raise CellError(f"{len(cells)} cells where the header names {len(names)} columns")
    return {name: _literal(name, cell) for name, cell in zip(names, cells, strict=True)}


def _cells(text: str) -> list[str]:
    try:
        with csv_fields_up_to(len(text)):
            rows = list(csv.reader([text], strict=True))
    except csv.Error as error:
        raise CellError(f"no CSV row ({error})") from None
    return rows[0] if rows else []


def _literal(name: str, cell: str) -> Any:
    """The value of a cell: a list of strings (tokens), a list of numbers, or a number. Nothing else is a value here, and
    nothing is ever called."""
    if cell in ("True", "False"):
        return cell == "True"
    if scalar := _NUMPY_SCALAR.match(cell):
        plain = cell.replace(scalar[1], "").replace(")", "")
        if cell.count(scalar[1]) == cell.count(")") == plain.count(",") + 1:
            cell = plain
    if "\\" not in cell and _STRING_LIST.fullmatch(cell):
        return _checked(name, cell, [a or b for a, b in _ANY_STRING.findall(cell)])
    try:
        # A Python list of numbers is JSON; what is neither that nor a plain list of strings has escapes.
        value = ast.literal_eval(cell) if "'" in cell or '"' in cell else json.loads(cell)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        value = None
    return _checked(name, cell, value)


def _checked(name: str, cell: str, value: Any) -> Any:
    """The value, if it is what the column holds; raises CellError."""
    wanted, allowed = "a number", {int}
    if name not in _SCALARS:
        wanted, allowed = ("a list of strings", {str}) if name == "tokens" else ("a list of numbers", {int})
        if name in _FLOATS:
            allowed = {int, float}
        if isinstance(value, list) and set(map(type, value)) <= allowed:
            return value
    elif type(value) in allowed:
        return value
    raise CellError(f"{name} is not {wanted}: {cell[:60]}{'...' if len(cell) > 60 else ''}")


def read_meta(folder: Path) -> dict[Path, int] | None:
    """The CSV files that `meta.dat` of a folder names, with their numbers of rows; None when there is no meta.dat.

    A line is `path rows`. The tools write the path with their --output_dir before it, so a file that is not there is
    looked for by its bare name in the folder. Raises InputError."""
    meta = folder / "meta.dat"
    if not meta.is_file():
        return None
    found = {}
    for number, line in enumerate(meta.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        name, _, count = line.strip().rpartition(" ")
        if not name or not count.isdigit():
            raise InputError(f"{meta}: line {number} is {line!r}; allowed is a path and a number of rows")
        choices = [folder / name.strip(), folder / Path(name.strip()).name]
        path = next((choice for choice in choices if choice.is_file()), None)
        if path is None:
            raise InputError(
                f"{meta}: line {number} names {name.strip()}, which is not in {folder}; copy the file there, or delete "
                f"meta.dat to read every .csv of the folder"
            )
        found[path] = int(count)
    return found
