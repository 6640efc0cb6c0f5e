"""A data_dir is checked before training, and its records are read by number."""

import gzip
import pickle

import numpy as np
import pytest
from record_files import VOCABULARY_SIZE, bert_arrays, gpt_arrays, write

from headrace.errors import InputError, UserError
from headrace.modelzoo.records.example import encode_tokens_example
from headrace.modelzoo.records.layouts import CAUSAL, STATIC_MLM, STATIC_PAIRS
from headrace.modelzoo.records.record_set import check_records, open_records
from headrace.modelzoo.records.tfrecord import record_offsets, write_tfrecords
from headrace.modelzoo.records.token_rows import TokenRule


def equal(found, expected):
    return found.keys() == expected.keys() and all(
        found[name].dtype == values.dtype and np.array_equal(found[name], values) for name, values in expected.items()
    )


def taken(arrays, numbers):
    return {name: values[numbers] for name, values in arrays.items()}


def test_several_files_in_any_order(tmp_path):
    arrays = bert_arrays(100)
    for k, numbers in enumerate(np.split(np.arange(100), [30, 31, 70])):
        write(tmp_path / f"examples-{k}.tfrecords", taken(arrays, numbers))
    (tmp_path / "examples-2.tfrecords").write_bytes(gzip.compress((tmp_path / "examples-2.tfrecords").read_bytes()))
    (tmp_path / "data_params.json").write_text("{}")
    records = open_records(tmp_path, max_sequence_length=24, max_predictions_per_seq=4, vocabulary_size=VOCABULARY_SIZE)
    assert len(records) == 100 and records.layout is STATIC_PAIRS and check_records(records) == []
    order = np.random.default_rng(0).integers(0, 100, 300)
    assert equal(records.read(order), taken(arrays, order))
    assert equal(pickle.loads(pickle.dumps(records)).read(order), taken(arrays, order))
    assert equal(records.read(np.arange(0)), taken(arrays, np.arange(0)))


def test_several_folders_and_patterns(tmp_path):
    arrays = gpt_arrays(30)
    for k, numbers in enumerate(np.split(np.arange(30), 3)):
        write(tmp_path / "abc"[k] / "x.tfrecord", taken(arrays, numbers))
    records = open_records([tmp_path / "a", str(tmp_path / "b"), str(tmp_path / "c" / "*.tfrecord")])
    assert records.layout is CAUSAL and equal(records.read(np.arange(30)), arrays)
    assert len(open_records(str(tmp_path / "b" / "x.tfrecord"))) == 10


def test_lengths_against_the_params(tmp_path):
    write(tmp_path / "a.tfrecords", bert_arrays(5, 128, 20))
    with pytest.raises(
        InputError,
        match=r"a.tfrecords: .* max_sequence_length 128 against 512 in the params and max_predictions_per_seq 20 against 80",
    ):
        open_records(tmp_path, max_sequence_length=512, max_predictions_per_seq=80)
    with pytest.raises(InputError, match="with max_predictions_per_seq 20 against 80"):
        open_records(tmp_path, max_sequence_length=128, max_predictions_per_seq=80)
    write(tmp_path / "b.tfrecords", bert_arrays(5, 512, 80))
    with pytest.raises(InputError, match=r"b.tfrecords: .* has 512 values a record, and 128 in .*a.tfrecords"):
        open_records(tmp_path, max_sequence_length=128, max_predictions_per_seq=20)
    with pytest.raises(InputError, match=r"b.tfrecords: .* has 512 values"):
        open_records(tmp_path)


def test_another_length_in_the_middle_of_a_file(tmp_path):
    a, b = write(tmp_path / "a", bert_arrays(5)), write(tmp_path / "b", bert_arrays(5, 28))
    (tmp_path / "x.tfrecords").write_bytes(a.read_bytes() + b.read_bytes())
    at = int(record_offsets(a)[-1])
    records = open_records(tmp_path / "x.tfrecords")
    with pytest.raises(InputError, match=f"x.tfrecords: record 5 at byte {at:,} .* 28 values where the records before"):
        check_records(records)


def test_missing_features(tmp_path):
    arrays = bert_arrays(5)
    mlm_only = {name: arrays[name] for name in STATIC_MLM.columns}
    write(tmp_path / "mlm" / "a.tfrecords", mlm_only)
    with pytest.raises(InputError, match=r"record 0 .* lacks next_sentence_labels, segment_ids .* MLM-only records"):
        open_records(tmp_path / "mlm", layout=STATIC_PAIRS)
    assert open_records(tmp_path / "mlm").layout is STATIC_MLM
    write(tmp_path / "pairs" / "a.tfrecords", arrays)
    as_mlm = open_records(tmp_path / "pairs", layout=STATIC_MLM)
    assert equal(as_mlm.read(np.arange(5)), mlm_only)
    with pytest.raises(InputError, match="lacks labels for GPT records; these are masked sentence pairs records"):
        open_records(tmp_path / "pairs", layout=CAUSAL)
    write(tmp_path / "other" / "a.tfrecords", {"pixels": arrays["input_ids"]})
    with pytest.raises(InputError, match="has the columns pixels; allowed are"):
        open_records(tmp_path / "other")
    write(tmp_path / "pairs" / "b.tfrecords", mlm_only)
    with pytest.raises(
        InputError, match=r"b.tfrecords: record 0 .* lacks next_sentence_labels, segment_ids .* MLM-only"
    ):
        open_records(tmp_path / "pairs")


