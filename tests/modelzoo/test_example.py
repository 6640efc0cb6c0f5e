"""tf.train.Example against google.protobuf, and both of our parsers against each other."""

import numpy as np
import pytest
from record_files import bert_arrays, payloads, protobuf_messages

from headrace.modelzoo.records.decode import Column, RowError, decode_examples
from headrace.modelzoo.records.example import (
    ParseError,
    encode_bert_example,
    encode_example,
    encode_tokens_example,
    parse_example,
    parse_tokens_example,
)

EXTREMES = [0, 1, 127, 128, 16383, 16384, 2**21, 2**35, 2**63 - 1, -1, -5, -(2**63)]
Example, SequenceExample = protobuf_messages()


def as_protobuf(message: bytes):
    made = Example()
    made.ParseFromString(message)
    return made.features.feature


def test_an_independent_reader_reads_what_we_write():
    arrays = bert_arrays(3)
    for k, message in enumerate(payloads(arrays)):
        features = as_protobuf(message)
        assert sorted(features) == sorted(arrays)
        for name, values in arrays.items():
            found = features[name].float_list if name == "masked_lm_weights" else features[name].int64_list
            assert list(found.value) == values[k].tolist()


def test_bert_example_names_and_dtypes():
    message = encode_bert_example([2, 9, 3], [1, 1, 1], [1, 0], [7, 0], [1.0, 0.0], [0, 0, 0], 1)
    features = as_protobuf(message)
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    assert kinds.pop("masked_lm_weights") == "float_list" and set(kinds.values()) == {"int64_list"}
    assert list(features["next_sentence_labels"].int64_list.value) == [1]
    mlm_only = as_protobuf(encode_bert_example([2, 9, 3], [1, 1, 1], [1, 0], [7, 0], [1.0, 0.0]))
    assert sorted(mlm_only) == ["input_ids", "input_mask", "masked_lm_ids", "masked_lm_positions", "masked_lm_weights"]


def test_extreme_integers():
    message = encode_example({"x": EXTREMES})
    assert list(as_protobuf(message)["x"].int64_list.value) == EXTREMES
    assert parse_example(message)["x"].tolist() == EXTREMES
    assert decode_examples([message], {"x": Column(np.int64, len(EXTREMES))})["x"].tolist() == [EXTREMES]


def test_numpy_scalars_are_what_they_are():
    message = encode_example({"i": [np.int64(-3), np.int32(70)], "f": [np.float32(1.0), np.float32(0.0)], "empty": []})
    found = parse_example(message)
    assert found["i"].tolist() == [-3, 70] and found["f"].dtype == np.float32 and found["f"].tolist() == [1, 0]
    assert found["empty"].dtype == np.int64 and len(found["empty"]) == 0
    with pytest.raises(TypeError):
        encode_example({"x": [1, "2"]})


def test_we_read_what_protobuf_writes():
    arrays = bert_arrays(5)
    messages = []
    for k in range(5):
        made = Example()
        for name in sorted(arrays, reverse=bool(k % 2)):
            kind = "float_list" if name == "masked_lm_weights" else "int64_list"
            getattr(made.features.feature[name], kind).value.extend(arrays[name][k].tolist())
        made.features.feature["of_no_interest"].bytes_list.value.append(b"\x80\xff")
        messages.append(made.SerializeToString())
    columns = {name: Column(values.dtype.type, values.shape[1]) for name, values in arrays.items()}
    for name, values in decode_examples(messages, columns).items():
        assert values.dtype == arrays[name].dtype and np.array_equal(values, arrays[name])


