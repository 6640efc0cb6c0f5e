"""Beside BERT's own loop on made text, and beside records that the real programs made, where they are at hand."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from classic_loop import instances_of
from make_input import examples_of, flags, run, unmasked, write_documents, write_vocabulary

from headrace.modelzoo.create.flags import parse
from headrace.modelzoo.create.vocabulary import make_vocabulary, sentence_cleaner

SHARED = Path(__file__).parents[2].parent / "shared" / "tfrecords_thirdparty"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="no third-party records here")


def encoded(path: Path, vocabulary, clean) -> list[list[int]]:
    """A file of one sentence a line."""
    lines = [clean(line.strip()) for line in path.read_text("utf-8").split("\n")]
    return [ids for ids in vocabulary.encode_batch(lines) if ids]


def figures(examples: dict[str, np.ndarray]) -> dict[str, float]:
    weights = examples["masked_lm_weights"] > 0
    row, slot = np.nonzero(weights)
    shown = examples["input_ids"][row, examples["masked_lm_positions"][row, slot]]
    true = examples["masked_lm_ids"][row, slot]
    lengths = examples["input_mask"].sum(1)
    return {
        "random_next": float(examples["next_sentence_labels"].mean()),
        "length": float(lengths.mean()),
        "full": float((lengths == examples["input_ids"].shape[1]).mean()),
        "predicted": float(weights.sum(1).mean()),
        "length_a": float(((examples["segment_ids"] == 0) & (examples["input_mask"] == 1)).sum(1).mean()),
        "unchanged": float((shown == true).mean()),
        "place": float(examples["masked_lm_positions"][row, slot].mean()),
    }


def test_statistics_are_those_of_berts_loop(tmp_path):
    """The same documents through both, twelve times each; means within 4.5 standard errors."""
    write_documents(tmp_path, 40)
    write_vocabulary(tmp_path / "vocab.txt")
    _, settings = parse(flags(tmp_path))
    vocabulary, clean = make_vocabulary(settings, tmp_path / "vocabulary"), sentence_cleaner(settings)
    documents = [encoded(path, vocabulary, clean) for path in sorted(tmp_path.glob("text-*.txt"))]
    ours, theirs = [], []
    for seed in range(12):
        output = tmp_path / f"out-{seed}"
        params = run(
            flags(
                tmp_path,
                "--output_dir",
                output,
                "--seed",
                seed,
                "--dupe_factor",
                1,
                "--max_seq_length",
                64,
                "--max_predictions_per_seq",
                8,
            )
        )
        ours.append({"examples": params["n_examples"], **figures(examples_of(output))})
        draw = random.Random(seed)
        found = [
            instance
            for number in range(len(documents))
            for instance in instances_of(
                documents, number, draw, length=64, predictions=8, vocabulary_size=vocabulary.size
            )
        ]
        stacked = {name: np.array([each[name] for each in found]) for name in found[0]}
        theirs.append({"examples": len(found), **figures(stacked)})
    for name in ours[0]:
        a, b = np.array([each[name] for each in ours]), np.array([each[name] for each in theirs])
        error = ((a.var(ddof=1) + b.var(ddof=1)) / 12) ** 0.5
        assert abs(a.mean() - b.mean()) < 4.5 * error + 1e-9, (name, a.mean(), b.mean(), error)


@needs_shared
@pytest.mark.parametrize(
    ("folder", "texts", "whole_lines"),
    [
        ("mz_msl128", "pp/chapters_sents", True),
        ("mz_msl512", "pp/chapters_raw", False),
        ("google_msl128", "pp/chapters_sents", True),
    ],
)
def test_the_real_programs_tokens_are_ours(folder, texts, whole_lines, tmp_path):
    """A and B of each record are stretches of our documents; those that were not cut begin and end where our sentences
    do; together they hold every token of every document."""
    _, settings = parse(["--metadata_files", "x", "--vocab_file", str(SHARED / "vocab_uncased.txt"), "--do_lower_case"])
    vocabulary, clean = make_vocabulary(settings, tmp_path / "vocabulary"), sentence_cleaner(settings)
    documents = [encoded(path, vocabulary, clean) for path in sorted((SHARED / texts).iterdir())]
    streams = [np.array([i for sentence in each for i in sentence]) for each in documents]
    starts = [{0, *np.cumsum([len(sentence) for sentence in each]).tolist()} for each in documents]
    joined = [stream.astype(np.uint16).tobytes() for stream in streams]
    covered = [np.zeros(len(stream), bool) for stream in streams]
    found = examples_of(SHARED / folder, "*.tfrecord*")
    ids = unmasked(found)
    length = ids.shape[1]
    at_boundaries = uncut = 0
    for row, segments, count in zip(ids, found["segment_ids"], found["input_mask"].sum(1), strict=True):
        first_sep = int((segments[:count] == 0).sum()) - 1
        for side in (row[1:first_sep], row[first_sep + 1 : count - 1]):
            places = find(side.astype(np.uint16).tobytes(), joined)
            assert places, vocabulary.decode(side)
            if len(places) == 1:  # which of several it was cannot be known
                (number, start), stop = places[0], places[0][1] + len(side)
                covered[number][start:stop] = True
            if whole_lines and count < length:
                uncut += 1
                at_boundaries += any({start, start + len(side)} <= starts[number] for number, start in places)
    assert at_boundaries == uncut
    assert uncut > 100 or not whole_lines
    share = sum(each.sum() for each in covered) / sum(map(len, covered))
    assert share > 0.99, share


def find(side: bytes, documents: list[bytes]) -> list[tuple[int, int]]:
    """(document, token) of each place where the tokens stand."""
    places = []
    for number, document in enumerate(documents):
        at = document.find(side)
        while at >= 0:
            if at % 2 == 0:
                places.append((number, at // 2))
            at = document.find(side, at + 1)
    return places


@needs_shared
def test_csv_of_the_real_program_has_our_tokens(tmp_path):
    import ast
    import csv

    _, settings = parse(["--metadata_files", "x", "--vocab_file", str(SHARED / "vocab_uncased.txt"), "--do_lower_case"])
    vocabulary, clean = make_vocabulary(settings, tmp_path / "vocabulary"), sentence_cleaner(settings)
    streams = [
        " "
        + " ".join(vocabulary.token_text(i) for sentence in encoded(path, vocabulary, clean) for i in sentence)
        + " "
        for path in sorted((SHARED / "pp/chapters_sents").iterdir())
    ]
    for path in sorted((SHARED / "mz_csv_msl128").glob("*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                tokens = ast.literal_eval(row["tokens"])
                a, b = " ".join(tokens[1:-1]).split(" [SEP] ")
                assert any(f" {a} " in stream for stream in streams) and any(f" {b} " in stream for stream in streams)


@needs_shared
def test_statistics_are_those_of_the_real_program(tmp_path):
    """Its own command with twelve seeds: the figures it got lie within the spread of ours."""
    import os

    expected = json.loads((SHARED / "mz_msl128/expected.json").read_text())
    real = figures(examples_of(SHARED / "mz_msl128"))
    real["examples"] = expected["total_records"]
    here = Path.cwd()
    os.chdir(SHARED)
    try:
        ours = []
        for seed in range(12):
            arguments = (
                "--metadata_files metadata_pp_sents.txt --single_sentence_per_line --vocab_file vocab_uncased.txt "
                "--do_lower_case --max_seq_length 128 --max_predictions_per_seq 20 --dupe_factor 5 --num_output_files 2 "
                f"--processes 1 --seed {seed} --output_dir {tmp_path / str(seed)}"
            ).split()
            params = run(arguments)
            ours.append({"examples": params["n_examples"], **figures(examples_of(tmp_path / str(seed)))})
    finally:
        os.chdir(here)
    for name, value in real.items():
        found = np.array([each[name] for each in ours])
        assert abs(found.mean() - value) < 4 * found.std(ddof=1), (name, value, found.mean(), found.std(ddof=1))
