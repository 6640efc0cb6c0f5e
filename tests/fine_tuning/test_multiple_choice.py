"""Multiple choice: rows of a question stay together, the loss is that of transformers, wrong rows are told."""

import random

import pytest
import torch
from conftest import GOOD, OTHER, write_rows
from transformers import BertForMultipleChoice

from headrace.cli.plan_stage import plan_stage
from headrace.cli.stages import run_stages
from headrace.errors import UserError
from headrace.labelled.features import FeatureRule, make_batch
from headrace.planning.device import choose_precision
from headrace.run_folder import RunFolder
from headrace.tasks import multiple_choice
from headrace.text.make_vocabulary import make_vocabulary
from headrace.training.labelled_rows import open_labelled
from headrace.training.records import read_records
from headrace.training.setup import build_trainable


def questions(count: int, seed: int = 0) -> list[dict]:
    """The right choice is the one that says the question's word."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        words = draw.sample([word for word in (*GOOD, *OTHER) if word not in ("great",)], 3)
        right = draw.randrange(3)
        choices = {f"choice{i}": " ".join([word] * draw.randint(1, 4)) for i, word in enumerate(words)}
        rows.append({"question": words[right], **choices, "label": right})
    return rows


def params_of(job, tmp_path, **sections):
    data = {
        "train": str(write_rows(tmp_path / "q.jsonl", questions(60))),
        "evaluation": str(write_rows(tmp_path / "e.jsonl", questions(20, 1))),
        "fields": {"choices": ["choice0", "choice1", "choice2"]},
    }
    return job(task={"kind": "multiple_choice"}, data=data, **sections)


def test_the_loss_is_that_of_transformers(job, tmp_path):
    params = params_of(job, tmp_path, model={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    run = RunFolder(params.run.folder)
    run.create()
    source = open_labelled(params, run, make_vocabulary(params, run, [], ""))
    begun = build_trainable(source.params, source.vocabulary, choose_precision(params))
    plain = BertForMultipleChoice(begun.config)
    with torch.no_grad():
        ours = {name: p for segment in begun.store.segments for name, p in segment.parameters.items()}
        for name, parameter in plain.named_parameters():
            parameter.copy_(ours[name])
    batch = make_batch(source.train.features[:7], FeatureRule(32, 0, 200, 32))
    assert len(batch.microbatches) > 1 and sum(len(m.labels) for m in batch.microbatches) == 7
    losses = []
    for microbatch in batch.microbatches:
        assert len(microbatch.input_ids) == 3 * len(microbatch.labels)
        inputs = {
            "input_ids": microbatch.input_ids,
            "token_type_ids": microbatch.token_type_ids,
            "attention_mask": (microbatch.example_ids > 0).astype("int64"),
            "labels": microbatch.labels,
        }
        tensors = {name: torch.from_numpy(value) for name, value in inputs.items()}
        for name in ("input_ids", "token_type_ids", "attention_mask"):
            tensors[name] = tensors[name].view(len(microbatch.labels), 3, -1)
        expected = plain(**tensors).loss * len(microbatch.labels) / 7
        found, _ = multiple_choice.training_loss(begun.model, microbatch, torch.device("cpu"), batch)
        assert found.item() == pytest.approx(expected.item(), rel=1e-6)
        losses.append(found.item())
    assert sum(losses) == pytest.approx(1.1, abs=0.3)  # ln 3, untrained


def test_the_plan_knows_steps_and_choices_before_anything_is_made(job, tmp_path):
    params = params_of(job, tmp_path)
    [work] = plan_stage(params).works
    assert (work.steps, work.examples, work.length) == (2 * 8, 3 * 8, 32)  # 60 rows in batches of 8, twice
    assert not params.run.folder.exists()


def test_a_run_ends_with_figures_and_wrong_rows_are_told(job, tmp_path):
    params = params_of(job, tmp_path)
    run_stages(params)
    last = read_records(RunFolder(params.run.folder).evaluations)[-1]
    assert last["n_examples"] == 20 and last["blind_accuracy"] == pytest.approx(1 / 3)
    for row, text in (
        ({"question": "a", "choice0": "b", "choice1": "c", "choice2": "d", "label": 3}, "label '3' should be a number"),
        ({"question": "a", "choice0": "b", "choice1": "c", "label": 0}, "there is no field 'choice2'"),
    ):
        write_rows(tmp_path / "q.jsonl", [row])
        run = RunFolder(tmp_path / "again")
        with pytest.raises(UserError, match=text):
            open_labelled(params, run, None)  # pyright: ignore
