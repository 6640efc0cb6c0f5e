"""The other scripts: windows without pairs, tokens without masks, CSV; and whole-word masks."""

import ast
import csv
import re
from pathlib import Path

import numpy as np
import pytest
from make_input import examples_of, flags, params_of, run, unmasked, write_documents, write_vocabulary

from headrace.errors import UserError
from headrace.modelzoo.create.flags import parse
from headrace.modelzoo.create.vocabulary import make_vocabulary, sentence_cleaner
from headrace.modelzoo.records.example import parse_tokens_example
from headrace.modelzoo.records.tfrecord import read_tfrecords

CLS, SEP, MASK = 2, 3, 4
SHORT = ("--max_seq_length", 32, "--max_predictions_per_seq", 6)


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    write_documents(folder, 12, sentences=10)
    write_vocabulary(folder / "vocab.txt")
    return folder


@pytest.fixture(scope="module")
def documents(text) -> list[list[int]]:
    """The tokens of each."""
    _, settings = parse(flags(text))
    vocabulary, clean = make_vocabulary(settings, text / "vocabulary"), sentence_cleaner(settings)
    paths = sorted(text.glob("text-*.txt"))
    return [
        [i for ids in vocabulary.encode_batch([clean(x) for x in path.read_text().split("\n")]) for i in ids]
        for path in paths
    ]


def is_inside(part: list[int], documents: list[list[int]]) -> bool:
    return any(
        document[i : i + len(part)] == part for document in documents for i in range(len(document) - len(part) + 1)
    )


def rows_of(folder: Path, columns: list[str]) -> list[dict]:
    """All CSV rows, cells read as Python literals; checks columns, line ends and meta.dat."""
    counted, found = dict(line.split() for line in (folder / "meta.dat").read_text().splitlines()), []
    assert sorted(counted) == sorted(path.name for path in folder.glob("*.csv"))
    for name in sorted(counted):
        assert (folder / name).read_bytes().startswith(",".join(columns).encode() + b"\r\n")
        with (folder / name).open(newline="", encoding="utf-8") as file:
            rows = [{key: ast.literal_eval(cell) for key, cell in row.items()} for row in csv.DictReader(file)]
        assert len(rows) == int(counted[name])
        found += rows
    return found


