"""The command as a whole: features, counts, statistics, errors, and files that depend on neither workers nor kills."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from make_input import examples_of, flags, params_of, run, unmasked, write_documents, write_vocabulary

from headrace.errors import InputError, UserError
from headrace.modelzoo.create import inputs, plan, write

CLS, SEP, MASK = 2, 3, 4


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    write_documents(folder, 25)
    write_vocabulary(folder / "vocab.txt")
    return folder


@pytest.fixture(scope="module")
def made(text, tmp_path_factory):
    output = tmp_path_factory.mktemp("records")
    params = run(
        flags(text, "--output_dir", output, "--max_seq_length", 64, "--max_predictions_per_seq", 12, "--dupe_factor", 8)
    )
    return output, params, examples_of(output)


def digests(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir()) if path.is_file()
    }


def test_features_have_the_scripts_names_shapes_and_layout(made):
    _, _, found = made
    count = len(found["input_ids"])
    assert {name: (each.dtype.name, each.shape[1:]) for name, each in found.items()} == {
        "input_ids": ("int64", (64,)),
        "input_mask": ("int64", (64,)),
        "segment_ids": ("int64", (64,)),
        "masked_lm_positions": ("int64", (12,)),
        "masked_lm_ids": ("int64", (12,)),
        "masked_lm_weights": ("float32", (12,)),
        "next_sentence_labels": ("int64", (1,)),
    }
    ids, lengths = unmasked(found), found["input_mask"].sum(1)
    column = np.arange(64)
    assert np.array_equal(found["input_mask"], column < lengths[:, None])  # 1 = token
    assert not ids[found["input_mask"] == 0].any()
    assert (ids[:, 0] == CLS).all() and ((ids == CLS).sum(1) == 1).all()
    assert (ids[np.arange(count), lengths - 1] == SEP).all() and ((ids == SEP).sum(1) == 2).all()
    first_sep = (ids == SEP).argmax(1)
    assert np.array_equal(found["segment_ids"], (column > first_sep[:, None]) & (column < lengths[:, None]))
    predicted = found["masked_lm_weights"].sum(1).astype(int)
    expected = np.minimum(np.clip(np.rint(lengths * 0.15), 1, 12), lengths - 3)
    assert np.array_equal(predicted, expected)
    slots = np.arange(12)
    for name in ("masked_lm_positions", "masked_lm_ids"):
        assert not found[name][slots >= predicted[:, None]].any()
    rising = np.diff(found["masked_lm_positions"], axis=1) > 0
    assert rising[slots[1:] < predicted[:, None]].all()
    assert not np.isin(found["masked_lm_ids"][slots < predicted[:, None]], [CLS, SEP]).any()


def test_shares_of_masks_labels_and_lengths_are_the_algorithms(made):
    _, params, found = made
    weights = found["masked_lm_weights"] > 0
    row, slot = np.nonzero(weights)
    shown = found["input_ids"][row, found["masked_lm_positions"][row, slot]]
    true = found["masked_lm_ids"][row, slot]
    total = len(true)
    assert abs((shown == MASK).mean() - 0.8) < 4 * (0.16 / total) ** 0.5 + 0.1 / 30
    assert abs((shown == true).mean() - 0.1) < 0.02
    others = shown[(shown != MASK) & (shown != true)]
    assert len(np.unique(others)) > 25  # any of the 30 entries, special ones too
    assert 0.45 < found["next_sentence_labels"].mean() < 0.75
    lengths = found["input_mask"].sum(1)
    assert (lengths == 64).mean() > 0.6 and lengths.min() < 40
    assert params["random_next_share"] == pytest.approx(found["next_sentence_labels"].mean(), abs=1e-4)


def test_counts_are_true_and_examples_are_dealt_in_turn(made, text):
    output, params, found = made
    sizes = [len(examples_of(output, f"examples-{i + 1}.tfrecords")["input_ids"]) for i in range(10)]
    assert params == params_of(output)
    assert params["n_examples"] == len(found["input_ids"]) == sum(sizes)
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)
    lines = [line for path in text.glob("text-*.txt") for line in path.read_text().split("\n") if line]
    assert (params["n_docs"], params["n_sentences"]) == (25, len(lines))
    assert params["max_seq_length"] == 64 and params["dupe_factor"] == 8 and params["seed"] == 0
    assert [path.name for path in output.iterdir() if path.name.startswith(".")] == []


def test_pairs_labelled_next_follow_each_other(made, text):
    """A and B of label 0 are one stretch of a document; B of label 1 lies in another document, or stands elsewhere."""
    from headrace.modelzoo.create.flags import parse
    from headrace.modelzoo.create.vocabulary import make_vocabulary, sentence_cleaner

    _, settings = parse(flags(text))
    vocabulary = make_vocabulary(settings, text / "vocabulary")
    clean = sentence_cleaner(settings)
    documents = []
    for path in sorted(text.glob("text-*.txt")):
        encoded = vocabulary.encode_batch([clean(line) for line in path.read_text().split("\n") if line])
        documents.append(" " + " ".join(str(i) for each in encoded for i in each) + " ")
    _, _, found = made
    ids = unmasked(found)
    held = 0
    for row, segments, length, label in zip(
        ids, found["segment_ids"], found["input_mask"].sum(1), found["next_sentence_labels"][:, 0], strict=True
    ):
        a, b = (" " + " ".join(map(str, row[1:length][segments[1:length] == side][:-1])) + " " for side in (0, 1))
        assert any(a in document for document in documents)
        assert any(b in document for document in documents)
        if label == 0 and length < 64:  # nothing was cut away between them
            assert any(a + b[1:] in document for document in documents)
            held += 1
    assert held > 20


@pytest.fixture
def small_pieces(monkeypatch):
    """Many chunks, units and groups from little text."""
    monkeypatch.setattr(inputs, "CHUNK_CHARACTERS", 3000)
    monkeypatch.setattr(plan, "UNIT_SENTENCES", 100)
    monkeypatch.setattr(plan, "LARGEST_FILE", 30)
    monkeypatch.setattr(write, "SMALLEST_GROUP", 50)
    monkeypatch.setattr(write, "BATCH_TOKENS", 1 << 10)


def test_files_do_not_depend_on_how_the_work_is_cut(text, made, tmp_path, small_pieces):
    run(
        flags(
            text, "--output_dir", tmp_path, "--max_seq_length", 64, "--max_predictions_per_seq", 12, "--dupe_factor", 8
        )
    )
    for path in made[0].glob("*.tfrecords"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_a_run_that_fails_anywhere_goes_on_with_the_same_files(text, made, tmp_path, small_pieces, monkeypatch):
    """The rename that ends every seventh file fails, as if the disk were full."""
    arguments = flags(
        text, "--output_dir", tmp_path, "--max_seq_length", 64, "--max_predictions_per_seq", 12, "--dupe_factor", 8
    )
    real, calls, failures = Path.replace, 0, 0

    def failing(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls % 7 == 0:
            raise OSError(28, "No space left on device", str(target))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    for _ in range(200):
        try:
            run(arguments)
            break
        except (OSError, UserError):
            failures += 1
    assert failures > 5
    for path in made[0].glob("*.tfrecords"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def command(arguments: list[str]) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "headrace.modelzoo.create_tfrecords", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def test_two_processes_killed_and_run_again_make_the_same_files(text, made, tmp_path):
    arguments = flags(
        text, "--output_dir", tmp_path, "--max_seq_length", 64, "--max_predictions_per_seq", 12, "--dupe_factor", 8
    )
    arguments[arguments.index("--processes") + 1] = "2"
    scratch = tmp_path / ".examples.scratch"
    for stage in ("chunks", "plan", "parts"):
        process = command(arguments)
        while not (scratch / stage).exists() and process.poll() is None:
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert not list(tmp_path.glob("*.tfrecords"))
    process = command(arguments)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said.decode()
    for path in made[0].glob("*.tfrecords"):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()
    before = digests(tmp_path)
    process = command(arguments)  # nothing to do
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert digests(tmp_path) == before


def test_other_flags_beside_finished_files_are_refused(made, text):
    with pytest.raises(UserError, match=r"--output_dir .* made otherwise: --seed was 0; give"):
        run(
            flags(
                text,
                "--output_dir",
                made[0],
                "--max_seq_length",
                64,
                "--max_predictions_per_seq",
                12,
                "--dupe_factor",
                8,
                "--seed",
                1,
            )
        )


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--max_seq_length", 4), "--max_seq_length 4: must be at least 5"),
        (("--dupe_factor", 0), "--dupe_factor 0"),
        (("--short_seq_prob", 1.5), "--short_seq_prob 1.5: a probability"),
        (("--masked_lm_prob", "nan"), "--masked_lm_prob nan"),
        (("--min_short_seq_length", 126), "--min_short_seq_length 126: must lie between 2 and 125"),
        (("--num_output_files", 0), "--num_output_files 0"),
        (("--name", "a/b"), "--name 'a/b'"),
        (("--multiple_docs_separator", ""), "--multiple_docs_separator ''"),
        (("--vocab_file", "nowhere.txt"), "--vocab_file nowhere.txt: no such file"),
        (("--metadata_files", "nowhere.txt"), "--metadata_files nowhere.txt: no such file"),
    ],
)
def test_errors_name_the_flag_and_what_is_allowed(text, tmp_path, more, message):
    with pytest.raises(UserError) as error:
        run(flags(text, "--output_dir", tmp_path, *more))
    assert message in str(error.value)


def test_a_missing_input_file_is_named_by_metadata_file_and_line(text, tmp_path):
    metadata = tmp_path / "list.txt"
    metadata.write_text("text-0.txt\n\ntext-99.txt\n")
    with pytest.raises(InputError, match=r"list.txt:3: the input file .*text-99.txt does not exist"):
        run(flags(text, "--metadata_files", metadata, "--output_dir", tmp_path))


def test_invalid_bytes_are_named_by_file_and_line(text, tmp_path, capsys):
    from headrace.modelzoo.create_tfrecords import main

    (tmp_path / "bad.txt").write_bytes("良い行です。\n".encode() * 50 + b"\xff\xfe bad\n" + "行。\n".encode() * 50)
    (tmp_path / "list.txt").write_text("bad.txt\n")
    with pytest.raises(SystemExit) as status:
        main(
            flags(
                text,
                "--metadata_files",
                tmp_path / "list.txt",
                "--input_files_prefix",
                tmp_path,
                "--output_dir",
                tmp_path / "out",
            )
        )
    assert status.value.code == 2
    assert "bad.txt:51: byte 0" in capsys.readouterr().err


def test_short_sequences_and_passes(text, tmp_path):
    """All lengths short; passes of one single-document file take random next sentences from that document."""
    arguments = flags(text, "--split_num", 1, "--short_seq_prob", 1, "--min_short_seq_length", 20, "--dupe_factor", 1)
    params = run([*arguments, "--output_dir", str(tmp_path), "--max_seq_length", "64", "--num_output_files", "1"])
    lengths = examples_of(tmp_path)["input_mask"].sum(1)
    assert params["n_docs"] == 25 and lengths.max() <= 64
    assert (lengths == 64).mean() < 0.6


def test_empty_output_files_are_left_out(text, tmp_path):
    (tmp_path / "list.txt").write_text("text-0.txt\n")
    run(
        flags(
            text,
            "--metadata_files",
            tmp_path / "list.txt",
            "--output_dir",
            tmp_path / "out",
            "--dupe_factor",
            1,
            "--num_output_files",
            500,
        )
    )
    assert 0 < len(list((tmp_path / "out").glob("*.tfrecords"))) < 500
    assert all(path.stat().st_size for path in (tmp_path / "out").iterdir())
    assert json.loads((tmp_path / "out/data_params.json").read_text())["num_output_files"] == 500
