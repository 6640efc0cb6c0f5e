"""What each command does, through the command line."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jobs import Job, Outcome, bytes_under

NewJob = Callable[..., Job]
COMMANDS = ("run", "prepare", "train", "evaluate", "inspect", "generate", "params")


def assert_works(outcome: Outcome) -> str:
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    return outcome.out


@pytest.fixture(scope="module")
def finished(new_job: NewJob) -> Job:
    """A finished run; tests only read it."""
    job = new_job()
    assert_works(job("run"))
    return job


def records(job: Job) -> dict[str, Any]:
    return {"metrics": job.records("metrics"), "evaluations": job.records("evaluations")}


def test_help_of_a_real_process():
    command = [sys.executable, "-m", "headrace"]
    outcome = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr
    for name in COMMANDS:
        assert f"\n  {name} " in outcome.stdout
    unknown = subprocess.run([*command, "trian"], capture_output=True, text=True)
    assert unknown.returncode == 2
    assert "trian" in unknown.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command(new_job: NewJob, name: str):
    out = assert_works(new_job()(name, "--help", with_params=False))
    assert "Usage: " in out
    assert name in out


def test_prepare_imports_no_torch(new_job: NewJob):
    job = new_job()
    (job.folder / "params.yaml").write_text(yaml.safe_dump(job.tree))
    command = [sys.executable, "-X", "importtime", "-m", "headrace", "prepare", "params.yaml"]
    outcome = subprocess.run(
        command, capture_output=True, text=True, cwd=job.folder, env={"PYTHONPATH": str(Path(__file__).parents[2])}
    )
    assert outcome.returncode == 0, outcome.stderr
    imported = {
        line.rpartition("|")[2].strip() for line in outcome.stderr.split("\n") if line.startswith("import time:")
    }
    assert "headrace.text.prepare" in imported
    assert not imported & {"torch", "tensorboard", "pyarrow", "fugashi"}


def test_overrides_are_applied_and_saved(new_job: NewJob):
    job = new_job()
    rate = "training.learning_rate={kind: linear, start: 0, end: 1.0e-3, steps: 40}"
    assert_works(job("prepare", "text.lowercase=true", "training.phases.1.steps=7", rate))
    saved = yaml.safe_load((job.run_folder / "params.yaml").read_text())
    assert saved["text"]["lowercase"] is True
    assert [phase["steps"] for phase in saved["training"]["phases"]] == [20, 7]
    assert saved["training"]["learning_rate"]["end"] == 1e-3
    assert saved["training"]["optimizer"]["betas"] == [0.9, 0.999]  # defaults are there too
    assert json.loads((job.run_folder / "tokens" / "source.json").read_text())["text"]["lowercase"] is True
    # The saved params are a params file: the same run again.
    job.tree = saved
    assert_works(job("prepare"))


def test_run_twice(finished: Job):
    before = bytes_under(finished.run_folder)
    out = assert_works(finished("run"))
    assert "Training: done, 40 steps" in out
    after = bytes_under(finished.run_folder)
    assert {name for name in before.keys() | after if before.get(name) != after.get(name)} <= {"report.html"}


def test_stages_one_by_one_equal_run(new_job: NewJob, finished: Job):
    job = new_job()
    for verb in ("train", "evaluate"):
        outcome = job(verb)
        assert outcome.code == 2
        assert "headrace prepare" in outcome.err
    assert_works(job("prepare"))
    assert job("evaluate").code == 2
    assert_works(job("train"))
    assert job.result() == finished.result()
    assert "Training: done" in assert_works(job("train"))
    assert_works(job("evaluate"))
    *training, last = job.records("evaluations")
    assert training == finished.records("evaluations")
    assert last == training[-1]  # the weights read back are those that were evaluated


def test_evaluate_all_checkpoints(new_job: NewJob):
    job = new_job()
    assert_works(job("prepare"))
    assert_works(job("train"))
    before = job.records("evaluations")
    assert_works(job("evaluate", "--all-checkpoints"))
    added = job.records("evaluations")[len(before) :]
    assert [record["step"] for record in added] == [35, 40]
    assert added[-1] == before[-1]


def test_progress_in_plain_lines(new_job: NewJob):
    out = assert_works(new_job()("run", constants={"headrace.progress.PLAIN_LINE_EVERY_S": 0.02}))
    assert "\x1b" not in out
    assert "\r" not in out
    lines = [line for line in out.split("\n") if line.startswith("Training: ")]
    assert len(lines) >= 2
    for line in lines:
        done = int(line.split()[1])
        assert f"{done} of 40 steps ({done / 40:.0%})" in line
        assert " steps/s, " in line
        assert " left, loss " in line
    assert any(line.startswith("Tokenizing: ") and " characters/s" in line for line in out.split("\n"))


@pytest.mark.parametrize(
    ("folder", "shown"),
    [
        ("run", ["40", "byte", "masked_lm"]),
        ("run/tokens", ["documents", "tokens"]),
        ("run/checkpoints/step-00000040", ["40"]),
        ("run/model", ["40"]),
    ],
)
def test_inspect(finished: Job, folder: str, shown: list[str]):
    out = assert_works(finished("inspect", folder, with_params=False))
    assert "DAMAGED" not in out
    for word in shown:
        assert word in out


def test_inspect_refuses_other_folders(finished: Job):
    for folder in ("run/tensorboard", "nowhere", "text.txt"):
        outcome = finished("inspect", folder, with_params=False)
        assert outcome.code == 2
        assert outcome.err.startswith("headrace: ")


def test_params_lists_every_key(new_job: NewJob):
    out = assert_works(new_job()("params", with_params=False))
    for key in ("checkpoint_every", "whole_words", "sample_characters"):
        assert key in out
