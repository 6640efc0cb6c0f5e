"""What steps really moved and took, by segment: the other half of a plan."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.store.store import Store
from headrace.store.traffic import sum_by_kind
from headrace.streaming.executor import Streaming


@dataclass
class Spent:
    """By a segment, in one step or several. Updates of segments on disk run beside the computing, on the thread that
    fetches, unless they are eager."""

    read_bytes: dict[str, int] = field(default_factory=dict)
    written_bytes: dict[str, int] = field(default_factory=dict)
    sent_bytes: dict[str, int] = field(default_factory=dict)
    """To a device apart."""
    brought_bytes: dict[str, int] = field(default_factory=dict)
    wait_s: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    """What is computed again is in it."""
    update_s: float = 0.0

    def add(self, other: "Spent", times: int = 1) -> None:
        for mine, others in (
            (self.read_bytes, other.read_bytes),
            (self.written_bytes, other.written_bytes),
            (self.sent_bytes, other.sent_bytes),
            (self.brought_bytes, other.brought_bytes),
        ):
            for kind, size in others.items():
                mine[kind] = mine.get(kind, 0) + times * size
        self.wait_s += times * other.wait_s
        self.forward_s += times * other.forward_s
        self.backward_s += times * other.backward_s
        self.update_s += times * other.update_s


@dataclass
class Steps:
    """Steps of one shape, added up. Only those that did every update count, because the step after a start or a
    checkpoint has none to do; eager updates are done in every step."""

    num_steps: int = 0
    num_counted: int = 0
    updated_bytes: int = 0
    """Weights and state that a counted step writes: the most that any step wrote."""
    seconds: float = 0.0
    segments: list[Spent] = field(default_factory=list)

    def add(self, seconds: float, segments: Sequence[Spent]) -> None:
        self.num_steps += 1
        updated = sum(spent.written_bytes.get(kind, 0) for spent in segments for kind in ("weight", "state"))
        if updated > self.updated_bytes or not self.segments:
            self.num_counted, self.seconds, self.updated_bytes = 0, 0.0, updated
            self.segments = [Spent() for _ in segments]
        if updated == self.updated_bytes:
            self.num_counted += 1
            self.seconds += seconds
            for total, spent in zip(self.segments, segments, strict=True):
                total.add(spent)

    def mean(self, name: str, updates_apart: Sequence[bool]) -> dict[str, Any]:
        """A step, plain data for plan.json; totals are sums over segments and `rest_s`, what belongs to none of them.
        updates_apart: which segments are updated beside the computing."""
        n = self.num_counted
        segments = [
            Spent(
                _mean(spent.read_bytes, n),
                _mean(spent.written_bytes, n),
                _mean(spent.sent_bytes, n),
                _mean(spent.brought_bytes, n),
                spent.wait_s / n,
                spent.forward_s / n,
                spent.backward_s / n,
                spent.update_s / n,
            )
            for spent in self.segments
        ]
        on_clock_s = sum(spent.wait_s + spent.forward_s + spent.backward_s for spent in segments)
        on_clock_s += sum(spent.update_s for spent, apart in zip(segments, updates_apart, strict=True) if not apart)
        return {
            "name": name,
            "steps": self.num_steps,
            "counted_steps": n,
            "step_s": self.seconds / n,
            "rest_s": self.seconds / n - on_clock_s,
            "read_bytes": sum_by_kind(spent.read_bytes for spent in segments),
            "written_bytes": sum_by_kind(spent.written_bytes for spent in segments),
            "sent_bytes": sum_by_kind(spent.sent_bytes for spent in segments),
            "brought_bytes": sum_by_kind(spent.brought_bytes for spent in segments),
            "segments": [asdict(spent) for spent in segments],
        }


@dataclass
class Measured:
    """The steps of each phase in this process."""

    store: Store
    streaming: Streaming
    works: dict[str, Steps] = field(default_factory=dict)

    @contextmanager
    def step(self, work: str) -> Iterator[None]:
        """Counts what happens while it lasts; a step that fails is not counted."""
        before, started_s = self.so_far(), time.perf_counter()
        yield
        seconds, spent = time.perf_counter() - started_s, self.so_far()
        for each, old in zip(spent, before, strict=True):
            each.add(old, times=-1)
        self.works.setdefault(work, Steps()).add(seconds, spent)

    def so_far(self) -> list[Spent]:
        """Everything since the store was made, by segment. Nothing may be fetching."""
        clock = self.streaming.clock
        traffic = self.store.traffic.segments
        return [
            Spent(
                dict(traffic[i].read),
                dict(traffic[i].written),
                dict(traffic[i].sent),
                dict(traffic[i].brought),
                clock.wait_s[i],
                clock.forward_s[i],
                clock.backward_s[i],
                state.update_s,
            )
            for i, state in enumerate(self.store.states)
        ]

    def record(self) -> list[dict[str, Any]]:
        """Per phase its mean step, plain data for plan.json."""
        apart = [placement != "device" and not self.store.eager for placement in self.store.placements]
        return [steps.mean(name, apart) for name, steps in self.works.items()]


def _mean(total: Mapping[str, int], num: int) -> dict[str, int]:
    return {kind: round(size / num) for kind, size in total.items() if size}
