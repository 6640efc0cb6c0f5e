"""A plan as lines and tables, for `headrace plan` and its relatives."""

from collections.abc import Sequence
from itertools import groupby

from headrace.params import Params
from headrace.planning.beside import Row, span
from headrace.planning.memory import size_text
from headrace.planning.plan import Plan, SegmentPlan
from headrace.progress import duration_text, say, say_table
from headrace.training.optimizers import describe_optimizer


def say_plan(plan: Plan, params: Params, vocabulary_size: int) -> None:
    for part in describe_plan(plan, params, vocabulary_size):
        if isinstance(part, str):
            say(part)
        else:
            say_table(*part)


def describe_plan(plan: Plan, params: Params, vocabulary_size: int) -> list[str | tuple[Row, list[Row]]]:
    """Lines, and tables as (head, rows)."""
    in_ram = bool(plan.needed_ram_bytes)
    parts: list[str | tuple[Row, list[Row]]] = [
        f"{plan.num_parameters:,} parameters, vocabulary {vocabulary_size:,}, on {plan.device}",
        f"Optimizer: {describe_optimizer(params)}",
        *(f"- {line}" for line in plan.why),
        "",
        (
            (
                "segment",
                "parameters",
                "placement",
                "activations",
                "in memory",
                *(["in RAM"] if in_ram else []),
                "on disk",
            ),
            [_segment_row(list(group), in_ram) for _, group in groupby(plan.segments, _same)],
        ),
        "",
        _sum_line("Memory at the most", plan.needed_bytes, plan.memory_bytes, "device.memory"),
        *([_sum_line("RAM at the most", plan.needed_ram_bytes, plan.ram_bytes, "device.ram")] if in_ram else []),
        _sum_line("Disk at the most", plan.disk_bytes, plan.disk_free_bytes, "free"),
        "",
        (
            ("", "batch", "microbatches", "FLOPs", "read", "written", "compute", "read", "write", "update", "a step"),
            [
                (
                    work.name,
                    f"{work.examples:,} x {work.length:,}",
                    f"{work.microbatches:,}",
                    f"{work.flops:.3g}",
                    size_text(sum(work.read_bytes.values())),
                    size_text(sum(work.written_bytes.values())),
                    *(f"{work.bounds_s[name]:.3g} s" for name in ("compute", "read", "write", "update")),
                    f"{work.step_s:.3g} s",
                )
                for work in plan.works
            ],
        ),
        "",
    ]
    if plan.streams:
        for work in plan.works:
            kinds = [f"{k} {size_text(n)} read" for k, n in work.read_bytes.items()]
            kinds += [f"{k} {size_text(n)} written" for k, n in work.written_bytes.items()]
            kinds += [f"{k} {size_text(n)} to the device" for k, n in work.sent_bytes.items()]
            kinds += [f"{k} {size_text(n)} back" for k, n in work.brought_bytes.items()]
            parts.append(f"{work.name}, each step: {', '.join(kinds)}")
        most = max(plan.works, key=lambda work: work.tokens_to_hide)
        parts.append(
            f"Computing hides the streaming from {most.tokens_to_hide:,} tokens a step on (this run: "
            f"{min(work.tokens for work in plan.works):,} or more)"
        )
        parts.append(f"Disk wear: {size_text(plan.written_bytes_a_day)} written a day")
    parts.append(f"{params.total_steps:,} steps: about {duration_text(plan.total_s)}, evaluations not counted")
    parts.append(
        ("Rates measured here" if plan.machine.measured else "Rates assumed, not measured (headrace plan --probe)")
        + f": {plan.machine.flops / 1e9:,.0f} GFLOP/s, read {plan.machine.read_bytes_per_s / 1e9:.2f} GB/s, write "
        f"{plan.machine.write_bytes_per_s / 1e9:.2f} GB/s, update {plan.machine.update_parameters_per_s / 1e6:,.0f} M "
        f"parameters/s" + (f", link {plan.machine.link_bytes_per_s / 1e9:.1f} GB/s" if in_ram else "")
    )
    if params.task.kind == "masked_lm":
        parts.append(
            "Every example is taken as long as the sequence length: memory is an upper bound, bytes of weights, state and "
            "gradients are exact, times are estimates"
        )
    return parts


def _same(segment: SegmentPlan) -> tuple[object, ...]:
    name = segment.name.rstrip("0123456789")
    return name, segment.num_parameters, segment.placement, segment.activations


def _segment_row(group: Sequence[SegmentPlan], in_ram: bool) -> Row:
    first, last = group[0], group[-1]
    return (
        span(first.name, last.name),
        f"{sum(s.num_parameters for s in group):,}",
        first.placement,
        first.activations,
        _kinds(group, "device_bytes"),
        *([_kinds(group, "ram_bytes")] if in_ram else []),
        _kinds(group, "disk_bytes"),
    )


def _kinds(group: Sequence[SegmentPlan], tier: str) -> str:
    total: dict[str, int] = {}
    for segment in group:
        for kind, size in getattr(segment, tier).items():
            total[kind] = total.get(kind, 0) + size
    return ", ".join(f"{kind} {size_text(size)}" for kind, size in total.items()) or "-"


def _sum_line(name: str, kinds: dict[str, int], limit_bytes: int | None, limit: str) -> str:
    of = f" of {size_text(limit_bytes)} {limit}" if limit_bytes is not None else ""
    return f"{name}: {size_text(sum(kinds.values()))}{of}: " + ", ".join(
        f"{k} {size_text(n)}" for k, n in kinds.items()
    )