def test_nothing_to_read(tmp_path):
    with pytest.raises(InputError, match="no such file or folder; set data_dir"):
        open_records(tmp_path / "gone")
    with pytest.raises(InputError, match=r"holds no records .* but nothing; set data_dir"):
        open_records(tmp_path)
    with pytest.raises(InputError, match="data_dir is an empty list"):
        open_records([])
    (tmp_path / "a.tfrecords").touch()
    with pytest.raises(InputError, match=r"no file holds a record \(.*a.tfrecords: holds no records"):
        open_records(tmp_path)
    write(tmp_path / "b.tfrecords", bert_arrays(3))
    records = open_records(tmp_path)
    assert len(records) == 3 and records.notes == (f"{tmp_path / 'a.tfrecords'}: holds no records",)
    (tmp_path / "c.csv").write_text("tokens\n")
    with pytest.raises(InputError, match="records of several kinds"):
        open_records(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "e.tfrecords").write_text("It is a truth universally acknowledged\n")
    with pytest.raises(InputError, match="is this a TFRecord file"):
        open_records(tmp_path / "d")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("input_ids", VOCABULARY_SIZE, "input_ids holds 1000; the vocabulary has 1000 entries; set vocab_file"),
        ("masked_lm_ids", 31000, "masked_lm_ids holds 31000; the vocabulary has 1000 entries"),
        ("input_ids", -1, "input_ids holds -1; ids are 0 or more"),
        ("masked_lm_positions", 24, "masked_lm_positions holds 24; allowed is 0 to 23"),
        ("masked_lm_weights", 0.5, "masked_lm_weights holds 0.5; allowed are 0"),
        ("next_sentence_labels", 2, "next_sentence_labels holds 2; allowed are 0 and 1"),
        ("segment_ids", 7, "segment_ids holds 7; allowed are 0 and 1"),
    ],
)
def test_values_no_model_can_take(tmp_path, name, value, words):
    arrays = bert_arrays(40)
    arrays[name][33, 0] = value
    path = write(tmp_path / "a.tfrecords", arrays)
    records = open_records(tmp_path, vocabulary_size=VOCABULARY_SIZE)
    at = int(record_offsets(path)[33])
    with pytest.raises(InputError, match=f"a.tfrecords: record 33 at byte {at:,}: {words}"):
        check_records(records)
    assert len(records.read(np.arange(33))["input_ids"]) == 33


def test_damage_is_found_when_the_set_is_opened(tmp_path):
    path = write(tmp_path / "a.tfrecords", bert_arrays(20))
    whole = path.read_bytes()
    at = int(record_offsets(path)[7])
    path.write_bytes(whole[: at + 60] + bytes([whole[at + 60] ^ 1]) + whole[at + 61 :])
    with pytest.raises(InputError, match=f"record 7 at byte {at:,} is damaged: the checksum of its payload"):
        open_records(tmp_path)
    path.write_bytes(gzip.compress(whole)[:-20])
    with pytest.raises(InputError, match=r"a.tfrecords: record .* is damaged: the gzip stream is damaged there"):
        open_records(tmp_path)
    path.write_bytes(gzip.compress(whole) + b"more")
    with pytest.raises(InputError, match=r"record 20 at byte .* the gzip stream is damaged there"):
        open_records(tmp_path)
    path.write_bytes(whole[: at + 60])
    with pytest.raises(InputError, match=r"record 7 at byte .* the file ends after 60 of its"):
        open_records(tmp_path)


def test_a_file_that_changes_while_it_is_read(tmp_path):
    path = write(tmp_path / "a.tfrecords", bert_arrays(20))
    records = open_records(tmp_path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match="record 19 at byte"):
        records.read(np.array([19]))


def test_token_tfrecords(tmp_path):
    rows = [["[CLS]", "a", "##b", "[SEP]"], ["[CLS]", "パン", "zzz", "c", "c", "c", "[SEP]"]]
    write_tfrecords(tmp_path / "a.tfrecords", [encode_tokens_example(row) for row in rows])
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "##b", "パン", "c"]
    rule = TokenRule({word: k for k, word in enumerate(words)}, unk_id=1, sequence_length=6)
    records = open_records(tmp_path, tokens=rule, max_sequence_length=6, vocabulary_size=8)
    found = records.read(np.array([1, 0]))
    assert found["input_ids"].tolist() == [[2, 6, 1, 7, 7, 7], [2, 4, 5, 3, 0, 0]]
    assert found["starts_word"].tolist()[1] == [1, 1, 0, 1, 0, 0] and found["unknown_tokens"].tolist() == [[1], [0]]
    assert "1 tokens of 2 records" in check_records(records)[0]
    with pytest.raises(UserError, match="need a vocabulary"):
        open_records(tmp_path)
    with pytest.raises(InputError, match="MLM-only tokens records"):
        open_records(tmp_path, tokens=rule, layout=STATIC_PAIRS)
