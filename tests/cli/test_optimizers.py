"""Every optimizer of the YAML, streamed from disk in little memory, killed and run again: the numbers of a run in memory."""

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest
from jobs import Job

NewJob = Callable[..., Job]
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "adamw": {"kind": "adamw"},
    "adamw_eager": {"kind": "adamw", "max_gradient_norm": None},
    "adamw_split": {"kind": "adamw", "weights": "split_bf16"},
    "adamw_split_eager": {"kind": "adamw", "weights": "split_bf16", "max_gradient_norm": None},
    "adamw_8bit": {"kind": "adamw_8bit", "betas": [0.9, 0.98]},
    "adafactor": {"kind": "adafactor"},
    "adafactor_fp32": {"kind": "adafactor", "weights": "fp32", "clip_threshold": 0.5},
    "sgd": {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.01},
    "sgd_eager": {"kind": "sgd", "max_gradient_norm": None},
}
IN_16_BITS = {"adafactor", "adamw_split", "adamw_split_eager"}
WORDS = {
    "adamw": "AdamW (exact), global norm clipped to 1",
    "adamw_eager": "AdamW (exact), no global norm; segments on disk are updated in backward",
    "adamw_split": "AdamW on split bf16 weights (exact fp32 master weights; the model computes with their bf16 halves), global",
    "adamw_split_eager": "AdamW on split bf16 weights (exact fp32 master weights; the model computes with their bf16 halves), no",
    "adamw_8bit": "8-bit AdamW (inexact: 8-bit moments), global norm",
    "adafactor": "Adafactor on bf16 weights (inexact: weights rounded to bf16 at random), no global norm",
    "adafactor_fp32": "Adafactor on fp32 weights (exact), no global norm",
    "sgd": "SGD with momentum (exact), global norm",
    "sgd_eager": "SGD (exact), no global norm",
}


@pytest.fixture
def make(new_job: NewJob) -> NewJob:
    def make(name: str, **device: Any) -> Job:
        job = new_job(device=device)
        job.tree["model"]["num_hidden_layers"] = 2
        for phase in job.tree["training"]["phases"]:
            phase["steps"] = 6
        job.tree["training"] |= {"microbatch_tokens": 96, "checkpoint_every": 4, "optimizer": OPTIMIZERS[name]}
        job.tree["evaluation"] = {"examples": 16}
        return job

    return make


def result(job: Job) -> dict[str, Any]:
    found = job.result()
    found["checkpoint"] = {k: v for k, v in found["checkpoint"].items() if k.endswith(".safetensors")}
    return found


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_killed_on_disk_and_run_again_equals_in_memory(make, name):
    in_memory = make(name, placement="device")
    outcome = in_memory("run")
    assert outcome.code == 0, outcome
    expected = result(in_memory)
    losses = [record["loss"] for record in expected["metrics"]]
    assert len(losses) == 12 and losses[-1] < losses[0]

    memory = "24MiB" if name in IN_16_BITS else "6MiB"  # 16 MiB to read weights that are not fp32
    job = make(name, placement="disk", memory=memory, activations="recompute")
    command = job.start("run")
    assert command.wait_until(lambda: any(record["step"] == 6 for record in job.records("metrics"))), command.wait()
    command.send(signal.SIGKILL)
    assert command.wait().code == -signal.SIGKILL
    outcome = job("run")
    assert outcome.code == 0, outcome
    assert "Going on from" in outcome.out and f"Optimizer: {WORDS[name]}" in outcome.out
    found = result(job)
    for part in ("metrics", "evaluations"):
        assert found[part] == expected[part]
    differing = [n for n, data in expected["checkpoint"].items() if found["checkpoint"].get(n) != data]
    assert not differing and found["checkpoint"].keys() == expected["checkpoint"].keys()

    plan = json.loads((job.run_folder / "plan.json").read_text())
    assert {segment["placement"] for segment in plan["segments"]} == {"disk"}
    for planned, measured in zip(plan["works"], plan["measured"], strict=True):
        assert (measured["read_bytes"], measured["written_bytes"]) == (planned["read_bytes"], planned["written_bytes"])
    assert f"Optimizer: {WORDS[name]}" in job("plan").out
    assert WORDS[name].partition(",")[0] in (job.run_folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("adamw", {"kind": "adamw_8bit"}, "training.optimizer.kind = adamw, and the params now say adamw_8bit"),
        ("adamw_split", {"weights": "fp32"}, "training.optimizer.weights = split_bf16, and the params now say fp32"),
        ("adafactor", {"weights": "fp32"}, "training.optimizer.weights = bf16, and the params now say fp32"),
        ("sgd", {"momentum": 0.5}, "training.optimizer.momentum was 0.9, now 0.5"),
    ],
)
def test_going_on_with_another_optimizer_is_refused(make, first, then, said):
    job = make(first)
    phases = job.tree["training"]["phases"]
    job.tree["training"]["phases"] = phases[:1]
    assert job("run").code == 0
    job.tree["training"]["phases"] = phases
    job.tree["training"]["optimizer"] = {**job.tree["training"]["optimizer"], **then}
    outcome = job("run")
    assert outcome.code == 2
    assert said in outcome.err


def test_clipping_may_change_on_the_way(make):
    """With it, whether updates wait for the norm."""
    results = []
    for placement in ("device", "disk"):
        job = make("adamw", placement=placement)
        phases = job.tree["training"]["phases"]
        job.tree["training"]["phases"] = phases[:1]
        assert job("run").code == 0
        job.tree["training"]["phases"] = phases
        job.tree["training"]["optimizer"] = OPTIMIZERS["adamw_eager"]
        outcome = job("run")
        assert outcome.code == 0 and "max_gradient_norm was 1.0, now None" in outcome.out
        results.append(result(job))
    assert results[0]["metrics"] == results[1]["metrics"]
    assert results[0]["checkpoint"] == results[1]["checkpoint"]


def test_a_gradient_that_is_not_finite_leaves_the_checkpoint_to_go_on_from(make):
    """With eager updates segments on disk have changed when it is seen."""
    plain, job = make("adamw_eager", placement="device"), make("adamw_eager", placement="disk")
    assert plain("run").code == 0
    phases = job.tree["training"]["phases"]
    job.tree["training"]["phases"] = phases[:1]
    assert job("run").code == 0
    job.tree["training"]["phases"] = phases
    outcome = job("run", "training.learning_rate=1e30")
    assert outcome.code != 0
    assert "stopped in the middle of the update" in outcome.err and "goes on from the last checkpoint" in outcome.err
    assert job.checkpoints()[-1] == "step-00000006"
    assert job("run").code == 0
    assert result(job)["checkpoint"] == result(plain)["checkpoint"]