def test_windows_slide_over_each_document(text, documents, tmp_path):
    """Without short ones: every 30 tokens a window that goes back by the overlap; the rest of a document is one too."""
    run(
        flags(
            text,
            "--output_dir",
            tmp_path,
            *SHORT,
            "--dupe_factor",
            1,
            "--short_seq_prob",
            0,
            "--overlap_size",
            5,
            form="mlm-only",
        )
    )
    found = examples_of(tmp_path)
    assert set(found) == {"input_ids", "input_mask", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights"}
    rows = sorted(
        row[1 : count - 1].tolist() for row, count in zip(unmasked(found), found["input_mask"].sum(1), strict=True)
    )
    expected = []
    for document in documents:
        start = 0
        while start + 30 <= len(document):
            expected.append(document[start : start + 30])
            start += 25
        expected.append(document[start:])
    assert rows == sorted(expected)
    assert (unmasked(found)[:, 0] == CLS).all()


def test_short_windows_keep_to_the_least_length(text, documents, tmp_path):
    run(
        flags(
            text,
            "--output_dir",
            tmp_path,
            *SHORT,
            "--dupe_factor",
            2,
            "--short_seq_prob",
            1,
            "--min_short_seq_length",
            12,
            form="mlm-only",
        )
    )
    found = examples_of(tmp_path)
    lengths = found["input_mask"].sum(1) - 2
    for row, count in zip(unmasked(found), lengths, strict=True):
        assert is_inside(row[1 : count + 1].tolist(), documents)
    assert lengths.max() <= 30 and (lengths < 12).sum() <= 2 * len(documents)  # only what is left at an end is shorter
    with pytest.raises(UserError, match=r"--min_short_seq_length 9: must lie between 10 and 30"):
        run(flags(text, *SHORT, "--min_short_seq_length", 9, form="mlm-only"))


@pytest.mark.parametrize("separator", ["[SEP]", "'"])
def test_windows_may_cross_documents(text, documents, tmp_path, separator):
    """Laid end to end they are all documents in some order with the separator between; it is never masked."""
    arguments = flags(
        text,
        "--output_dir",
        tmp_path,
        *SHORT,
        "--dupe_factor",
        1,
        "--short_seq_prob",
        0,
        "--overlap_size",
        0,
        form="mlm-only",
    )
    run([*arguments, "--allow_cross_document_examples", "--document_separator_token", separator, "--mask_whole_word"])
    separator_id = SEP if separator == "[SEP]" else 9
    found = examples_of(tmp_path)
    lengths = found["input_mask"].sum(1)
    assert sorted(lengths)[1:] == [32] * (len(lengths) - 1)  # but for the last, all are full
    total = sum(map(len, documents)) + len(documents) - 1
    assert (lengths - 2).sum() in (total, total - 1)  # no separator where a document ended with a window
    windows = [row[1 : count - 1].tolist() for row, count in zip(unmasked(found), lengths, strict=True)]
    for window in windows:
        parts = " ".join(map(str, window)).split(f" {separator_id} ")
        assert all(is_inside([int(i) for i in part.split() if int(i) != separator_id], documents) for part in parts)
    row, slot = np.nonzero(found["masked_lm_weights"])
    assert separator_id not in found["masked_lm_ids"][row, slot]


def test_an_unknown_separator_is_refused(text, tmp_path):
    with pytest.raises(UserError, match=r"--document_separator_token <x>: not in --vocab_file"):
        run(flags(text, "--output_dir", tmp_path, "--document_separator_token", "<x>", form="mlm-only"))


def test_tokens_are_stored_when_masking_is_disabled(text, documents, tmp_path):
    run(flags(text, "--output_dir", tmp_path, *SHORT, "--disable_masking", form="mlm-only"))
    entries = (text / "vocab.txt").read_text().split("\n")
    found = [
        parse_tokens_example(frame.payload) for path in tmp_path.glob("*.tfrecords") for frame in read_tfrecords(path)
    ]
    assert len(found) == params_of(tmp_path)["n_examples"]
    for tokens in found:
        assert tokens[0] == "[CLS]" and tokens[-1] == "[SEP]" and len(tokens) <= 32
        assert is_inside([entries.index(token) for token in tokens[1:-1]], documents)


def test_csv_of_pairs_without_masks(text, documents, tmp_path):
    run(flags(text, "--output_dir", tmp_path, *SHORT, form="csv"))
    rows = rows_of(tmp_path, ["tokens", "segment_ids", "is_random_next"])
    params = params_of(tmp_path)
    assert len(rows) == params["n_examples"] and params["dupe_factor"] == 1 and params["name"] == "preprocessed_data"
    entries = (text / "vocab.txt").read_text().split("\n")
    for row in rows:
        assert len(row["tokens"]) == len(row["segment_ids"]) <= 32 and row["is_random_next"] in (0, 1)
        for side in (0, 1):
            part = [token for token, segment in zip(row["tokens"], row["segment_ids"], strict=True) if segment == side]
            assert is_inside([entries.index(token) for token in part if token not in ("[CLS]", "[SEP]")], documents)


def test_csv_with_masks_says_what_the_records_say(text, tmp_path):
    """The same seed gives the same examples in either kind of file."""
    for form, output in ((None, "records"), ("csv-static-masking", "csv")):
        run(flags(text, "--output_dir", tmp_path / output, *SHORT, "--num_output_files", 1, form=form))
    columns = [
        "input_ids",
        "token_type_ids",
        "next_sentence_label",
        "masked_lm_weights",
        "masked_lm_positions",
        "attention_mask",
        "labels",
    ]
    rows = rows_of(tmp_path / "csv", columns)
    records = examples_of(tmp_path / "records")
    names = [
        "input_ids",
        "segment_ids",
        "next_sentence_labels",
        "masked_lm_weights",
        "masked_lm_positions",
        "input_mask",
        "masked_lm_ids",
    ]
    for column, name in zip(columns, names, strict=True):
        assert [row[column] for row in rows] == np.squeeze(records[name]).tolist()


@pytest.mark.parametrize("form", [None, "mlm-only", "csv-static-masking", "csv-mlm-only-static-masking"])
def test_our_reader_opens_what_is_written(text, tmp_path, form):
    from headrace.modelzoo.records.record_set import open_records

    params = run(flags(text, "--output_dir", tmp_path, *SHORT, "--dupe_factor", 2, form=form))
    vocabulary_size = (text / "vocab.txt").read_text().count("\n")
    records = open_records(tmp_path, max_sequence_length=32, max_predictions_per_seq=6, vocabulary_size=vocabulary_size)
    assert len(records) == params["n_examples"] and not records.notes
    assert records.read(np.arange(len(records)))["input_ids"].shape == (len(records), 32)


@pytest.mark.parametrize("form", ["csv-mlm-only", "csv-mlm-only-static-masking"])
def test_csv_of_windows(text, tmp_path, form):
    run(flags(text, "--output_dir", tmp_path, *SHORT, form=form))
    masks = ["input_ids", "masked_lm_weights", "masked_lm_positions", "attention_mask", "labels"]
    rows = rows_of(tmp_path, masks if "static" in form else ["tokens"])
    assert len(rows) == params_of(tmp_path)["n_examples"]


def test_whole_words_are_masked_whole(text, tmp_path):
    """Of each word all pieces are predicted or none, and no more than asked for; a piece that goes on with a word
    belongs to the word before it in the row."""
    run(flags(text, "--output_dir", tmp_path, *SHORT, "--mask_whole_word"))
    entries = (text / "vocab.txt").read_text().split("\n")
    goes_on = np.array([entry.startswith("##") for entry in entries])
    found = examples_of(tmp_path)
    ids, count = unmasked(found), found["input_mask"].sum(1)
    several = 0
    for row, length, weights, positions in zip(
        ids, count, found["masked_lm_weights"], found["masked_lm_positions"], strict=True
    ):
        chosen = set(positions[weights > 0].tolist())
        assert len(chosen) <= min(6, max(1, round(length * 0.15)))
        words: list[list[int]] = []
        for place in range(length):
            if row[place] in (CLS, SEP):
                continue
            if goes_on[row[place]] and words:
                words[-1].append(place)
            else:
                words.append([place])
        for word in words:
            assert not chosen & set(word) or chosen >= set(word)
            several += len(word) > 1 and chosen >= set(word)
    assert several > 50
    assert (found["masked_lm_weights"].sum(1) > 0).mean() > 0.9


def test_the_command_may_be_pasted_from_a_web_page():
    printed = (
        "--metadata_files metadata_file.txt --input_files_prefix metadata_file_path --vocab_file vocab.txt --output_dir "
        "./output_tfrecords –-do_lower_case --max_seq_length 128 --max_predictions_per_seq 20"
    )
    _, settings = parse(printed.split())
    assert settings.do_lower_case and settings.input_files_prefix == "metadata_file_path"
    assert (settings.dupe_factor, settings.num_output_files, settings.split_num, settings.seed) == (10, 10, 1000, 0)
    assert settings.file_name(0) == "examples-1.tfrecords" and settings.min_short_seq_length == 2


def test_the_page_has_every_flag():
    from headrace.modelzoo.create.flags import FORMS, parser_of

    page = (Path(__file__).parents[2] / "docs/from-model-zoo.md").read_text("utf-8")
    section = page[page.index("## Creating records") :].split("\n## ")[0]
    listed = set(re.findall(r"^\| `(--\w+)` \|", section, re.M))
    known = {flag for form in FORMS for action in parser_of(form)._actions for flag in action.option_strings}
    assert listed == known - {"-h", "--help"}
    commands = [line.split() for line in page.split("\n") if line.startswith("headrace-create-tfrecords --")]
    assert [parse(command[1:])[1].max_seq_length for command in commands] == [128, 512]


def test_help_of_every_form_names_the_scripts_flags(capsys):
    for form, flag in (
        ("pairs", "--split_num"),
        ("mlm-only", "--disable_masking"),
        ("csv", "--dupe_factor"),
        ("csv-mlm-only", "--overlap_size"),
    ):
        with pytest.raises(SystemExit):
            parse([form, "--help"])
        assert flag in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parse(["--overlap_size", "3"])  # no flag of create_tfrecords.py


def test_sentence_order_labels(text, documents, tmp_path):
    """Label 1: B stands before A in its document, or is a random next where there was but one sentence."""
    run(flags(text, "--output_dir", tmp_path, *SHORT, "--sop_labels", "--dupe_factor", 3, form="csv"))
    rows = rows_of(tmp_path, ["tokens", "segment_ids", "is_random_next"])
    entries = (text / "vocab.txt").read_text().split("\n")
    swapped = 0
    for row in rows:
        parts = [
            [
                entries.index(t)
                for t, s in zip(row["tokens"], row["segment_ids"], strict=True)
                if s == side and t[0] != "["
            ]
            for side in (0, 1)
        ]
        if row["is_random_next"]:
            swapped += is_in_order(parts[1], parts[0], documents)
        else:
            assert is_in_order(*parts, documents)
    labels = [row["is_random_next"] for row in rows]
    assert 0.35 < sum(labels) / len(labels) < 0.75 and swapped > len(rows) / 4


def is_in_order(first: list[int], second: list[int], documents: list[list[int]]) -> bool:
    """Whether a document has the second part somewhere behind the first, close by: both were cut to fit."""
    for document in documents:
        places = [i for i in range(len(document)) if document[i : i + len(first)] == first]
        if any(
            second == document[j : j + len(second)] for i in places for j in range(i + len(first), i + len(first) + 100)
        ):
            return True
    return False


def test_files_are_numbered_from_another_number(text, tmp_path):
    """Two sets in one folder, as --init_findex is meant; meta.dat names all of them."""
    first = flags(text, "--output_dir", tmp_path, *SHORT, "--num_output_files", 2, form="csv-static-masking")
    run(first)
    run([*first, "--seed", "1", "--init_findex", "3"])
    assert sorted(path.name for path in tmp_path.glob("*.csv")) == [f"preprocessed_data-{k}.csv" for k in (1, 2, 3, 4)]
    assert [line.split()[0] for line in (tmp_path / "meta.dat").read_text().splitlines()] == [
        f"preprocessed_data-{k}.csv" for k in (1, 2, 3, 4)
    ]
