"""Many BERT examples of one shape -> the bytes that `encode_bert_example` gives for each, several times faster.

The integers of a whole batch become varints at once; features with few different values (masks, segments, weights,
labels) are made once and kept.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from headrace.modelzoo.create.examples import Examples

_INT64_LIST, _FLOAT_LIST = 3, 2  # fields of tf.train.Feature


def example_bytes(examples: Examples, pairs: bool) -> Iterator[bytes]:
    """A serialized tf.train.Example each; without `pairs` it has neither segment_ids nor next_sentence_labels."""
    masked = examples.masked
    assert masked is not None
    length, predictions = masked.input_ids.shape[1], masked.positions.shape[1]
    if pairs:
        length_a = examples.lengths - examples.segment_ids.sum(axis=1)
    else:
        length_a = examples.lengths
    rows = zip(
        varints(masked.input_ids),
        varints(masked.positions),
        varints(masked.ids),
        examples.lengths.tolist(),
        length_a.tolist(),
        masked.count.tolist(),
        examples.labels.tolist(),
        strict=True,
    )
    for ids, positions, targets, count, a, predicted, label in rows:
        parts = [
            _integers("input_ids", ids),
            _run("input_mask", 0, count, length),
            _integers("masked_lm_positions", positions),
            _integers("masked_lm_ids", targets),
            _weights(predicted, predictions),
        ]
        if pairs:
            parts += [_run("segment_ids", a, count, length), _label(label)]
        yield _field(1, b"".join(parts))


def varints(values: np.ndarray) -> Iterator[bytes]:
    """Of each row of (N, K) integers from 0 to 2^28 - 1: its varints end to end."""
    num_rows, num_columns = values.shape
    flat = values.reshape(-1).astype(np.uint32)
    if not num_rows or int(flat.max()) < 0x80:
        out = flat.astype(np.uint8)
        ends = np.arange(1, num_rows + 1) * num_columns
    else:
        widths = np.ones(len(flat), np.int64)
        for width in (1, 2, 3):
            widths += flat >= 1 << 7 * width
        after = np.cumsum(widths)
        start = after - widths
        out = np.empty(int(after[-1]), np.uint8)
        out[start] = flat & 0x7F | (widths > 1).astype(np.uint32) << 7
        for width in (1, 2, 3):
            longer = np.flatnonzero(widths > width)
            goes_on = (widths[longer] > width + 1).astype(np.uint32) << 7
            out[start[longer] + width] = flat[longer] >> 7 * width & 0x7F | goes_on
        ends = after[num_columns - 1 :: num_columns]
    data, begin = out.tobytes(), 0
    for end in ends.tolist():
        yield data[begin:end]
        begin = end


def _integers(name: str, packed: bytes) -> bytes:
    return _head(name, _INT64_LIST, len(packed)) + packed


@lru_cache(maxsize=1 << 14)
def _run(name: str, start: int, stop: int, length: int) -> bytes:
    """1 from start to stop, 0 elsewhere."""
    return _integers(name, b"\0" * start + b"\1" * (stop - start) + b"\0" * (length - stop))


@lru_cache(maxsize=1 << 12)
def _weights(count: int, length: int) -> bytes:
    packed = np.array([1.0] * count + [0.0] * (length - count), "<f4").tobytes()
    return _head("masked_lm_weights", _FLOAT_LIST, len(packed)) + packed


@lru_cache
def _label(label: int) -> bytes:
    return _integers("next_sentence_labels", bytes([label]))


@lru_cache(maxsize=1 << 14)
def _head(name: str, kind: int, num_bytes: int) -> bytes:
    """What stands before the packed values in a map entry { key (1), value (2): Feature { list: { value (1) } } }."""
    packed = b"\0" * num_bytes
    entry = _field(1, _field(1, name.encode()) + _field(2, _field(kind, _field(1, packed))))
    return entry[: len(entry) - num_bytes]


def _field(number: int, payload: bytes) -> bytes:
    size, head = len(payload), [number << 3 | 2]
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size]) + payload
