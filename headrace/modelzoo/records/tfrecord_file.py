"""One TFRecord file as a source of records that can be read in any order."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.errors import InputError, UserError
from headrace.modelzoo.records.decode import Column, RowError, decode_examples
from headrace.modelzoo.records.example import ParseError, parse_example, parse_tokens_example
from headrace.modelzoo.records.layouts import TOKEN_MLM, Layout, check_layout, columns_of, layout_of
from headrace.modelzoo.records.tfrecord import damaged, is_gzip, read_at, record_offsets
from headrace.modelzoo.records.token_rows import TokenRow, TokenRule, token_arrays
from headrace.modelzoo.records.unpack import Unpacked, unpack_gzip


@dataclass(frozen=True)
class TfrecordFile:
    """An indexed file: 8 bytes of memory a record. `unpacked` holds what a gzip file was unpacked to."""

    path: Path
    offsets: np.ndarray  # int64 (n + 1,), in the uncompressed file
    layout: Layout
    columns: Mapping[str, Column]
    tokens: TokenRule | None
    unpacked: Unpacked | None

    @property
    def num_records(self) -> int:
        return len(self.offsets) - 1

    def where(self, number: int) -> str:
        return f"{self.path}: record {number} at byte {int(self.offsets[number]):,}"

    def read(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        """The columns of the records `numbers` (B,), see layouts; checksums are compared again. Raises InputError."""
        payloads = self.payloads(numbers)
        if self.tokens is not None:
            rows = [
                TokenRow(self._tokens(int(number), payload)) for number, payload in zip(numbers, payloads, strict=True)
            ]
            return token_arrays(rows, self.tokens)
        try:
            return decode_examples(payloads, self.columns)
        except RowError as error:
            number = int(numbers[error.row])
            raise damaged(self.path, number, int(self.offsets[number]), str(error)) from None

    def payloads(self, numbers: np.ndarray) -> list[bytes]:
        descriptor = os.open(self.unpacked.path if self.unpacked else self.path, os.O_RDONLY)
        try:
            return [read_at(self.path, descriptor, self.offsets, number) for number in numbers.tolist()]
        finally:
            os.close(descriptor)

    def _tokens(self, number: int, payload: bytes) -> list[str]:
        try:
            return parse_tokens_example(payload)
        except ParseError as error:
            raise damaged(self.path, number, int(self.offsets[number]), str(error)) from None


def open_tfrecord_file(
    path: Path,
    wanted: Layout | None,
    tokens: TokenRule | None,
    unpack_folder: Path | None,
    *,
    check_payloads: bool = True,
) -> TfrecordFile | None:
    """Check and index a TFRecord file; a gzip file is unpacked first. None when it holds no records.

    Raises InputError for what is damaged or not wanted, UserError when it holds tokens and no vocabulary is given."""
    unpacked = unpack_gzip(path, unpack_folder) if is_gzip(path) else None
    offsets = record_offsets(unpacked.path if unpacked else path, check_payloads=check_payloads, name=path)
    if len(offsets) == 1:
        return None
    first = TfrecordFile(path, offsets, TOKEN_MLM, {}, None, unpacked)
    payload = first.payloads(np.array([0]))[0]
    try:
        features = parse_example(payload)
        has_tokens = not features and bool(parse_tokens_example(payload))
    except ParseError as error:
        raise damaged(path, 0, 0, f"its payload is no tf.train.Example: {error}") from None
    if has_tokens:
        layout = check_layout(first.where(0), TOKEN_MLM, ["tokens"], wanted)
        if tokens is None:
            raise UserError(f"{path}: holds token strings, which need a vocabulary; set vocab_file in the params")
        lengths = dict.fromkeys(layout.columns, tokens.sequence_length) | {"unknown_tokens": 1}
        return TfrecordFile(path, offsets, layout, columns_of(layout, lengths), tokens, unpacked)
    layout = check_layout(first.where(0), layout_of(features), features, wanted)
    columns = columns_of(layout, {name: len(values) for name, values in features.items()})
    for name, column in columns.items():
        values = features[name]
        if not isinstance(values, np.ndarray) or values.dtype != column.dtype:
            raise InputError(f"{first.where(0)}: {name} holds no {np.dtype(column.dtype)} values")
    return TfrecordFile(path, offsets, layout, columns, None, unpacked)
