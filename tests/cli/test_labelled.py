"""Fine-tuning through the command line: killed anywhere and gone on with, streamed from disk, asked to predict."""

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, bytes_under

NewJob = Callable[..., Job]
GOOD, BAD, OTHER = "xyz", "uvw", "abcdefg hijkl "


def rows(count: int, seed: int) -> str:
    """A text is good where it holds letters of GOOD."""
    draw, lines = random.Random(seed), []
    for _ in range(count):
        label = draw.choice(["bad", "good"])
        letters = draw.choices(OTHER, k=draw.randint(2, 20)) + draw.choices(GOOD if label == "good" else BAD, k=2)
        draw.shuffle(letters)
        lines.append(json.dumps({"text": "".join(letters), "label": label}))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def new_rows_job(new_job: NewJob) -> Callable[..., Job]:
    """A job on 96 rows: 36 steps of 8, evaluated every 12, on characters; settings are laid over it."""

    def make(**overrides: Any) -> Job:
        phases = [{"sequence_length": 32, "batch_size": 8, "epochs": 3}]
        job = new_job(
            data={"train": "rows.jsonl", "evaluation": "judged.jsonl"},
            task={"kind": "classification"},
            evaluation={"metric": "eval/accuracy"},
            training__phases=phases,
            training__learning_rate=2e-3,
            **overrides,
        )
        job.tree["text"] = {"vocabulary": {"load": "vocab.txt"}}
        entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        letters = sorted(set(GOOD + BAD + OTHER) - {" "})
        vocabulary = [*entries, *letters, *(f"##{letter}" for letter in letters)]
        (job.folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
        (job.folder / "rows.jsonl").write_text(rows(96, 1))
        (job.folder / "judged.jsonl").write_text(rows(40, 2))
        return job

    return make


def result(job: Job) -> dict[str, Any]:
    best = json.loads((job.run_folder / "best" / "headrace.json").read_text())["state"]["step"]
    files = bytes_under(job.run_folder / "checkpoints" / job.checkpoints()[-1])
    return {
        "metrics": job.records("metrics"),
        "evaluations": job.records("evaluations"),
        "best": best,
        "predictions": (job.run_folder / "predictions.jsonl").read_text(),
        "weights": {name: data for name, data in files.items() if name.endswith(".safetensors")},
    }


@pytest.fixture(scope="module")
def uninterrupted(new_rows_job: Callable[..., Job]) -> dict[str, Any]:
    job = new_rows_job()
    outcome = job("run")
    assert outcome.code == 0, outcome.err
    found = result(job)
    assert [record["step"] for record in found["metrics"]] == list(range(1, 37))
    assert [record["step"] for record in found["evaluations"]] == [12, 24, 36]
    return found


@pytest.mark.parametrize("killed_at", [9, 13, 30])
def test_killed_and_gone_on_with(new_rows_job: Callable[..., Job], uninterrupted: dict[str, Any], killed_at: int):
    job = new_rows_job()
    command = job.start("run")
    assert command.wait_until(lambda: len(job.records("metrics")) >= killed_at), command.wait()
    command.send(signal.SIGKILL)
    assert command.wait().code == -signal.SIGKILL
    assert len(job.records("metrics")) < 36
    outcome = job("run")
    assert outcome.code == 0, outcome.err
    assert result(job) == uninterrupted


def test_from_disk_the_numbers_are_the_same(new_rows_job: Callable[..., Job], uninterrupted: dict[str, Any]):
    job = new_rows_job(device={"placement": "disk"})
    outcome = job("run")
    assert outcome.code == 0, outcome.err
    found = result(job)
    assert found["weights"] == uninterrupted["weights"] and found["metrics"] == uninterrupted["metrics"]
    assert [r["eval/accuracy"] for r in found["evaluations"]] == [
        r["eval/accuracy"] for r in uninterrupted["evaluations"]
    ]
    (job.folder / "new.jsonl").write_text('{"text": "abx"}\n{"text": ""}\n')
    outcome = job("predict", "--input", "new.jsonl", "--output", "out.jsonl")
    assert outcome.code == 0, outcome.err
    lines = [json.loads(line) for line in Path(job.folder / "out.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == ["abx", ""] and {line["prediction"]["label"] for line in lines} <= {
        "good",
        "bad",
    }
    outcome = job("predict", "--input", "rows.jsonl")
    assert outcome.code == 2 and "--output" in outcome.err


def test_other_rows_are_refused_when_going_on(new_rows_job: Callable[..., Job]):
    job = new_rows_job()
    assert job("run", "training.phases.0.epochs=1").code == 0
    (job.folder / "rows.jsonl").write_text(rows(96, 5))
    outcome = job("run")
    assert outcome.code == 2 and "was made from other input or settings: train was" in outcome.err
