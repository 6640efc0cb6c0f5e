"""The tool's own files against figures worked out apart from this code (expected.jsonl beside them)."""

import json
import os
from pathlib import Path

import pytest

from headrace.modelzoo.params import translate
from headrace.modelzoo.params.build import num_trainable
from headrace.optim import learning_rate

FILES = Path(os.environ.get("MODELZOO_PARAMS") or Path(__file__).resolve().parents[3] / "shared" / "modelzoo_params")
EXPECTED = (
    [json.loads(line) for line in (FILES / "expected.jsonl").read_text("utf-8").splitlines()]
    if (FILES / "expected.jsonl").is_file()
    else []
)
pytestmark = pytest.mark.skipif(
    not EXPECTED, reason=f"the files are not there: set MODELZOO_PARAMS (looked in {FILES})"
)
each_file = pytest.mark.parametrize("expected", EXPECTED, ids=[each["file"] for each in EXPECTED])


def rates(translation, steps, clock=None):
    training = translation.params.training
    return [learning_rate(training.learning_rate, s, clock or training.schedule_clock) for s in steps]


@each_file
def test_sizes_and_run(expected):
    (found,) = translate(FILES / expected["file"])
    config, params = found.params.model.config, found.params
    assert config["num_hidden_layers"] == expected["layers"]
    assert config["hidden_size"] == expected["hidden"]
    assert config["num_attention_heads"] == expected["heads"]
    assert config.get("n_inner", config.get("intermediate_size")) == expected["filter"]
    assert config["vocab_size"] == expected["vocab"]
    more = any("row for padding is added" in note for note in found.notes)
    assert config["max_position_embeddings"] == expected["max_position_embeddings"] + more
    phase = params.training.phases[0]
    assert phase.sequence_length == expected["msl"]
    assert (phase.batch_size, params.total_steps) == (expected["batch_size"], expected["max_steps"])
    if found.fine_tuning is None:
        assert phase.max_predictions == expected["max_predictions_per_seq"]
    if expected["eval_batch_size"] is not None and found.eval_input is not None:
        assert found.eval_input.batch_size == expected["eval_batch_size"]
    assert found.kind.style == ("trainer" if expected["style"] == "trainer" else expected["framework"])
    language_model = expected["task"] == "pretrain" or "same LM network" in expected["task"]
    assert found.kind.job == ("pretraining" if language_model else expected["task"])


@each_file
def test_parameter_count(expected):
    (found,) = translate(FILES / expected["file"])
    assert num_trainable(found) == expected["params_total"]


@each_file
def test_learning_rate(expected):
    (found,) = translate(FILES / expected["file"])
    for points, clock in ((expected["lr"]["points"], None), (expected["lr"].get("points_if_reset"), "in_sequence")):
        if points:
            peak = max(rate for _, rate in points)
            assert rates(found, [step for step, _ in points], clock) == pytest.approx(
                [rate for _, rate in points], rel=0, abs=1e-6 * peak
            )


@each_file
def test_optimizer(expected):
    (found,) = translate(FILES / expected["file"])
    optimizer, scale = found.params.training.optimizer, found.params.training.loss_scale
    assert optimizer.kind == "adamw" and expected["optimizer"].lower() in ("adam", "adamw")
    assert optimizer.weight_decay == (expected["weight_decay"] or 0.0)
    assert optimizer.betas == (tuple(expected["betas"]) if expected["betas"] else (0.9, 0.999))
    if expected["eps"] is not None:
        assert optimizer.eps == expected["eps"]
    assert optimizer.max_gradient_norm == expected["max_gradient_norm"]
    assert scale.dynamic == (expected["loss_scaling_factor"] == "dynamic")
    if isinstance(expected["loss_scaling_factor"], float):
        assert scale.initial == expected["loss_scaling_factor"]


@each_file
def test_ignored_keys_are_named(expected):
    (found,) = translate(FILES / expected["file"])
    if any("whole_word_masking" in note for note in expected["notes"]):
        assert any("whole_word_masking: no effect" in note for note in found.notes)
