"""The CSV records: literals are parsed and never run, and every damage is named with its row."""

import ast
import csv
import random
import zlib

import numpy as np
import pytest
from record_files import bert_arrays

from headrace.errors import InputError, UserError
from headrace.modelzoo.records.csv_rows import CellError, parse_row, row_offsets
from headrace.modelzoo.records.record_set import check_records, open_records
from headrace.modelzoo.records.token_rows import TokenRule

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "'", '"', "\\", ",", "パン", "##ダ", "c"]
RULE = TokenRule({word: k for k, word in enumerate(WORDS)}, unk_id=1, sequence_length=12)
STATIC = {
    "input_ids": "input_ids",
    "token_type_ids": "segment_ids",
    "next_sentence_label": "next_sentence_labels",
    "masked_lm_weights": "masked_lm_weights",
    "masked_lm_positions": "masked_lm_positions",
    "attention_mask": "input_mask",
    "labels": "masked_lm_ids",
}


def token_rows(count: int, seed: int = 0) -> list[dict]:
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        tokens = ["[CLS]", *draw.choices(WORDS[5:], k=draw.randrange(1, 5)), "[SEP]"]
        second = [*draw.choices(WORDS[5:], k=draw.randrange(1, 5)), "[SEP]"]
        segments = [0] * len(tokens) + [1] * len(second)
        rows.append({"tokens": tokens + second, "segment_ids": segments, "is_random_next": draw.randrange(2)})
    return rows


def write(folder, rows, name="preprocessed_data-1.csv", meta="{name} {count}\n"):
    folder.mkdir(exist_ok=True, parents=True)
    with (folder / name).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    if meta is not None:
        (folder / "meta.dat").write_text(meta.format(name=name, count=len(rows)))
    return folder / name


def static_rows(count: int, seed: int = 0, of=lambda value: value) -> tuple[dict, list[dict]]:
    arrays = bert_arrays(count, seed=seed)
    rows = []
    for k in range(count):
        cells = {name: [of(value) for value in arrays[ours][k]] for name, ours in STATIC.items()}
        cells["next_sentence_label"] = int(arrays["next_sentence_labels"][k, 0])
        rows.append(cells)
    return arrays, rows


def test_token_rows(tmp_path):
    rows = token_rows(50)
    write(tmp_path, rows)
    records = open_records(tmp_path, tokens=RULE, max_sequence_length=12, max_predictions_per_seq=3)
    assert records.layout.name == "tokens of sentence pairs" and not records.notes and check_records(records) == []
    order = np.random.default_rng(0).permutation(50)
    found = records.read(order)
    for k, number in enumerate(order.tolist()):
        tokens, n = rows[number]["tokens"], len(rows[number]["tokens"])
        assert [WORDS[i] for i in found["input_ids"][k, :n]] == tokens
        assert found["input_mask"][k].tolist() == [1] * n + [0] * (12 - n)
        assert found["segment_ids"][k].tolist() == rows[number]["segment_ids"] + [0] * (12 - n)
        assert found["starts_word"][k, :n].tolist() == [int(not token.startswith("##")) for token in tokens]
        assert found["next_sentence_labels"][k].tolist() == [rows[number]["is_random_next"]]


@pytest.mark.parametrize("of", [lambda value: value, lambda value: value.item()])
def test_static_rows_as_numpy_2_and_as_numpy_1_write_them(tmp_path, of):
    arrays, rows = static_rows(20, of=of)
    path = write(tmp_path, rows)
    assert ("np.int64(" in path.read_text()) == (of(np.int64(1)).__class__ is np.int64)
    records = open_records(tmp_path, max_sequence_length=24, max_predictions_per_seq=4)
    assert records.layout.name == "masked sentence pairs"
    for name, values in records.read(np.arange(20)).items():
        assert values.dtype == arrays[name].dtype and np.array_equal(values, arrays[name]), name


