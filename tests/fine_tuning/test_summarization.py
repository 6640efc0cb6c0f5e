"""Extractive summaries: which sentences are to be taken, cut texts, and figures that a hand can compute."""

from collections import Counter

import numpy as np
import pytest
from conftest import OTHER, write_rows

from headrace.cli.stages import run_stages
from headrace.errors import UserError
from headrace.run_folder import RunFolder
from headrace.tasks import summarization
from headrace.text.make_vocabulary import make_vocabulary
from headrace.training.records import read_records


def params_of(job, tmp_path, **sections):
    rows = []
    for i in range(48):
        words = [OTHER[(i + j) % len(OTHER)] for j in range(4)]
        rows.append({"text": f"{words[0]}。{words[1]}良い。{words[2]}。{words[3]}。", "summary": f"{words[1]}良い。"})
    data = {"train": str(write_rows(tmp_path / "texts.jsonl", rows)), "evaluation": [], "held_out": 0.25}
    return job(task={"kind": "summarization", "sentences": 1}, data=data, **sections)


def test_sentences_are_taken_as_long_as_rouge_rises(job, tmp_path):
    params = params_of(job, tmp_path).model_copy(update={"task": params_of(job, tmp_path).task.model_copy(
        update={"sentences": 3})})  # fmt: skip
    sentences = ("雨が降る。", "山は高い。", "川は長い。", "魚を食べる。")
    assert summarization.best_sentences(sentences, "山は高い。川は長い。", params) == [1, 2]
    assert summarization.best_sentences(sentences, "XYZ", params) == []


def test_targets_stand_at_the_beginning_of_each_sentence_that_fits(job, tmp_path):
    params = params_of(job, tmp_path)
    run = RunFolder(params.run.folder)
    run.create()
    vocabulary, notes = make_vocabulary(params, run, [], ""), Counter()
    example = summarization.Example("f:1", "", ("本は良い。", "店。", "旅旅旅旅旅旅旅旅旅旅旅旅旅旅。"), "店。")
    [feature] = summarization.features([example], params, vocabulary, 14, notes)
    assert feature.target_positions.tolist() == [0, 7] and feature.target_ids.tolist() == [0, 1]
    assert (feature.rows[0][feature.target_positions] == vocabulary.cls_id).all() and notes == {summarization.CUT: 1}
    assert feature.types[0].tolist() == [0] * 7 + [1] * 4
    [long] = summarization.features([example], params, vocabulary, 5, notes)
    assert len(long.rows[0]) == 5 and long.rows[0][-1] == vocabulary.sep_id


def test_figures_are_those_of_a_hand(job, tmp_path):
    params = params_of(job, tmp_path)
    example = summarization.Example("f:1", "", ("あい。", "うえ。"), "うえお")
    feature = summarization.Feature((), (), 0, None, np.array([0, 4]), np.array([0, 1]))
    logits = [np.array([[2.0, 0.0], [0.0, 1.0]])]
    guess = summarization.predictions(logits, [feature], [example], params)
    assert guess[0]["summary"] == "うえ。" and guess[0]["sentences"] == [1]
    found = summarization.figures(logits, guess, [feature], [example], params)
    assert found["eval/rouge1"] == pytest.approx(2 / 3) == found["oracle_rouge1"]  # う え of うえ。 and うえお
    assert found["eval/rouge2"] == pytest.approx(1 / 2) and found["lead_rouge1"] == 0.0
    assert found["eval/loss"] == pytest.approx((np.log(1 + np.exp(-2)) + np.log(1 + np.exp(-1))) / 2)


def test_a_run_learns_which_sentence_it_is(job, tmp_path):
    training = {**job().training.model_dump(mode="json"), "peak_learning_rate": 3e-3}
    training["phases"] = [{"sequence_length": 48, "batch_size": 8, "epochs": 8}]
    params = params_of(job, tmp_path, training=training)
    run_stages(params)
    last = read_records(RunFolder(params.run.folder).evaluations)[-1]
    assert last["eval/rouge1"] > last["lead_rouge1"] and last["oracle_rouge1"] > 0.95


def test_texts_without_a_choice_are_refused_with_the_language_they_were_read_as(job, tmp_path):
    rows = [{"text": "It rains. It is cold.", "summary": "It rains."}] * 4
    data = {"train": str(write_rows(tmp_path / "english.jsonl", rows)), "evaluation": [], "held_out": 0.0}
    params = job(task={"kind": "summarization", "sentences": 1}, data=data)
    with pytest.raises(UserError, match=r"text\.language = 'ja': no text of data\.train has more than one sentence"):
        run_stages(params)
    examples = [summarization.Example("f:1", "", ("a.", "b."), "a."), summarization.Example("f:2", "", ("c.",), "c.")]
    assert summarization.labels(examples, params) == ["left", "taken"]
