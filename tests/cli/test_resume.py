"""Kill -9 anywhere, run again: the same numbers, bit for bit, as if nothing had happened."""

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from jobs import Job, processes_of_session

SMALL_CHUNKS = {
    "headrace.text.prepare.CHUNK_CHARACTERS": 500
}  # some fifty chunks, so that a kill finds some done and some not
NewJob = Callable[..., Job]


@pytest.fixture(scope="module")
def uninterrupted(new_job: NewJob) -> dict[str, Any]:
    job = new_job(evaluation__every=10)
    outcome = job("run", constants=SMALL_CHUNKS)
    assert outcome.code == 0, outcome.err
    assert [record["step"] for record in job.records("metrics")] == list(range(1, 41))
    assert [record["step"] for record in job.records("evaluations")] == [10, 20, 30, 40]
    return job.result()


def kill_when(job: Job, reached: Callable[[], bool], delay_s: float = 0.0) -> None:
    command = job.start("run", constants=SMALL_CHUNKS)
    assert command.wait_until(reached), command.wait()
    time.sleep(delay_s)
    command.send(signal.SIGKILL)
    assert command.wait().code == -signal.SIGKILL


def finish(job: Job) -> dict[str, Any]:
    outcome = job("run", constants=SMALL_CHUNKS)
    assert outcome.code == 0, outcome.err
    return job.result()


def assert_same(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Names the parts that differ; pytest's own account of megabytes takes minutes."""
    assert ours.keys() == theirs.keys()
    for part, expected in theirs.items():
        if isinstance(expected, dict):
            differing = [name for name in ours[part].keys() | expected if ours[part].get(name) != expected.get(name)]
            assert not differing, f"{part}: {sorted(differing)} differ"
        else:
            assert ours[part] == expected


def num_chunks(job: Job) -> int:
    return len(list(job.run_folder.glob("tokens/chunks/*.json")))


def is_writing_checkpoint(job: Job) -> bool:
    return any(job.run_folder.glob("checkpoints/.step-*.tmp"))


def step(job: Job) -> int:
    records = job.records("metrics")
    return records[-1]["step"] if records else 0


@pytest.mark.parametrize("input_workers", [0, 1, 2])
def test_kills_leave_no_trace_in_the_numbers(new_job: NewJob, uninterrupted: dict[str, Any], input_workers: int):
    draw = random.Random(input_workers)
    job = new_job(evaluation__every=10)
    job.tree["training"]["input_workers"] = input_workers

    kill_when(job, lambda: num_chunks(job) >= 3)
    done = {path: path.stat().st_mtime_ns for path in job.run_folder.glob("tokens/chunks/*.json")}
    assert not (job.run_folder / "tokens" / "manifest.json").exists()

    first, second = draw.randint(2, 19), draw.randint(22, 38)
    kill_when(job, lambda: step(job) >= first, draw.uniform(0, 0.01))
    assert all(path.stat().st_mtime_ns == at for path, at in done.items()), "a finished chunk was made again"
    kill_when(job, lambda: is_writing_checkpoint(job), draw.uniform(0, 0.005))
    kill_when(job, lambda: step(job) >= second, draw.uniform(0, 0.01))
    assert_same(finish(job), uninterrupted)


@pytest.mark.slow
@pytest.mark.parametrize("input_workers", [0, 2])
def test_twenty_random_kills(new_job: NewJob, uninterrupted: dict[str, Any], input_workers: int):
    draw = random.Random(100 + input_workers)

    def begin() -> Job:
        job = new_job(evaluation__every=10, text__workers=2)
        job.tree["training"]["input_workers"] = input_workers
        return job

    job, killed_at = begin(), []
    while len(killed_at) < 20:
        # Progress decides, not the clock, which would find a busy machine in its imports each time; then a moment more.
        chunks, steps = num_chunks(job) + draw.randint(2, 20), step(job) + draw.randint(0, 12)
        waits = [lambda: num_chunks(job) >= chunks, lambda: step(job) >= steps, lambda: is_writing_checkpoint(job)]  # noqa: B023
        command = job.start("run", constants=SMALL_CHUNKS)
        if command.wait_until(draw.choices(waits, [1, 3, 2])[0]):
            time.sleep(draw.uniform(0, 0.02))
            command.send(signal.SIGKILL)
        if command.wait().code == 0:
            assert_same(job.result(), uninterrupted)
            job = begin()
        else:
            killed_at.append((num_chunks(job), step(job), job.checkpoints()[-1:]))
    print("chunks, step and newest checkpoint at each kill:", *killed_at, sep="\n")
    assert_same(finish(job), uninterrupted)


@pytest.mark.parametrize(("number", "input_workers"), [(signal.SIGTERM, 2), (signal.SIGINT, 0)])
def test_asked_to_stop(new_job: NewJob, number: signal.Signals, input_workers: int):
    """Every step is one that evaluates, so that a stop always comes between a step and its evaluation."""
    job, whole = (new_job(evaluation__every=1, evaluation__examples=4) for _ in range(2))
    job.tree["training"]["input_workers"] = input_workers
    for stop_at in (5, 24):
        command = job.start("run", constants=SMALL_CHUNKS)
        assert command.wait_until(lambda: step(job) >= stop_at)  # noqa: B023
        command.send(number)
        outcome = command.wait()
        assert outcome.code == 130, outcome
        stopped = step(job)
        assert stopped >= stop_at
        assert job.checkpoints()[-1] == f"step-{stopped:08d}"
        assert f"Stopped at step {stopped}" in outcome.out
    assert_same(finish(job), finish(whole))


@pytest.mark.parametrize("verb", ["prepare", "run"])
def test_workers_end_with_a_killed_parent(new_job: NewJob, verb: str):
    job = new_job(text__workers=2)
    job.tree["training"]["input_workers"] = 2
    command = job.start(verb, constants=SMALL_CHUNKS)
    assert command.wait_until(lambda: num_chunks(job) >= 2 if verb == "prepare" else step(job) >= 3)
    assert len(processes_of_session(command.pid)) >= 3
    command.send(signal.SIGKILL, whole_group=False)
    assert command.wait().code == -signal.SIGKILL
    deadline_s = time.monotonic() + 20
    while left := processes_of_session(command.pid):
        assert time.monotonic() < deadline_s, f"processes {left} outlive the command"
        time.sleep(0.05)