def test_mlm_only_rows(tmp_path):
    write(tmp_path / "tokens", [{"tokens": row["tokens"] * 3} for row in token_rows(5)])
    records = open_records(tmp_path / "tokens", tokens=RULE)
    assert records.layout.name == "MLM-only tokens" and records.read(np.arange(5))["input_mask"].all()
    arrays, rows = static_rows(5)
    for row in rows:
        del row["token_type_ids"], row["next_sentence_label"]
    write(tmp_path / "static", rows)
    records = open_records(tmp_path / "static")
    assert records.layout.name == "MLM-only"
    assert np.array_equal(records.read(np.arange(5))["masked_lm_ids"], arrays["masked_lm_ids"])


def test_code_in_a_cell_is_not_run(tmp_path):
    rows = token_rows(5)
    trap = tmp_path / "ran"
    rows[3]["tokens"] = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    write(tmp_path, rows)
    records = open_records(tmp_path, tokens=RULE)
    with pytest.raises(InputError, match=r"-1.csv: record 3 at byte .* tokens is not a list of strings: __import__"):
        check_records(records)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("[1, 2", "not a list of numbers"),
        ("[1, [2]]", "not a list of numbers"),
        ("{1: 2}", "not a list of numbers"),
        ("[1.5]", "not a list of numbers"),
        ("['a']", "not a list of numbers"),
        ("[True]", "not a list of numbers"),
        ("np.zeros(3)", "not a list of numbers"),
        ("[np.int32(__import__)]", "not a list of numbers"),
        ("[np.int32(1), 2]", "not a list of numbers"),
        ("[np.int32(1), np.int32(2]", "not a list of numbers"),
        ("(" * 5000, "not a list of numbers"),
        ("[" * 100_000, "not a list of numbers"),
        ("'\\", "not a list of numbers"),
        ("", "not a list of numbers"),
    ],
)
def test_cells_that_are_no_lists(cell, words):
    line = '"' + cell.replace('"', '""') + '"\r\n'
    with pytest.raises(CellError, match=words):
        parse_row(line.encode(), ["input_ids"])


def test_token_lists_read_as_python_reads_them():
    """Lists with any characters, and lists broken at random: the same value, or refused where it is no list of strings."""
    draw = random.Random(0)

    def read(cell):
        try:
            return parse_row('"{}"'.format(cell.replace('"', '""')).encode(), ["tokens"])["tokens"]
        except CellError:
            return None

    for _ in range(2000):
        tokens = ["".join(draw.choices("'\"\\,パa[] #\n", k=draw.randrange(5))) for _ in range(draw.randrange(6))]
        assert read(repr(tokens)) == tokens
    num_refused = 0
    for _ in range(5000):
        cell = (
            "["
            + "".join(draw.choices(["'", '"', ", ", "a", "\\\\", ",", "'a'", '"b"', " "], k=draw.randrange(8)))
            + "]"
        )
        try:
            value = ast.literal_eval(cell)
        except (ValueError, SyntaxError):
            value = None
        expected = value if isinstance(value, list) and all(isinstance(item, str) for item in value) else None
        assert read(cell) == expected, cell
        num_refused += expected is None
    assert 1000 < num_refused < 4900


def test_a_cell_longer_than_the_csv_modules_limit():
    before = csv.field_size_limit()
    cell = str([30521] * 50_000)
    assert len(cell) > before and parse_row(f'"{cell}"'.encode(), ["input_ids"]) == {"input_ids": [30521] * 50_000}
    assert csv.field_size_limit() == before


def test_rows_are_found_where_the_csv_module_finds_them(tmp_path):
    path = tmp_path / "x.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["tokens"])
        for k in range(40_000):
            writer.writerow([f'{k}, "quoted"\nsecond line' if k % 7 == 0 else zlib.crc32(bytes(k % 300))])
    with path.open(newline="") as file:
        expected = [row[0] for row in csv.reader(file)][1:]
    offsets = row_offsets(path)
    data = path.read_bytes()
    found = [
        next(csv.reader([data[a:b].decode()[:-2]], strict=True))[0].replace("\r", "")
        for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        if b"\n" not in data[a : b - 2]
    ]
    assert len(offsets) - 1 == len(expected) and found == [cell for cell in expected if "\n" not in cell]


