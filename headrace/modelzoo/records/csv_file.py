"""One CSV file as a source of records; see `headrace.modelzoo.records.csv_rows` for the format."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import InputError, UserError
from headrace.modelzoo.records.csv_rows import CellError, header_of, parse_row, row_offsets
from headrace.modelzoo.records.decode import Column
from headrace.modelzoo.records.layouts import TOKEN_MLM, TOKEN_PAIRS, Layout, check_layout, columns_of, layout_of
from headrace.modelzoo.records.token_rows import TokenRow, TokenRule, token_arrays

# Our name of each column that the tools name otherwise.
_NAMES = {
    "token_type_ids": "segment_ids",
    "next_sentence_label": "next_sentence_labels",
    "attention_mask": "input_mask",
    "labels": "masked_lm_ids",
}


@dataclass(frozen=True)
class CsvFile:
    """A file of static rows (tokens None), or of rows of token strings."""

    path: Path
    names: tuple[str, ...]  # as the header has them
    offsets: np.ndarray  # int64 (n + 1,)
    layout: Layout
    columns: Mapping[str, Column]
    tokens: TokenRule | None

    @property
    def num_records(self) -> int:
        return len(self.offsets) - 1

    def where(self, number: int) -> str:
        return _where(self.path, self.offsets, number)

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of the rows `numbers` (B,), see layouts. Raises InputError naming the row."""
        rows = _rows(self.path, self.names, self.offsets, numbers)
        if self.tokens is not None:
            made = [
                _token_row(self.where(number), row, self.layout, self.tokens)
                for number, row in zip(numbers.tolist(), rows, strict=True)
            ]
            return token_arrays(made, self.tokens)
        out = {name: np.empty((len(rows), column.length), column.dtype) for name, column in self.columns.items()}
        for k, row in enumerate(rows):
            for name, value in row.items():
                name = _NAMES.get(name, name)
                if name in out:
                    out[name][k] = self._values(int(numbers[k]), name, value)
        return out

    def _values(self, number: int, name: str, value: Any) -> np.ndarray:
        column = self.columns[name]
        try:
            values = np.array(value if isinstance(value, list) else [value], column.dtype)
        except OverflowError:
            raise InputError(f"{self.where(number)}: {name} has a number beyond 64 bits") from None
        if len(values) != column.length:
            raise InputError(
                f"{self.where(number)}: {name} has {len(values)} values where the first row has {column.length}"
            )
        return values


def open_csv_file(path: Path, wanted: Layout | None, tokens: TokenRule | None) -> CsvFile:
    """Index a CSV file and parse its first and last row. Raises InputError for what is damaged or not wanted, UserError
    when it holds tokens and no vocabulary is given."""
    names = header_of(path)
    offsets = row_offsets(path)
    if len(offsets) < 2:
        raise InputError(f"{path}: holds no records; delete it, or make it anew")
    first = _rows(path, tuple(names), offsets, np.array([0, len(offsets) - 2]))[0]
    if "tokens" in names:
        found = TOKEN_PAIRS if "is_random_next" in names and "segment_ids" in names else TOKEN_MLM
        layout = check_layout(str(path), found, names, wanted)
        if tokens is None:
            raise UserError(f"{path}: holds token strings, which need a vocabulary; set vocab_file in the params")
        lengths = dict.fromkeys(layout.columns, tokens.sequence_length)
        lengths |= {name: 1 for name in ("next_sentence_labels", "unknown_tokens") if name in lengths}
        return CsvFile(path, tuple(names), offsets, layout, columns_of(layout, lengths), tokens)
    ours = [_NAMES.get(name, name) for name in names]
    layout = check_layout(str(path), layout_of(ours), ours, wanted)
    lengths = {
        ours: len(value) if isinstance(value, list) else 1 for ours, value in zip(ours, first.values(), strict=True)
    }
    made = CsvFile(path, tuple(names), offsets, layout, columns_of(layout, lengths), None)
    made.read(np.array([0, made.num_records - 1]))
    return made


def _rows(path: Path, names: tuple[str, ...], offsets: np.ndarray, numbers: np.ndarray) -> list[dict[str, Any]]:
    rows = []
    with path.open("rb", buffering=0) as file:
        for number in numbers.tolist():
            file.seek(int(offsets[number]))
            try:
                rows.append(parse_row(file.read(int(offsets[number + 1] - offsets[number])), list(names)))
            except CellError as error:
                raise InputError(f"{_where(path, offsets, number)} is damaged: {error}; make the file anew") from None
    return rows


def _where(path: Path, offsets: np.ndarray, number: int) -> str:
    return f"{path}: record {number} at byte {int(offsets[number]):,}"


def _token_row(where: str, row: dict[str, Any], layout: Layout, rule: TokenRule) -> TokenRow:
    tokens = row["tokens"]
    if layout is TOKEN_MLM:
        return TokenRow(tokens)
    segments = row["segment_ids"]
    if len(segments) != len(tokens):
        raise InputError(
            f"{where} is damaged: {len(tokens)} tokens and {len(segments)} segment_ids; make the file anew"
        )
    if len(tokens) > rule.sequence_length:
        raise InputError(
            f"{where}: has {len(tokens)} tokens, and max_sequence_length is {rule.sequence_length}; set it to the length "
            f"the records were made with, or make them anew"
        )
    return TokenRow(tokens, segments, int(row["is_random_next"]))
