"""kill -9 at random instants of a streamed run: the losses and the final weights are those of a run left alone."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("kill_job.py")


def start(folder):
    job = subprocess.Popen([sys.executable, str(JOB), str(folder)], stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None and job.stdout.readline() == "ready\n"
    return job


def finish(job):
    job.communicate(timeout=300)
    assert job.returncode == 0


def losses_of(folder):
    """Per step every loss that was seen; a step is repeated when a run goes on from before it."""
    seen: dict[int, set[float]] = {}
    for line in (folder / "losses.jsonl").read_text().splitlines():
        number, loss = json.loads(line)
        seen.setdefault(number, set()).add(loss)
    return seen


def weights_of(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("*.safetensors"))}


def kill_and_compare(tmp_path, instants):
    (tmp_path / "alone").mkdir()
    started_s = time.perf_counter()
    alone = start(tmp_path / "alone")
    ready_s = time.perf_counter() - started_s
    finish(alone)
    whole_s = time.perf_counter() - started_s - ready_s
    expected, weights = losses_of(tmp_path / "alone"), weights_of(tmp_path / "alone")
    assert len(expected) == 12 and all(len(each) == 1 for each in expected.values())
    draw = random.Random(instants)
    kills = 0
    for number in range(instants):
        folder = tmp_path / str(number)
        folder.mkdir()
        job = start(folder)
        time.sleep(draw.random() * whole_s)
        job.send_signal(signal.SIGKILL)
        job.communicate()
        kills += job.returncode == -signal.SIGKILL
        if job.returncode:
            finish(start(folder))
        assert losses_of(folder) == expected
        assert weights_of(folder) == weights
    assert kills


def test_kill_and_resume(tmp_path):
    kill_and_compare(tmp_path, 3)


@pytest.mark.slow
def test_kill_and_resume_at_twenty_instants(tmp_path):
    kill_and_compare(tmp_path, 20)