def test_empty_lines_are_no_rows(tmp_path):
    path = write(tmp_path, token_rows(4))
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([lines[0], "\n", *lines[1:3], "\n", "\n", *lines[3:], "\n"]), encoding="utf-8")
    assert len(open_records(tmp_path, tokens=RULE).read(np.arange(4))["input_ids"]) == 4


def test_meta_dat(tmp_path):
    rows = token_rows(6)
    with pytest.raises(InputError, match=r"-1.csv: has 6 records, and meta.dat says 8"):
        write(tmp_path / "high", rows, meta="{name} 8\n")
        open_records(tmp_path / "high", tokens=RULE)
    write(tmp_path / "missing", rows, meta=None)
    records = open_records(tmp_path / "missing", tokens=RULE)
    assert len(records) == 6 and "has no meta.dat" in records.notes[0]
    write(tmp_path / "prefix", rows, meta="./csvfiles/{name} {count}\n")
    assert len(open_records(tmp_path / "prefix", tokens=RULE)) == 6
    write(tmp_path / "more", rows)
    write(tmp_path / "more", rows, name="left.csv", meta="preprocessed_data-1.csv 6\n")
    records = open_records(tmp_path / "more", tokens=RULE)
    assert len(records) == 6 and "does not name left.csv" in records.notes[0]
    for meta, words in (("gone.csv 6\n", "line 1 names gone.csv, which is not in"), ("x\n", "allowed is a path and")):
        write(tmp_path / "bad", rows, meta=meta)
        with pytest.raises(InputError, match=words):
            open_records(tmp_path / "bad", tokens=RULE)


def test_damaged_rows(tmp_path):
    rows = token_rows(8)
    path = write(tmp_path / "cut", rows)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(InputError, match=r"record 7 at byte .* the file ends inside a quoted cell"):
        open_records(tmp_path / "cut", tokens=RULE)
    path.write_bytes(path.read_bytes()[: int(row_offsets(write(tmp_path / "whole", rows))[7])] + b"x,1\r\n")
    with pytest.raises(InputError, match=r"record 7 at byte .* 2 cells where the header names 3"):
        open_records(tmp_path / "cut", tokens=RULE)
    rows[2]["segment_ids"] = rows[2]["segment_ids"][:-1]
    write(tmp_path / "lengths", rows)
    with pytest.raises(InputError, match=r"record 2 at byte .* tokens and .* segment_ids"):
        check_records(open_records(tmp_path / "lengths", tokens=RULE))
    rows = token_rows(8)
    rows[2] = {"tokens": ["a"] * 13, "segment_ids": [0] * 13, "is_random_next": 0}
    write(tmp_path / "long", rows)
    with pytest.raises(InputError, match=r"record 2 at byte .* has 13 tokens, and max_sequence_length is 12"):
        check_records(open_records(tmp_path / "long", tokens=RULE))
    _, static = static_rows(8)
    static[4]["input_ids"] = static[4]["input_ids"][:-1]
    write(tmp_path / "static", static)
    with pytest.raises(InputError, match=r"record 4 at byte .* input_ids has 23 values where the first row has 24"):
        check_records(open_records(tmp_path / "static"))


def test_a_token_outside_the_vocabulary_is_unknown_and_noted(tmp_path):
    rows = token_rows(8)
    rows[2]["tokens"][1] = "zzzqx"
    write(tmp_path, rows)
    records = open_records(tmp_path, tokens=RULE)
    assert records.read(np.array([2]))["input_ids"][0, 1] == 1
    (note,) = check_records(records)
    assert note.startswith("1 tokens of 8 records are not in the vocabulary") and note.endswith("record 2")


def test_tokens_need_a_vocabulary(tmp_path):
    write(tmp_path, token_rows(3))
    with pytest.raises(UserError, match="need a vocabulary; set vocab_file"):
        open_records(tmp_path)
