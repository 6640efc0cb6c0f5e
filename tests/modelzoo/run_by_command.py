"""run.py called as its users call it, in this process and on the CPU, and what it leaves behind."""

import json
import re
from pathlib import Path

from headrace.modelzoo.run.command import main


def do(*words) -> None:
    main([str(word) for word in (*words, "--device", "cpu", "training.input_workers=0")])


def metrics(model_dir: Path) -> list[dict]:
    return [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text("utf-8").splitlines()]


def numbers(model_dir: Path) -> list[tuple]:
    return [(each["step"], each["loss"], each["gradient_norm"], each["batch"]) for each in metrics(model_dir)]


def saved_dicts(out: str) -> dict[int, dict[str, float]]:
    lines = re.findall(r"^Saving dict for global step (\d+): (.*)$", out, re.MULTILINE)
    return {int(step): {k: float(v) for k, v in re.findall(r"(\S+) = ([^,]+)", rest)} for step, rest in lines}


def checkpoints(model_dir: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (model_dir / "checkpoints").glob("step-*"))
