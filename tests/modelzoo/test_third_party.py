"""Files made by TensorFlow, by Google's BERT and by the Model Zoo's own tools, array for array against what TensorFlow read.

The files are no part of this repository: without them these tests are skipped, and the others here make their own.
"""

import hashlib
import itertools
import json

import numpy as np
import pytest
from record_files import THIRD_PARTY

from headrace.errors import InputError
from headrace.modelzoo.records.csv_rows import parse_row
from headrace.modelzoo.records.layouts import STATIC_PAIRS
from headrace.modelzoo.records.record_set import check_records, open_records
from headrace.modelzoo.records.tfrecord import read_tfrecords
from headrace.modelzoo.records.token_rows import TokenRule

pytestmark = pytest.mark.skipif(not THIRD_PARTY.is_dir(), reason=f"{THIRD_PARTY} is not there")
DAMAGED = THIRD_PARTY / "damaged"


def expected(name):
    return json.loads((THIRD_PARTY / name / "expected.json").read_text())


@pytest.fixture(scope="module")
def rule():
    words = (THIRD_PARTY / "vocab_uncased.txt").read_text("utf-8").splitlines()
    return TokenRule({word: k for k, word in enumerate(words)}, words.index("[UNK]"), 128)


@pytest.mark.parametrize("name", ["google_msl128", "mz_msl128", "mz_msl512"])
def test_tfrecords_read_as_tensorflow_reads_them(name):
    wanted = expected(name)
    sequence = wanted["features"]["input_ids"]["shape"][0]
    predictions = wanted["features"]["masked_lm_ids"]["shape"][0]
    records = open_records(
        THIRD_PARTY / name,
        layout=STATIC_PAIRS,
        max_sequence_length=sequence,
        max_predictions_per_seq=predictions,
        vocabulary_size=wanted["vocab_size"],
    )
    assert check_records(records) == [] and len(records) == wanted["total_records"]
    assert [file.num_records for file in records.files] == [file["records"] for file in wanted["files"]]
    arrays = records.read(np.arange(len(records)))
    for feature, facts in wanted["features"].items():
        values = arrays[feature]
        assert str(values.dtype) == facts["dtype"] and list(values.shape[1:]) == facts["shape"]
        assert (values.min(), values.max()) == (facts["min"], facts["max"])
    for k, record in enumerate(wanted["first_3_records"]):
        for feature in wanted["features"]:
            assert arrays[feature][k].tolist() == record[feature]
    digest = hashlib.sha256()
    for k in range(len(records)):
        for feature in sorted(arrays):
            digest.update(feature.encode())
            digest.update(arrays[feature][k].tobytes())
    assert digest.hexdigest() == wanted["content_sha256"]
    labels = wanted["next_sentence_label_counts"]
    assert np.bincount(arrays["next_sentence_labels"][:, 0]).tolist() == [
        labels["0 (true next)"],
        labels["1 (random next)"],
    ]


def test_csv_reads_as_the_csv_module_reads_it(rule):
    wanted = expected("mz_csv_msl128")
    records = open_records(THIRD_PARTY / "mz_csv_msl128", tokens=rule, max_sequence_length=128)
    assert len(records) == wanted["total_rows"] and check_records(records) == [] and not records.notes
    digest, rows = hashlib.sha256(), []
    for file in records.files:
        data = file.path.read_bytes()
        offsets = file.offsets.tolist()  # pyright: ignore[reportAttributeAccessIssue]
        for start, stop in itertools.pairwise(offsets):
            row = parse_row(data[start:stop], wanted["columns"])
            digest.update(json.dumps(row, sort_keys=True, ensure_ascii=False).encode())
            rows.append(row)
    assert digest.hexdigest() == wanted["content_sha256"] and rows[:3] == wanted["first_3_rows"]
    arrays = records.read(np.arange(len(records)))
    assert int(arrays["input_mask"].sum()) == wanted["tokens_total"] and not arrays["unknown_tokens"].any()
    assert int(arrays["next_sentence_labels"].sum()) == wanted["label_counts"]["1 (random next)"]


