"""Many `tf.train.Example` messages of one shape at once, as arrays: no Python work a value, little a record.

All messages walk through their features in lock step, one numpy operation for the same byte of each:

    joined messages -> where each feature's values lie (features in any order) -> varints or floats of all records

A message that is written in another way (values one by one, fields in an unusual order) is parsed alone by
`headrace.modelzoo.records.example`, with the same result. B messages, L values of a feature.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from headrace.modelzoo.records.example import ParseError, parse_example

_ENTRY, _NAME, _FEATURE, _VALUES = 0x0A, 0x0A, 0x12, 0x0A  # tags: field number and wire type
_LIST_TAGS = {"f": 0x12, "i": 0x1A}  # of float_list and int64_list, by numpy's kind
_SPARE_BYTES = 64  # behind the last message, so that a look ahead stays inside
_MOST_FEATURES = 64
_MOST_VARINT_BYTES = 10


@dataclass(frozen=True)
class Column:
    """A feature as every record must have it."""

    dtype: type[np.int64] | type[np.float32]
    length: int


class RowError(ValueError):
    """One record of several does not fit; the caller knows which file and record row `row` is."""

    def __init__(self, row: int, reason: str):
        super().__init__(reason)
        self.row = row


def decode_examples(messages: Sequence[bytes], columns: Mapping[str, Column]) -> dict[str, np.ndarray]:
    """The features `columns` names of each message, (B, length) of its dtype; other features are passed over.

    Raises RowError for the first message that is damaged, lacks a feature or has another number of values."""
    out = {name: np.empty((len(messages), column.length), column.dtype) for name, column in columns.items()}
    if not messages:
        return out
    lengths = np.array([len(message) for message in messages])
    blob = np.frombuffer(b"".join([*messages, bytes(_SPARE_BYTES)]), np.uint8)
    regular, places = _locate(blob, np.cumsum(lengths) - lengths, np.cumsum(lengths), columns)
    ends = np.flatnonzero(blob < 0x80)  # the last byte of each varint; a list's first one begins behind such a byte
    for name, column in columns.items():
        start, size = places[name]
        if column.dtype is np.float32:
            regular &= size == 4 * column.length
            rows = np.flatnonzero(regular)
            at = start[rows, None] + np.arange(4 * column.length)
            out[name][rows] = blob[at].view("<f4")
        else:
            first = np.searchsorted(ends, start)
            regular &= np.searchsorted(ends, start + size) - first == column.length
            regular &= (blob[start + size - 1] < 0x80) | (size == 0)
            rows = np.flatnonzero(regular)
            out[name][rows], too_long = _varints(blob, ends, start[rows], first[rows], column.length)
            regular[rows[too_long]] = False
    for row in np.flatnonzero(~regular).tolist():
        for name, values in _parse_alone(messages[row], row, columns).items():
            out[name][row] = values
    return out


def _locate(
    blob: np.ndarray, start: np.ndarray, stop: np.ndarray, columns: Mapping[str, Column]
) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Which messages blob[start:stop] are written the usual way, bool (B,), and where the values of each column lie in
    them: (first byte (B,), number of bytes (B,))."""
    places = {name: (np.zeros_like(start), np.full_like(start, -1)) for name in columns}
    at, size, regular = _field(blob, start, _ENTRY)
    regular &= at + size == stop
    for _ in range(_MOST_FEATURES):
        active = regular & (at < stop)
        if not active.any():
            break
        at = np.where(active, at, stop)
        entry, entry_size, ok = _field(blob, at, _ENTRY)
        name, name_size, name_ok = _field(blob, entry, _NAME)
        feature, feature_size, feature_ok = _field(blob, name + name_size, _FEATURE)
        values_list, list_size, _ = _field(blob, feature, None)
        values, values_size, values_ok = _field(blob, values_list, _VALUES)
        after = entry + entry_size
        ok &= name_ok & feature_ok & values_ok
        ok &= (feature + feature_size == after) & (values_list + list_size == after) & (values + values_size == after)
        regular &= ok | ~active
        active &= ok & (after <= stop)
        regular &= (after <= stop) | ~active
        unnamed = active.copy()
        for wanted, column in columns.items():
            if not unnamed.any():
                break
            found = unnamed & _equals(blob, name, name_size, wanted.encode())
            if found.any():
                unnamed &= ~found
                regular &= ~found | (blob[_within(blob, feature)] == _LIST_TAGS[np.dtype(column.dtype).kind])
                places[wanted][0][found], places[wanted][1][found] = values[found], values_size[found]
        at = np.where(active, after, at)
    regular &= at == stop
    for _, size in places.values():
        regular &= size >= 0
    return regular, places


