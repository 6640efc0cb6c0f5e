"""CSV and TSV with a line of column names -> rows of strings.

CSV has quotes (RFC 4180): a field in "..." may hold commas, newlines and doubled quotes. TSV has none: a quote is text,
as in the GLUE files, and no field holds a tab or a newline.
"""

import csv
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import InputError
from headrace.labelled.json_rows import MAX_LINE_CHARACTERS, whole_lines
from headrace.labelled.row import Row, shown
from headrace.text.csv_limit import csv_fields_up_to

MAX_FIELD_CHARACTERS = 1 << 20
"""A longer field of a CSV file is taken for a quote that was never closed."""


def read_csv(path: Path, encoding: str = "auto") -> Iterator[Row]:
    lines = _Lines(path, encoding)
    reader = csv.reader(lines, strict=True)
    return _rows(path, _csv_records(path, reader, lines))


def read_tsv(path: Path, encoding: str = "auto") -> Iterator[Row]:
    return _rows(path, ((number, text.split("\t")) for number, text in whole_lines(path, encoding) if text.strip()))


class _Lines:
    """Lines for the csv module, which counts how many characters and lines one record has taken."""

    def __init__(self, path: Path, encoding: str):
        self.path = path
        self._lines = whole_lines(path, encoding)
        self.number = 0
        self.first_of_record = 1
        self._num_characters = 0

    def __iter__(self):
        return self

    def __next__(self) -> str:
        self.number, text = next(self._lines)
        self._num_characters += len(text) + 1
        if self.number > self.first_of_record and self._num_characters > MAX_FIELD_CHARACTERS:
            raise InputError(
                f"{self.path}:{self.first_of_record}: a quote is not closed within {MAX_FIELD_CHARACTERS >> 20} Mi "
                'characters; close it, or double it ("") where it is text.'
            )
        return text + "\n"

    def next_record(self) -> None:
        self.first_of_record, self._num_characters = self.number + 1, 0


def _csv_records(path: Path, reader: Iterator[list[str]], lines: _Lines) -> Iterator[tuple[int, list[str]]]:
    while True:
        try:
            with csv_fields_up_to(MAX_LINE_CHARACTERS):  # `_Lines` stops earlier, and says where
                cells = next(reader, None)
        except csv.Error as error:
            raise InputError(
                f"{path}:{lines.first_of_record}: not valid CSV ({error}); a field with a quote or a comma stands in "
                'quotes, and a quote inside it is doubled ("").'
            ) from error
        if cells is None:
            return
        number = lines.first_of_record
        lines.next_record()
        if any(cell.strip() for cell in cells):  # else a blank line
            yield number, cells


def _rows(path: Path, records: Iterator[tuple[int, list[str]]]) -> Iterator[Row]:
    """The first record names the columns."""
    number, names = next(records, (0, []))
    names = [name.strip() for name in names]
    for column, name in enumerate(names, 1):
        if not name:
            raise InputError(f"{path}:{number}: column {column} has no name; the first line names the columns.")
        if name in names[: column - 1]:
            raise InputError(f"{path}:{number}: two columns are named {name!r}; the first line names the columns.")
    for number, cells in records:
        if len(cells) != len(names):
            raise InputError(
                f"{path}:{number}: {len(cells)} fields where the first line names {len(names)} columns "
                f"({', '.join(names)}); the last field is {shown(cells[-1])}."
            )
        yield Row(dict(zip(names, cells, strict=True)), f"{path}:{number}")
