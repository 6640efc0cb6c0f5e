"""A run from disk is the run in memory: the same records and the same bytes of its last checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import Job

NewJob = Callable[..., Job]


@pytest.fixture(scope="module")
def make(new_job: NewJob) -> NewJob:
    def make(**device: Any) -> Job:
        job = new_job(device=device)
        job.tree["model"]["num_hidden_layers"] = 2
        for phase in job.tree["training"]["phases"]:
            phase["steps"] = 6
        job.tree["training"] |= {"microbatch_tokens": 96, "checkpoint_every": 4}
        job.tree["evaluation"] = {"examples": 16}
        return job

    return make


def run(job: Job, *overrides: str) -> dict[str, Any]:
    outcome = job("run", *overrides)
    assert outcome.code == 0, outcome
    return {name: job.records(name) for name in ("metrics", "evaluations")} | {
        "tensors": tensors(job.run_folder / "model"),
        "plan": json.loads((job.run_folder / "plan.json").read_text()),
    }


def tensors(folder: Path) -> dict[str, bytes]:
    """Weights and moments; safetensors' headers differ with the layout of files, data does not."""
    return {path.name: path.read_bytes() for path in sorted(folder.rglob("*.safetensors"))}


@pytest.fixture(scope="module")
def in_memory(make) -> dict[str, Any]:
    made = run(make(placement="device"))
    assert {segment["placement"] for segment in made["plan"]["segments"]} == {"device"}
    assert [record["step"] for record in made["metrics"]] == list(range(1, 13))
    assert max(record["microbatches"] for record in made["metrics"]) > 1
    return made


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["metrics"] == expected["metrics"]
    assert found["evaluations"] == expected["evaluations"]
    assert found["tensors"].keys() == expected["tensors"].keys()
    assert [name for name, data in found["tensors"].items() if data != expected["tensors"][name]] == []


@pytest.mark.parametrize("activations", ["auto", "spill", "recompute"])
def test_from_disk(make, in_memory, activations):
    found = run(make(placement="disk", activations=activations))
    placements = [segment["placement"] for segment in found["plan"]["segments"]]
    assert placements == ["disk"] * len(placements)
    if activations == "recompute":  # activations that are spilled depend on the lengths of real examples
        for planned, measured in zip(found["plan"]["works"], found["plan"]["measured"], strict=True):
            assert measured["read_bytes"] == planned["read_bytes"]
            assert measured["written_bytes"] == planned["written_bytes"]
            for planned_segment, segment in zip(planned["segments"], measured["segments"], strict=True):
                assert segment["read_bytes"] == planned_segment["read_bytes"]
                assert segment["written_bytes"] == planned_segment["written_bytes"]
    assert_same(found, in_memory)


def test_from_ram(make, in_memory):
    """The CPU as the twin of a GPU: copies to a second set of slabs."""
    job = make(placement="ram", ram="1GiB", activations="spill")
    shown = job("plan").out
    assert "RAM at the most" in shown and "of 1.00 GiB device.ram" in shown and "to the device" in shown
    found = run(job)
    assert {segment["placement"] for segment in found["plan"]["segments"]} == {"ram"}
    for planned, measured in zip(found["plan"]["works"], found["plan"]["measured"], strict=True):
        assert measured["sent_bytes"]["weight"] == planned["sent_bytes"]["weight"] > 0
        assert measured["brought_bytes"]["gradient"] == planned["brought_bytes"]["gradient"] > 0
        assert not measured["read_bytes"] and not measured["written_bytes"]
    assert_same(found, in_memory)


def test_ram_is_the_devices_own_on_a_cpu(make):
    outcome = make(placement="auto", ram="1GiB")("plan")
    assert outcome.code == 2 and "device.ram: on a CPU, RAM is the device's memory" in outcome.err


@pytest.mark.parametrize("placement", ["device", "disk", "auto"])
def test_evaluate_gives_the_figures_of_training(make, in_memory, placement):
    """From the checkpoint's folder, at hand or fetched segment by segment."""
    made = make(placement="disk")
    expected = run(made)["evaluations"]
    made.tree["device"]["placement"] = placement
    assert made("evaluate", "--all-checkpoints").code == 0
    again = made.records("evaluations")[len(expected) :]
    by_step = {record["step"]: record for record in expected}
    assert by_step.keys() & {record["step"] for record in again}
    for record in again:
        if record["step"] in by_step:
            assert record == by_step[record["step"]]


@pytest.mark.parametrize(
    ("first", "then"), [("disk", "device"), ("device", "disk"), ("disk", "ram"), ("ram", "device")]
)
def test_going_on_with_another_placement(make, in_memory, first, then):
    made = make(placement=first)
    phases = made.tree["training"]["phases"]
    made.tree["training"]["phases"] = phases[:1]
    assert made("run").code == 0
    made.tree["training"]["phases"] = phases
    made.tree["device"]["placement"] = then
    found = run(made)
    assert_same(found, in_memory)


def test_what_does_not_fit_is_refused_before_anything_is_made(make):
    made = make(memory="200KiB")
    outcome = made("run")
    assert outcome.code == 2
    assert "at least" in outcome.err and "device.memory is 200 KiB" in outcome.err
    assert not made.checkpoints()
    assert not (made.run_folder / "store").exists()


def test_plan_before_anything_is_prepared(make):
    made = make(placement="disk")
    outcome = made("plan")
    assert outcome.code == 0, outcome
    assert not made.run_folder.exists()
    for shown in ("vocabulary 261", "device.placement says so", "embeddings", "phase 1", "Disk wear", "assumed"):
        assert shown in outcome.out
    planned = outcome.out.split("\n")
    ran = run(made)
    assert [line for line in made("plan").out.split("\n") if "each step" in line] == [
        line for line in planned if "each step" in line
    ]
    for i, work in enumerate(ran["plan"]["works"]):
        assert f"phase {i}" in outcome.out and work["read_bytes"]["state"] > 0


def test_plan_refuses_what_does_not_fit(make):
    outcome = make(memory="200KiB")("plan")
    assert outcome.code == 2
    assert "at least" in outcome.err