def _field(blob: np.ndarray, at: np.ndarray, tag: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the field at each `at`: where its content begins, how many bytes it has, and whether its tag is the wanted one
    and its length takes at most three bytes. All (B,)."""
    at = _within(blob, at)
    b0, b1, b2 = blob[at + 1].astype(np.int64), blob[at + 2].astype(np.int64), blob[at + 3].astype(np.int64)
    one, two = b0 < 0x80, b1 < 0x80
    size = np.where(one, b0, np.where(two, b0 & 0x7F | b1 << 7, b0 & 0x7F | (b1 & 0x7F) << 7 | b2 << 14))
    fits = one | two | (b2 < 0x80)
    if tag is not None:
        fits &= blob[at] == tag
    return at + np.where(one, 2, np.where(two, 3, 4)), size, fits


def _within(blob: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Positions of which a damaged message may have made nonsense, kept where a look at them is allowed."""
    return np.minimum(at, len(blob) - _SPARE_BYTES)


def _equals(blob: np.ndarray, at: np.ndarray, size: np.ndarray, name: bytes) -> np.ndarray:
    """Whether each blob[at : at + size] is the name, bool (B,)."""
    same = size == len(name)
    if same.any():
        window = _within(blob, at)[:, None] + np.arange(len(name))
        same &= (blob[np.minimum(window, len(blob) - 1)] == np.frombuffer(name, np.uint8)).all(1)
    return same


def _varints(blob: np.ndarray, ends: np.ndarray, start: np.ndarray, first: np.ndarray, length: int):
    """`length` varints from each `start` on, int64 (B, length), and the rows where one has more than ten bytes. ends: last
    bytes of the varints of the blob, of which number `first` ends the first one."""
    last = ends[first[:, None] + np.arange(length)]
    begin = np.empty_like(last)
    begin[:, :1] = start[:, None]
    begin[:, 1:] = last[:, :-1] + 1
    values = (blob[begin] & 0x7F).astype(np.uint64)
    more = np.flatnonzero(last > begin)
    begin, last, flat = begin.ravel()[more], last.ravel()[more], values.ravel()
    for k in range(1, _MOST_VARINT_BYTES):
        if not len(more):
            break
        begin = begin + 1
        flat[more] |= (blob[begin] & 0x7F).astype(np.uint64) << np.uint64(7 * k)
        still = last > begin
        more, begin, last = more[still], begin[still], last[still]
    return values.view(np.int64), np.unique(more // max(length, 1))


def _parse_alone(message: bytes, row: int, columns: Mapping[str, Column]) -> dict[str, np.ndarray]:
    try:
        features = parse_example(message)
    except ParseError as error:
        raise RowError(row, f"its payload is no tf.train.Example: {error}") from None
    if missing := [name for name in columns if name not in features]:
        raise RowError(row, f"it lacks {', '.join(missing)}; it has {', '.join(sorted(features)) or 'no feature'}")
    found = {}
    for name, column in columns.items():
        values = features[name]
        if not isinstance(values, np.ndarray) or values.dtype != column.dtype:
            raise RowError(row, f"{name} holds no {np.dtype(column.dtype)} values")
        if len(values) != column.length:
            raise RowError(row, f"{name} has {len(values)} values where the records before have {column.length}")
        found[name] = values
    return found
