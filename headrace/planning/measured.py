"""What steps really moved and took, beside the plan."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from headrace.planning.plan import Plan, size_text
from headrace.store.traffic import Traffic


@dataclass
class Measured:
    """Seconds and bytes of each step of each phase, in this process. A step after a checkpoint has no update to do, so
    bytes are those of the middle step."""

    traffic: Traffic
    steps: dict[str, list[dict[str, float]]] = field(default_factory=dict)

    @contextmanager
    def step(self, work: str) -> Iterator[None]:
        """Counts what happens while it lasts; a step that fails is not counted."""
        read, written = sum(self.traffic.read.values()), sum(self.traffic.written.values())
        started_s = time.perf_counter()
        yield
        self.steps.setdefault(work, []).append(
            {
                "step_s": time.perf_counter() - started_s,
                "read_bytes": sum(self.traffic.read.values()) - read,
                "written_bytes": sum(self.traffic.written.values()) - written,
            }
        )

    def record(self) -> list[dict[str, Any]]:
        """Per phase the middle step, plain data for plan.json."""
        return [
            {
                "name": name,
                "steps": len(steps),
                **{key: statistics.median_high(step[key] for step in steps) for key in steps[0]},
            }
            for name, steps in self.steps.items()
        ]

    def beside(self, plan: Plan) -> list[str]:
        """A line a phase: planned and measured."""
        planned = {work.name: work for work in plan.works}
        return [
            f"{found['name']}, a step: read {size_text(found['read_bytes'])} "
            f"(planned {size_text(sum(planned[found['name']].read_bytes.values()))}), "
            f"written {size_text(found['written_bytes'])} "
            f"(planned {size_text(sum(planned[found['name']].written_bytes.values()))}), "
            f"{found['step_s']:.3g} s (planned {planned[found['name']].step_s:.3g} s"
            f"{'' if plan.machine.measured else ', with assumed rates'})"
            for found in self.record()
        ]
