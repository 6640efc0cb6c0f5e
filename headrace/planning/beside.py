"""Plan and measurement side by side, by segment, from the data of plan.json: for the log and for the report."""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from headrace.planning.memory import size_text

Row = tuple[str, ...]


class Pair(NamedTuple):
    planned: float
    measured: float


@dataclass(frozen=True)
class Line:
    """What a segment takes in a step; or several together, or what belongs to none."""

    name: str
    placement: str
    activations: str
    read_bytes: Pair
    written_bytes: Pair
    wait_s: float
    """Measured; how waiting spreads over segments is not planned."""
    compute_s: Pair
    """Forward and backward, with what is computed again."""
    update_s: Pair


@dataclass(frozen=True)
class PhaseBeside:
    """A phase's mean step."""

    number: int
    """From 0."""
    name: str
    examples: int
    length: int
    steps: int
    counted_steps: int
    """Steps that did every update; the others are left out."""
    segments: tuple[Line, ...]
    rest: Line
    """Between segments, the gradients' norm, and what else no segment's clock saw."""
    total: Line
    """Sum of segments and rest."""
    wait_s: Pair
    step_s: Pair

    @property
    def segments_streamed(self) -> bool:
        return any(line.placement != "device" for line in self.segments)


def beside(record: Mapping[str, Any]) -> list[PhaseBeside]:
    """The phases that were measured. record: what plan.json holds; raises KeyError or TypeError where it holds less."""
    measured = {found["name"]: found for found in record.get("measured", ())}
    return [
        _phase(number, record["segments"], work, measured[work["name"]])
        for number, work in enumerate(record["works"])
        if work["name"] in measured
    ]


def _phase(number: int, segments: Sequence[Any], plan: Mapping[str, Any], found: Mapping[str, Any]) -> PhaseBeside:
    lines = []
    for segment, own, spent in zip(segments, plan["segments"], found["segments"], strict=True):
        lines.append(
            Line(
                name=segment["name"],
                placement=segment["placement"],
                activations=segment["activations"],
                read_bytes=Pair(sum(own["read_bytes"].values()), sum(spent["read_bytes"].values())),
                written_bytes=Pair(sum(own["written_bytes"].values()), sum(spent["written_bytes"].values())),
                wait_s=spent["wait_s"],
                compute_s=Pair(own["compute_s"], spent["forward_s"] + spent["backward_s"]),
                update_s=Pair(own["update_s"], spent["update_s"]),
            )
        )
    between_s = plan["bounds_s"]["compute"] - sum(line.compute_s.planned for line in lines)
    none = Pair(0, 0)
    rest = Line("rest", "", "", none, none, 0.0, Pair(max(between_s, 0.0), found["rest_s"]), none)
    total = replace(_joined("a step", [*lines, rest], sum), placement="", activations="")
    return PhaseBeside(
        number=number,
        name=plan["name"],
        examples=plan["examples"],
        length=plan["length"],
        steps=found["steps"],
        counted_steps=found["counted_steps"],
        segments=tuple(lines),
        rest=rest,
        total=total,
        wait_s=Pair(plan["wait_s"], total.wait_s),
        step_s=Pair(plan["step_s"], found["step_s"]),
    )


def folded(lines: Sequence[Line]) -> Iterator[tuple[int, Line]]:
    """Neighbours that are planned alike as one line, their median, and how many they are."""
    for _, group in groupby(lines, _kind):
        alike = list(group)
        yield len(alike), _joined(span(alike[0].name, alike[-1].name), alike, statistics.median)


def span(first: str, last: str) -> str:
    """Names from the first to the last."""
    return first if first == last else f"{first} to {last}"


def _kind(line: Line) -> tuple[object, ...]:
    planned = (line.read_bytes.planned, line.written_bytes.planned, line.compute_s.planned, line.update_s.planned)
    return line.name.rstrip("0123456789"), line.placement, line.activations, planned


def _joined(name: str, lines: Sequence[Line], join: Callable[[list[float]], float]) -> Line:
    def pair(pairs: Sequence[Pair]) -> Pair:
        return Pair(join([each.planned for each in pairs]), join([each.measured for each in pairs]))

    return Line(
        name,
        lines[0].placement,
        lines[0].activations,
        pair([line.read_bytes for line in lines]),
        pair([line.written_bytes for line in lines]),
        join([line.wait_s for line in lines]),
        pair([line.compute_s for line in lines]),
        pair([line.update_s for line in lines]),
    )


# ---- in words


def describe_phase(phase: PhaseBeside, assumed_rates: bool) -> list[str | tuple[Row, list[Row]]]:
    """A line of totals; where something streams also a table, as (head, rows)."""
    rates = ", with assumed rates" if assumed_rates else ""
    first = (
        f"{phase.name}, a step of {phase.examples:,} x {phase.length:,} tokens: "
        f"{seconds_text(phase.step_s.measured)} (planned {seconds_text(phase.step_s.planned)}{rates})"
    )
    if not phase.segments_streamed:
        return [f"{first}, the mean of {phase.counted_steps:,}"]
    lines = list(folded(phase.segments))
    rows = [_row(line, f"{count:,} x" if count > 1 else "") for count, line in lines]
    return [
        f"{first}; read {_bytes_text(phase.total.read_bytes, 'planned ')}, written "
        f"{_bytes_text(phase.total.written_bytes, 'planned ')}; {steps_text(phase)}. Planned in brackets where it differs; "
        f"of segments that are alike the median",
        (
            ("", "segment", "on", "activations", "read", "written", "wait", "compute", "update"),
            [*rows, _row(phase.rest), _row(phase.total, wait_s=phase.wait_s)],
        ),
    ]


def steps_text(phase: PhaseBeside) -> str:
    if phase.counted_steps == phase.steps:
        return f"mean of {phase.steps:,} steps"
    return f"mean of {phase.counted_steps:,} of {phase.steps:,} steps, those with every update to do"


def seconds_text(seconds: float) -> str:
    """As people write it: 1.23 s, 45.6 ms, 0.01 ms, 0 s."""
    if not seconds:
        return "0 s"
    value, unit = (seconds, "s") if abs(seconds) >= 0.9995 else (1000 * seconds, "ms")
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:,.{digits}f} {unit}"


def _row(line: Line, count: str = "", wait_s: Pair | None = None) -> Row:
    return (
        count,
        line.name,
        line.placement,
        line.activations,
        _bytes_text(line.read_bytes) if any(line.read_bytes) else "-",
        _bytes_text(line.written_bytes) if any(line.written_bytes) else "-",
        _seconds_pair(wait_s) if wait_s else seconds_text(line.wait_s) if line.wait_s else "-",
        _seconds_pair(line.compute_s),
        _seconds_pair(line.update_s),
    )


def _bytes_text(pair: Pair, word: str = "") -> str:
    found = size_text(pair.measured)
    return found if pair.measured == pair.planned else f"{found} ({word}{size_text(pair.planned)})"


def _seconds_pair(pair: Pair) -> str:
    return f"{seconds_text(pair.measured)} ({seconds_text(pair.planned)})" if any(pair) else "-"
