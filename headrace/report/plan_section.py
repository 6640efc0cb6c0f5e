"""The section that shows the plan beside what was measured: a step of each phase, then segment by segment.

plan.json (`headrace.planning`: the plan, and under "measured" the mean step of each phase)  ->  a section
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from headrace.planning.beside import Line, Pair, PhaseBeside, beside, seconds_text, steps_text
from headrace.planning.memory import size_text
from headrace.report.pieces import fact_list, table


def plan_section(plan: Mapping[str, Any]) -> str:
    """plan: what plan.json holds. Empty where there is no plan, or one of an earlier version."""
    try:
        phases = beside(plan)
        tiers = _tiers(plan)
        rates = "measured on this machine" if plan["machine"]["measured"] else "assumed, not measured"
    except (KeyError, TypeError, ValueError, AttributeError):
        return ""
    streamed = [phase for phase in phases if phase.segments_streamed]
    return (
        '<section class="beside"><h2>Plan and measurement</h2><p>What a step was to move and to take, as planned before the run '
        f"with rates {rates} (grey), and what it did. Examples are planned as long as the phase allows; shorter ones take "
        f"less.{_counted(phases)}</p>{_totals(phases)}{tiers}"
        f"{_by_segment(streamed)}</section>"
    )


def _counted(phases: Sequence[PhaseBeside]) -> str:
    if not phases:
        return " Nothing is measured yet."
    if all(phase.counted_steps == phase.steps for phase in phases):
        return ""
    return " The step after a start or a checkpoint has no update to do and is left out."


def _totals(phases: Sequence[PhaseBeside]) -> str:
    if not phases:
        return ""
    streams = any(phase.segments_streamed for phase in phases)
    headings = ["Phase", "Batch", "Steps", "A step"]
    headings += ["Read", "Written", "Waiting", "Computing", "Updating"] if streams else []
    rows = []
    for phase in phases:
        row = [
            str(phase.number + 1),
            f"{phase.examples:,} × {phase.length:,}",
            f'<span title="{escape(steps_text(phase))}">{phase.counted_steps:,}</span>',
            f"<b>{seconds_text(phase.step_s.measured)}</b>{_planned(seconds_text(phase.step_s.planned))}",
        ]
        if streams:
            row += [
                _bytes(phase.total.read_bytes),
                _bytes(phase.total.written_bytes),
                _seconds(phase.wait_s),
                _seconds(phase.total.compute_s),
                _seconds(phase.total.update_s),
            ]
        rows.append(row)
    return table(headings, rows)


def _tiers(plan: Mapping[str, Any]) -> str:
    """What is where, at the most, by kind."""
    memory, disk = plan["needed_bytes"], plan["disk_bytes"]
    place = "memory" if plan["device"] == "cpu" else f"{plan['device']} memory"
    columns = [_tier(f"In {place} at the most, as planned", memory, plan["memory_bytes"], "to use")]
    if plan.get("needed_ram_bytes"):
        columns.append(_tier("In RAM at the most, as planned", plan["needed_ram_bytes"], plan["ram_bytes"], "to use"))
    if disk:
        columns.append(_tier("On disk at the most, as planned", disk, plan["disk_free_bytes"], "free"))
    return f'<div class="two">{"".join(columns)}</div>'


def _tier(title: str, kinds: Mapping[str, int], limit_bytes: int | None, limit: str) -> str:
    of = f" of {size_text(limit_bytes)} {limit}" if limit_bytes is not None else ""
    rows = [(escape(kind.capitalize()), size_text(size)) for kind, size in kinds.items()]
    rows.append(("Together", f"<b>{size_text(sum(kinds.values()))}</b>{of}"))
    return f"<div><h3>{escape(title)}</h3>{fact_list(rows)}</div>"


def _by_segment(phases: Sequence[PhaseBeside]) -> str:
    """A table a phase; the one that took longest is open."""
    if not phases:
        return ""
    longest = max(phases, key=lambda phase: phase.steps * phase.step_s.measured)
    parts = [
        "<h3>Segment by segment</h3><p>Means of a step, and in grey the plan where it differs. Updates of segments on disk "
        "run beside the computing, on the thread that fetches, unless there is no norm to wait for.</p>"
        '<div class="legend"><span><i class="wait"></i>waiting for the disk</span><span><i class="compute"></i>computing, '
        'forward and backward</span><span><i class="update"></i>updating</span></div>'
    ]
    for phase in phases:
        opened = " open" if phase is longest else ""
        batch = f"{phase.examples:,} × {phase.length:,} tokens, {steps_text(phase)}"
        parts.append(
            f"<details{opened}><summary>Phase {phase.number + 1}: {escape(batch)}</summary>{_segments(phase)}</details>"
        )
    return "".join(parts)


def _segments(phase: PhaseBeside) -> str:
    most_s = max(max(line.wait_s + line.compute_s.measured, line.update_s.measured) for line in phase.segments)
    rows = [_row(line, _bar(line, most_s)) for line in phase.segments]
    rows.append(_row(phase.rest, "between segments, and the gradients’ norm"))
    rows.append(_row(phase.total, f"<b>{seconds_text(phase.step_s.measured)}</b> a step", total=True))
    return table(["Segment", "On", "Activations", "Read", "Written", "Waiting", "Computing", "Updating", ""], rows)


def _row(line: Line, last: str, total: bool = False) -> list[str]:
    name = escape(line.name)
    return [
        f"<b>{name}</b>" if total else name,
        escape(line.placement),
        escape(line.activations.replace("_", " ")),
        _bytes(line.read_bytes),
        _bytes(line.written_bytes),
        seconds_text(line.wait_s) if line.wait_s else "–",
        _seconds(line.compute_s),
        _seconds(line.update_s),
        last,
    ]


def _bar(line: Line, most_s: float) -> str:
    """Above what the computing thread did, below the update, as shares of the longest."""

    def width(seconds: float) -> str:
        return f"{100 * max(seconds, 0.0) / max(most_s, 1e-9):.1f}%"

    return (
        f'<span class="spent"><span><i class="wait" style="width:{width(line.wait_s)}"></i>'
        f'<i class="compute" style="width:{width(line.compute_s.measured)}"></i></span>'
        f'<span><i class="update" style="width:{width(line.update_s.measured)}"></i></span></span>'
    )


def _bytes(pair: Pair) -> str:
    if not any(pair):
        return "–"
    return size_text(pair.measured) + ("" if pair.measured == pair.planned else _planned(size_text(pair.planned)))


def _seconds(pair: Pair) -> str:
    return seconds_text(pair.measured) + _planned(seconds_text(pair.planned)) if any(pair) else "–"


def _planned(text: str) -> str:
    return f"<small>{text}</small>"