@pytest.mark.parametrize(
    ("name", "num_good", "words"),
    [
        ("truncated_payload", 11, "record 11 at byte"),
        ("truncated_footer", 11, "record 11 at byte"),
        ("truncated_header", 11, "record 11 at byte"),
        ("flipped_data_crc", 6, "record 6 at byte 4,818"),
        ("flipped_payload_byte", 6, "record 6 at byte 4,818"),
        ("flipped_length_crc", 6, "record 6 at byte 4,818"),
        ("flipped_length_byte", 6, "record 6 at byte 4,818"),
        ("huge_length", 3, "record 3 at byte"),
        ("text_file", 0, "is this a TFRecord file"),
        ("trailing_garbage", 20, "record 20 at byte"),
    ],
)
def test_damaged_tfrecords(name, num_good, words):
    (path,) = (DAMAGED / name).iterdir()
    count = 0
    with pytest.raises(InputError) as raised:
        for _ in read_tfrecords(path):
            count += 1
    assert count == num_good and str(path) in str(raised.value) and words in str(raised.value)
    with pytest.raises(InputError, match="is damaged"):
        open_records(DAMAGED / name)


def test_good_and_gzip():
    good, packed = open_records(DAMAGED / "good_20"), open_records(DAMAGED / "gzip")
    assert len(good) == len(packed) == 20
    for name, values in good.read(np.arange(20)).items():
        assert np.array_equal(values, packed.read(np.arange(20))[name])


@pytest.mark.parametrize(
    ("name", "asked", "words"),
    [
        ("zero_byte", {}, "no file holds a record"),
        ("wrong_msl", {"max_sequence_length": 512, "max_predictions_per_seq": 80}, "128 against 512 .* 20 against 80"),
        ("good_20", {"max_predictions_per_seq": 80}, "20 against 80"),
        ("mixed_msl", {}, r"b_msl512\.tfrecords"),
        ("mixed_msl", {"max_sequence_length": 128, "max_predictions_per_seq": 20}, r"b_msl512\.tfrecords"),
        ("no_nsp_features", {"layout": STATIC_PAIRS}, "lacks next_sentence_labels, segment_ids .* MLM-only"),
        ("good_20", {"vocabulary_size": 20000}, "record .* the vocabulary has 20000 entries"),
    ],
)
def test_sets_that_do_not_fit(name, asked, words):
    with pytest.raises(InputError, match=words):
        check_records(open_records(DAMAGED / name, **asked))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("csv_meta_count_too_high", "has 10 records, and meta.dat says 12"),
        ("csv_code_in_cell", "record 3 at byte .* tokens is not a list of strings"),
        ("csv_truncated_last_row", "record 9 at byte"),
        ("csv_length_mismatch", "record 2 at byte .* 4 tokens and 3 segment_ids"),
    ],
)
def test_damaged_csv(name, words, rule, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        check_records(open_records(DAMAGED / name, tokens=rule))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["csv_good_10", "csv_meta_missing", "csv_meta_with_output_dir_prefix"])
def test_good_csv(name, rule):
    assert len(open_records(DAMAGED / name, tokens=rule).read(np.arange(10))["input_ids"]) == 10


def test_unknown_token_and_numpy_2_numbers(rule):
    (note,) = check_records(open_records(DAMAGED / "csv_token_not_in_vocab", tokens=rule))
    assert "not in the vocabulary" in note and "record 2" in note
    records = open_records(DAMAGED / "csv_numpy2_repr", max_sequence_length=128, max_predictions_per_seq=20)
    arrays = records.read(np.arange(len(records)))
    assert len(records) == 37 and records.layout is STATIC_PAIRS
    assert arrays["masked_lm_ids"][0, :3].tolist() == [2210, 2022, 2006]
