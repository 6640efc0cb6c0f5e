"""`tf.train.Example`: the protobuf message that holds one record of a TFRecord file, written and parsed without TensorFlow.

    Example { features (1) { feature (1) = map entry { key (1): name, value (2): Feature } ... } }
    Feature { bytes_list (1) | float_list (2) | int64_list (3), each { value (1): packed or one by one } }

The order of the features is free: programs write another one at each run. This module takes one message at a time and
anything the message may hold; `headrace.modelzoo.records.decode` takes many of the same shape at once.
Field numbers and wire format: tensorflow/core/example/{example,feature}.proto; protobuf.dev/programming-guides/encoding.
"""

import operator
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

Values = Sequence[int] | Sequence[float] | Sequence[bytes] | np.ndarray
Feature = np.ndarray | list[bytes]  # int64 (n,), float32 (n,) or byte strings

_BYTES, _FLOATS, _INT64S = 1, 2, 3  # fields of Feature
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5  # wire types


class ParseError(ValueError):
    """The bytes are no such message; the caller knows the file and the record."""


class _Varints(dict[int, bytes]):
    """The varint of each integer; small ones are kept, because token ids come again and again."""

    def __missing__(self, value: int) -> bytes:
        value = operator.index(value)
        made = _varint(value)
        if 0 <= value < 1 << 20:
            self[value] = made
        return made


def _varint(value: int) -> bytes:
    rest = value & 0xFFFF_FFFF_FFFF_FFFF  # a negative int64 takes ten bytes
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_VARINTS = _Varints()


def encode_example(features: Mapping[str, Values]) -> bytes:
    """The serialized Example of named features, in the order given.

    A feature of floats (a float32 or float64 array, or a first value that is a float) becomes a float_list, one of byte
    strings a bytes_list, any other an int64_list. Raises struct.error or TypeError for values that fit none.
    """
    entries = b"".join([_field(1, _entry(name, encode_feature(values))) for name, values in features.items()])
    return _field(1, entries)


def encode_bert_example(
    input_ids: Sequence[int],
    input_mask: Sequence[int],
    masked_lm_positions: Sequence[int],
    masked_lm_ids: Sequence[int],
    masked_lm_weights: Sequence[float],
    segment_ids: Sequence[int] | None = None,
    next_sentence_label: int | None = None,
) -> bytes:
    """One BERT record. input_ids, input_mask (1 = token, 0 = padding), segment_ids: MSL integers; masked_lm_positions,
    masked_lm_ids: P integers; masked_lm_weights: P floats, 0.0 = padding; next_sentence_label: 1 = random next.
    Without segment_ids and next_sentence_label it is the record of `create_tfrecords_mlm_only.py`."""
    features: dict[str, Values] = {
        "input_ids": input_ids,
        "input_mask": input_mask,
        "masked_lm_positions": masked_lm_positions,
        "masked_lm_ids": masked_lm_ids,
        "masked_lm_weights": np.asarray(masked_lm_weights, np.float32),
    }
    if segment_ids is not None:
        features["segment_ids"] = segment_ids
    if next_sentence_label is not None:
        features["next_sentence_labels"] = [next_sentence_label]
    return encode_example(features)


def encode_tokens_example(tokens: Sequence[str]) -> bytes:
    """The `tf.train.SequenceExample` of `create_tfrecords_mlm_only.py --disable_masking`: one list `tokens`, a byte string
    a step."""
    steps = b"".join([_field(1, encode_feature([token.encode()])) for token in tokens])
    return _field(2, _field(1, _entry("tokens", steps)))


def encode_feature(values: Values) -> bytes:
    """The serialized Feature of one list of values."""
    listed: list[Any] = values.tolist() if isinstance(values, np.ndarray) else list(values)
    if listed and isinstance(listed[0], (float, np.floating)):
        return _field(_FLOATS, _field(1, np.asarray(values, "<f4").tobytes()))
    if listed and isinstance(listed[0], bytes):
        return _field(_BYTES, b"".join([_field(1, value) for value in listed]))
    return _field(_INT64S, _field(1, b"".join(map(_VARINTS.__getitem__, listed))))


def _entry(name: str, value: bytes) -> bytes:
    return _field(1, name.encode()) + _field(2, value)


def _field(number: int, payload: bytes) -> bytes:
    return _VARINTS[number << 3 | _LENGTH] + _VARINTS[len(payload)] + payload


def parse_example(message: bytes) -> dict[str, Feature]:
    """The features of a serialized Example by name: int64 (n,), float32 (n,) or a list of byte strings.

    Raises ParseError for bytes that are no Example."""
    features: dict[str, Feature] = {}
    for number, part in _fields(message):
        if number == 1:
            for _, entry in _fields(_bytes(part)):
                name, value = _map_entry(entry)
                features[name] = _parse_feature(value)
    return features


def parse_tokens_example(message: bytes) -> list[str]:
    """The list `tokens` of a serialized SequenceExample, see `encode_tokens_example`; [] when it has none.

    Raises ParseError."""
    tokens: list[str] = []
    for number, part in _fields(message):
        for _, entry in _fields(_bytes(part)) if number == 2 else ():
            name, steps = _map_entry(entry)
            if name == "tokens":
                for _, step in _fields(steps):
                    values = _parse_feature(_bytes(step))
                    if not isinstance(values, list):
                        raise ParseError("tokens that are no byte strings")
                    tokens += [_text(value) for value in values]
    return tokens


def _map_entry(entry: bytes | int) -> tuple[str, bytes]:
    name, value = "", b""
    for number, part in _fields(_bytes(entry)):
        if number == 1:
            name = _text(_bytes(part))
        elif number == 2:
            value = _bytes(part)
    return name, value


def _parse_feature(message: bytes) -> Feature:
    found: Feature = np.zeros(0, np.int64)
    for kind, part in _fields(message):
        values = [
            value for number, value in _fields(_bytes(part), _FIXED32 if kind == _FLOATS else None) if number == 1
        ]
        if kind == _BYTES:
            found = [_bytes(value) for value in values]
        elif kind == _FLOATS:
            packed = b"".join([_bytes(value) for value in values])
            if len(packed) % 4:
                raise ParseError("a list of floats that ends inside one")
            found = np.frombuffer(packed, "<f4").astype(np.float32)
        elif kind == _INT64S:
            found = np.array([integer for value in values for integer in _integers(value)], np.uint64).view(np.int64)
    return found


def _integers(value: bytes | int) -> list[int]:
    """The integers of a packed list, or the one that stands for itself."""
    if isinstance(value, int):
        return [value]
    out, at = [], 0
    while at < len(value):
        integer, at = _read_varint(value, at)
        out.append(integer)
    return out


def _fields(message: bytes, keep_wire: int | None = None) -> Iterator[tuple[int, bytes | int]]:
    """(field number, value) of each field; a value of wire type `keep_wire` comes as bytes."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if wire == _LENGTH:
            size, at = _read_varint(message, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ParseError(f"wire type {wire} at byte {at}")
        if size > len(message) - at:
            raise ParseError(f"a field of {size} bytes where {len(message) - at} are left")
        value = message[at : at + size]
        at += size
        yield number, value if wire in (_LENGTH, keep_wire) else struct.unpack("<I" if size == 4 else "<Q", value)[0]


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ParseError("it ends inside a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise ParseError(f"a number of more than ten bytes at byte {at}")


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ParseError("a number where a message or a string belongs")
    return value


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ParseError(f"a string that is no UTF-8 ({error})") from None
