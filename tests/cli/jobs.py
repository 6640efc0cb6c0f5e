"""Runs of a tiny model on a made text, through the command line."""

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

WORDS = [
    "水路",
    "は",
    "山の",
    "上から",
    "流れ、",
    "村を",
    "通り",
    "川へ",
    "落ちる",
    "人々が",
    "米を",
    "作る",
    "ために",
    "とても",
    "古い",
    "道も",
    "長い",
    "朝と",
    "夜に",
    "雨が",
    "降る",
    "魚",
    "森",
    "橋",
]
TIMES = ("tokens_per_s", "slots_per_s", "gemm_fraction", "input_wait_fraction", "interval_s", "samples_per_s")


def made_text(num_documents: int, seed: int = 0) -> str:
    """Documents of 2 to 9 sentences, one a line, a blank line between documents."""
    draw = random.Random(seed)
    documents = [
        "\n".join("".join(draw.choices(WORDS, k=draw.randint(4, 14))) + "。" for _ in range(draw.randint(2, 9)))
        for _ in range(num_documents)
    ]
    return "\n\n".join(documents) + "\n"


class Outcome(NamedTuple):
    code: int
    """Exit code; negative: the signal that ended it."""
    out: str
    err: str


@dataclass
class Command:
    """A command that runs, in a session of its own."""

    server: subprocess.Popen[str]
    pid: int
    log: Path

    def send(self, number: signal.Signals, whole_group: bool = True) -> None:
        (os.killpg if whole_group else os.kill)(self.pid, number)

    def wait(self) -> Outcome:
        assert self.server.stdout is not None
        code = int(self.server.stdout.readline())
        return Outcome(code, *(Path(f"{self.log}.{suffix}").read_text() for suffix in ("out", "err")))

    def wait_until(self, reached: Callable[[], bool]) -> bool:
        """False when the command ended first."""
        while not reached():
            try:
                os.kill(self.pid, 0)
            except ProcessLookupError:
                return False
            time.sleep(0.0005)
        return True


def processes_of_session(session: int) -> list[int]:
    """Its living processes: the command itself and all it started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@dataclass
class Job:
    """A folder with a params file and a text, and the commands one may run on them."""

    server: subprocess.Popen[str]
    folder: Path
    tree: dict[str, Any]

    @property
    def run_folder(self) -> Path:
        return self.folder / "run"

    def start(
        self, verb: str, *arguments: str, write_params: bool = True, with_params: bool = True, **settings: Any
    ) -> Command:
        if write_params:
            (self.folder / "params.yaml").write_text(yaml.safe_dump(self.tree, allow_unicode=True))
        log = self.folder / "log"
        given = [verb, "params.yaml", *arguments] if with_params else [verb, *arguments]
        job = {"arguments": given, "folder": str(self.folder), "log": str(log), **settings}
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(job) + "\n")
        self.server.stdin.flush()
        return Command(self.server, int(self.server.stdout.readline()), log)

    def __call__(self, verb: str, *arguments: str, **settings: Any) -> Outcome:
        return self.start(verb, *arguments, **settings).wait()

    def records(self, name: str) -> list[dict[str, Any]]:
        """metrics or evaluations, without the times."""
        path = self.run_folder / f"{name}.jsonl"
        whole_lines = path.read_text().split("\n")[:-1] if path.is_file() else []
        return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in whole_lines]

    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in self.run_folder.glob("checkpoints/step-*"))

    def result(self) -> dict[str, Any]:
        """All that decides whether two runs are the same: records, tokens, and every file of the last checkpoint."""
        last = self.run_folder / "checkpoints" / self.checkpoints()[-1]
        assert (self.run_folder / "model").resolve() == last.resolve()
        assert not [path for path in self.run_folder.rglob("*") if ".tmp" in path.name or ".aside" in path.name]
        return {
            "metrics": self.records("metrics"),
            "evaluations": self.records("evaluations"),
            "tokens": bytes_under(self.run_folder / "tokens", "*.safetensors"),
            "checkpoint": bytes_under(last),
            "checkpoints": self.checkpoints(),
        }


def bytes_under(folder: Path, pattern: str = "*") -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob(pattern)) if p.is_file()}
