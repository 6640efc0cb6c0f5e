"""The best of the evaluations so far, told from the records alone, so that a resumed run decides as the one before it."""

from collections.abc import Sequence
from typing import Any


def is_smaller_better(metric: str) -> bool:
    return metric.endswith(("loss", "perplexity"))


def best_record(records: Sequence[dict[str, Any]], metric: str) -> dict[str, Any] | None:
    """The evaluation with the best figure, of equals the first; None where none has it."""
    found = [record for record in records if record.get(metric) is not None]
    sign = -1.0 if is_smaller_better(metric) else 1.0
    return max(found, key=lambda record: (sign * record[metric], -record["step"]), default=None)


def given_up(records: Sequence[dict[str, Any]], metric: str | None, patience: int | None) -> bool:
    """Whether the last `patience` evaluations were no better than the best before them."""
    if metric is None or patience is None:
        return False
    best = best_record(records, metric)
    return best is not None and len({r["step"] for r in records if r["step"] > best["step"]}) >= patience