def test_values_one_by_one_and_fields_in_any_order():
    """Writers may leave lists unpacked (proto2), put the value before the name, and split a list."""

    def field(tag, payload):
        return bytes([tag, len(payload)]) + payload

    unpacked = field(0x1A, b"\x08\x05\x08\x90\x4e\x08\x01")
    value_first = field(0x0A, field(0x12, unpacked) + field(0x0A, b"ids"))
    split = field(
        0x0A, field(0x0A, b"more") + field(0x12, field(0x1A, field(0x0A, b"\x01\x02") + field(0x0A, b"\x03")))
    )
    floats = field(0x0A, field(0x0A, b"w") + field(0x12, field(0x12, b"\x0d\0\0\x80\x3f\x0d\0\0\0\x40\x0d\0\0\0\0")))
    message = field(0x0A, value_first + split + floats)
    expected = {"ids": [5, 10000, 1], "more": [1, 2, 3], "w": [1.0, 2.0, 0.0]}
    assert {name: list(values) for name, values in parse_example(message).items()} == expected
    usual = encode_example({"ids": [7, 8, 9], "w": [0.5, 0.25, 1.0], "more": [4, 5, 6]})
    columns = {"w": Column(np.float32, 3), "more": Column(np.int64, 3), "ids": Column(np.int64, 3)}
    found = decode_examples([usual, message, usual], columns)
    assert found["ids"].tolist() == [[7, 8, 9], expected["ids"], [7, 8, 9]]
    assert found["more"].tolist() == [[4, 5, 6], expected["more"], [4, 5, 6]]
    assert found["w"].tolist() == [[0.5, 0.25, 1.0], expected["w"], [0.5, 0.25, 1.0]]


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"ids": [1, 2]}, "it lacks w; it has ids"),
        ({"ids": [1, 2, 3], "w": [1.0]}, "ids has 3 values where the records before have 2"),
        ({"ids": [0.5, 1.0], "w": [1.0]}, "ids holds no int64 values"),
        ({"ids": [1, 2], "w": [b"x"]}, "w holds no float32 values"),
        ({"ids": [], "w": [1.0]}, "ids has 0 values"),
    ],
)
def test_a_record_that_does_not_fit(features, words):
    good = encode_example({"ids": [1, 2], "w": [1.0]})
    columns = {"ids": Column(np.int64, 2), "w": Column(np.float32, 1)}
    with pytest.raises(RowError, match=words) as raised:
        decode_examples([good, good, encode_example(features), good], columns)
    assert raised.value.row == 2


def test_garbage_is_told_apart_and_both_parsers_agree():
    """Random damage of a good message: both parsers give the same arrays, or both refuse."""
    draw = np.random.default_rng(1)
    arrays = bert_arrays(1)
    good = payloads(arrays)[0]
    columns = {name: Column(values.dtype.type, values.shape[1]) for name, values in arrays.items()}
    num_refused = 0
    for _ in range(800):
        message = bytearray(good)
        for at in draw.integers(0, len(message), draw.integers(1, 4)):
            message[at] = draw.integers(0, 256)
        if draw.random() < 0.2:
            del message[int(draw.integers(0, len(message))) :]
        try:
            alone = parse_example(bytes(message))
        except ParseError:
            alone = {}
        fits = all(
            name in alone
            and isinstance(alone[name], np.ndarray)
            and alone[name].dtype == column.dtype
            and len(alone[name]) == column.length
            for name, column in columns.items()
        )
        if fits:
            found = decode_examples([good, bytes(message)], columns)
            assert all(found[name][1].tobytes() == alone[name].tobytes() for name in columns)
        else:
            num_refused += 1
            with pytest.raises(RowError):
                decode_examples([good, bytes(message)], columns)
    assert 80 < num_refused < 780


def test_token_strings():
    tokens = ["[CLS]", "パンダ", "##s", '"', "[SEP]"]
    message = encode_tokens_example(tokens)
    assert parse_tokens_example(message) == tokens
    made = SequenceExample()
    made.ParseFromString(message)
    steps = made.feature_lists.feature_list["tokens"].feature
    assert [step.bytes_list.value[0].decode() for step in steps] == tokens
    assert made.SerializeToString() == message
