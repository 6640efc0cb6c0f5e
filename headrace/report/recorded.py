"""What a run has written down, as the page reads it: whatever is missing or damaged is left out."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.report.charts import Point

Records = list[dict[str, Any]]


def points(records: Records, key: str) -> list[Point]:
    """(step, value) of the records that have a finite value."""
    return [(record["step"], value) for record in records if (value := number(record, key)) is not None]


def number(record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def last_of_each_step(evaluations: Records) -> Records:
    """By step; `headrace evaluate` may have evaluated a step again."""
    return sorted({record["step"]: record for record in evaluations}.values(), key=lambda record: record["step"])


def read_list(path: Path) -> Records:
    return _read(path, lambda found: isinstance(found, list) and all(isinstance(each, dict) for each in found)) or []


def read_dict(path: Path) -> dict[str, Any]:
    return _read(path, lambda found: isinstance(found, dict)) or {}


def _read(path: Path, fits: Callable[[Any], bool]) -> Any:
    """The JSON of a file, or None: what a run has not written yet, or not as expected, is left out of the page."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if fits(found) else None
