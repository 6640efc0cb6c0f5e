"""The plan of a run: where every segment lives, what is kept for backward, and what that costs, before a byte moves.

    sizes and footprints of the model, budget, disk, machine  ->  make_plan  ->  Plan (plain data, also plan.json)

The way of training is chosen in `headrace.planning.choose`; here it is said what it costs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.planning.choose import Wish, choose
from headrace.planning.machine import Machine
from headrace.planning.memory import disk_needed, host_memory_needed, memory_needed, size_text
from headrace.planning.sizes import Choice, Sizes, Work
from headrace.planning.traffic import bytes_moved, bytes_moved_by_segment
from headrace.store.placement import Placement
from headrace.streaming.activations import Policy

SECONDS_A_DAY = 86_400
INTERPRETER_BYTES = 400 << 20  # with torch and transformers, before there is a model: 0.45 GiB measured


@dataclass(frozen=True)
class SegmentPlan:
    name: str
    num_parameters: int
    placement: Placement
    activations: Policy
    device_bytes: dict[str, int]
    disk_bytes: dict[str, int]
    ram_bytes: dict[str, int] = field(default_factory=dict)
    """Host memory beside a device apart."""


@dataclass(frozen=True)
class SegmentWork:
    """A segment's share of a step."""

    read_bytes: dict[str, int]
    written_bytes: dict[str, int]
    compute_s: float
    update_s: float
    sent_bytes: dict[str, int] = field(default_factory=dict)
    """To a device apart."""
    brought_bytes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class WorkPlan:
    """What a step of one shape costs."""

    name: str
    examples: int
    length: int
    steps: int
    microbatches: int
    flops: float
    read_bytes: dict[str, int]
    written_bytes: dict[str, int]
    bounds_s: dict[str, float]
    """What each resource alone would take."""
    step_s: float
    wait_s: float
    """How much of it computing waits for the disk."""
    segments: tuple[SegmentWork, ...]
    tokens_to_hide: int
    """Tokens a step from which on computing takes longer than streaming weights and state."""
    sent_bytes: dict[str, int] = field(default_factory=dict)
    brought_bytes: dict[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        return self.examples * self.length


@dataclass(frozen=True)
class Plan:
    num_parameters: int
    device: str
    memory_bytes: int | None
    """The budget; None = not limited."""
    needed_bytes: dict[str, int]
    """Most memory at one time, by kind."""
    disk_free_bytes: int | None
    disk_bytes: dict[str, int]
    segments: tuple[SegmentPlan, ...]
    microbatch_tokens: int
    pool_bytes: int
    prefetch: int
    held_gradient_bytes: int
    stage_bytes: int
    spill_bytes: int
    works: tuple[WorkPlan, ...]
    machine: Machine
    """The rates that times were computed with."""
    why: tuple[str, ...]
    ram_bytes: int | None = None
    """The budget of host memory beside a device apart; None = not limited."""
    needed_ram_bytes: dict[str, int] = field(default_factory=dict)
    host_pool_bytes: int = 0
    spill_host_bytes: int = 0

    @property
    def placements(self) -> list[Placement]:
        return [segment.placement for segment in self.segments]

    @property
    def tidy_above_bytes(self) -> int | None:
        """When a process that keeps to the budget takes more than this, the next segment may not have room for what it
        needs beside the rest: freed memory has to go back to the system first. None = no budget, nothing streams, or to a device
        apart, where the host keeps no activations in its heap."""
        if self.memory_bytes is None or not self.streams or self.needed_ram_bytes:
            return None
        return self.memory_bytes + INTERPRETER_BYTES - self.needed_bytes.get("temporaries", 0)

    @property
    def policies(self) -> list[Policy]:
        return [segment.activations for segment in self.segments]

    @property
    def streams(self) -> bool:
        return any(place != "device" for place in self.placements)

    @property
    def needs_folder(self) -> bool:
        """Whether anything is read from disk or written to it."""
        return "disk" in self.placements or any(work.written_bytes for work in self.works)

    @property
    def total_s(self) -> float:
        return sum(work.steps * work.step_s for work in self.works)

    @property
    def written_bytes_a_day(self) -> float:
        """Of the shape that wears the disk most."""
        return max(sum(work.written_bytes.values()) / max(work.step_s, 1e-9) for work in self.works) * SECONDS_A_DAY

    def record(self) -> dict[str, Any]:
        """Plain data for plan.json."""
        return {
            **asdict(self),
            "total_s": self.total_s,
            "written_bytes_a_day": self.written_bytes_a_day,
        }


def make_plan(
    sizes: Sizes,
    works: Sequence[Work],
    *,
    memory_bytes: int | None,
    disk_free_bytes: int | None,
    machine: Machine,
    wish: Wish,
    head: int | None = None,
    device: str = "cpu",
    folder: Path | None = None,
    ram_bytes: int | None = None,
) -> Plan:
    """Choose, and say what it costs. head: the segment whose backward can follow its forward at once. folder: of
    the store, for messages.

    Raises UserError when memory or disk does not suffice, with what would.
    """
    choice, why = choose(sizes, works, memory_bytes, wish, head, ram_bytes)
    disk = _most(disk_needed(sizes, choice, work, wish.snapshots) for work in works)
    if disk_free_bytes is not None and sum(disk.values()) > disk_free_bytes:
        kept = (
            f" (training.keep = {wish.snapshots} checkpoints and one more while it is written)"
            if wish.snapshots
            else ""
        )
        raise UserError(
            f"{folder or 'store'}: the run needs {size_text(sum(disk.values()))} of disk{kept}: "
            f"{', '.join(f'{size_text(size)} {kind}' for kind, size in disk.items())}; {size_text(disk_free_bytes)} are "
            f"free. Free space, keep fewer checkpoints, or choose another folder (run.folder, device.store)"
        )
    return Plan(
        num_parameters=sum(size.num_parameters for size in sizes.sizes),
        device=device,
        memory_bytes=memory_bytes,
        needed_bytes=_most(memory_needed(sizes, choice, work) for work in works),
        disk_free_bytes=disk_free_bytes,
        disk_bytes=disk,
        segments=_segments(sizes, choice, works),
        microbatch_tokens=choice.microbatch_tokens,
        pool_bytes=choice.pool_bytes,
        prefetch=choice.prefetch,
        held_gradient_bytes=choice.held_gradient_bytes,
        stage_bytes=choice.stage_bytes,
        spill_bytes=choice.spill_bytes,
        works=tuple(_work(sizes, choice, work, machine) for work in works),
        machine=machine,
        why=tuple(why),
        ram_bytes=ram_bytes if sizes.apart(choice.placements) else None,
        needed_ram_bytes=host_memory_needed(sizes, choice),
        host_pool_bytes=choice.host_pool_bytes,
        spill_host_bytes=choice.spill_host_bytes,
    )


def _segments(sizes: Sizes, choice: Choice, works: Sequence[Work]) -> tuple[SegmentPlan, ...]:
    plans = []
    for i, size in enumerate(sizes.sizes):
        place = choice.placements[i]
        state = {"weight": size.weight_bytes, "gradient": size.gradient_bytes, "state": size.state_bytes}
        stored = {"weight": size.stored_weight_bytes, "state": size.state_bytes}
        activation_bytes = max(sizes.activation_bytes(choice, work, i) for work in works)
        plans.append(
            SegmentPlan(
                name=size.name,
                num_parameters=size.num_parameters,
                placement=choice.placements[i],
                activations=choice.policies[i],
                device_bytes={
                    k: v
                    for k, v in {**(state if place == "device" else {}), "activation": activation_bytes}.items()
                    if v
                },
                disk_bytes={k: v for k, v in stored.items() if v} if place == "disk" else {},
                ram_bytes={k: v for k, v in state.items() if v} if place == "ram" else {},
            )
        )
    return tuple(plans)


def _work(sizes: Sizes, choice: Choice, work: Work, machine: Machine) -> WorkPlan:
    moved, flops = bytes_moved(sizes, choice, work), sizes.flops(choice, work)
    segments = zip(
        sizes.sizes, bytes_moved_by_segment(sizes, choice, work), sizes.flops_by_segment(choice, work), strict=True
    )
    trainable = [(size.trainable, place) for size, place in zip(sizes.sizes, choice.placements, strict=True)]
    on_host = sum(count for count, place in trainable if place != "device")
    bounds = {
        "compute": flops / machine.flops,
        "read": moved.read_bytes / machine.read_bytes_per_s,
        "write": moved.written_bytes / machine.write_bytes_per_s,
        "update": sum(count for count, _ in trainable) / machine.update_parameters_per_s,
    }
    overlapped_s = on_host / machine.update_parameters_per_s
    # Updates of disk segments run beside the computation, on one of its cores, and so does the system's part of transfers;
    # updates of device segments come after it.
    beside_s = overlapped_s + (moved.read_bytes + moved.written_bytes) * machine.transfer_cpu_s_per_byte
    busy_s = bounds["compute"] + (bounds["update"] - overlapped_s) + beside_s / machine.cores
    if sizes.eager:  # between two segments' backwards: the computation waits for it
        written = sum(moved.written.get(kind, 0) for kind in ("weight", "state"))
        moved_s = written / machine.write_bytes_per_s + moved.read.get("state", 0) / machine.read_bytes_per_s
        # Whole parameters are read, updated and written one after the other; chunks at the same time.
        one_by_one = sizes.rule.needs_whole_parameter
        busy_s = bounds["compute"] + (bounds["update"] + moved_s if one_by_one else max(bounds["update"], moved_s))
        # What is fetched meanwhile takes the system's part of its transfers from the same cores.
        busy_s += moved.read_bytes * machine.transfer_cpu_s_per_byte / machine.cores
    if sizes.apart(choice.placements):
        bounds["link"] = moved.link_bytes / machine.link_bytes_per_s
        if sizes.device.type != "cpu" and not sizes.eager:  # the host's cores have nothing else to do
            busy_s = max(busy_s - beside_s / machine.cores, beside_s)
    step_s = max(busy_s, bounds["read"] + bounds["write"], bounds.get("link", 0.0))
    streamed_s = sum(
        (moved.read.get(kind, 0) / machine.read_bytes_per_s + moved.written.get(kind, 0) / machine.write_bytes_per_s)
        for kind in ("weight", "state", "gradient")
    )
    tokens = work.examples * work.length
    return WorkPlan(
        name=work.name,
        examples=work.examples,
        length=work.length,
        steps=work.steps,
        microbatches=sum(count for _, _, count in sizes.pieces(work, choice.microbatch_tokens)),
        flops=flops,
        read_bytes=moved.read,
        written_bytes=moved.written,
        bounds_s=bounds,
        step_s=step_s,
        wait_s=step_s - busy_s,
        segments=tuple(
            SegmentWork(
                read_bytes=own.read,
                written_bytes=own.written,
                compute_s=own_flops / machine.flops,
                update_s=size.trainable / machine.update_parameters_per_s,
                sent_bytes=own.sent,
                brought_bytes=own.brought,
            )
            for size, own, own_flops in segments
        ),
        tokens_to_hide=round(tokens * streamed_s / bounds["compute"]) if bounds["compute"] else 0,
        sent_bytes=moved.sent,
        brought_bytes=moved.brought,
    )


def brief(plan: Plan) -> list[str]:
    """The plan in a line or two, for the start of a run."""
    budget = f" of {size_text(plan.memory_bytes)}" if plan.memory_bytes is not None else ""
    first = f"Plan: {size_text(sum(plan.needed_bytes.values()))}{budget} memory, {'; '.join(plan.why)}"
    if not plan.streams:
        return [first]
    work = max(plan.works, key=lambda work: work.steps * work.step_s)
    return [
        first,
        f"Plan: a step of {work.examples:,} x {work.length:,} tokens reads {size_text(sum(work.read_bytes.values()))} and "
        f"writes {size_text(sum(work.written_bytes.values()))}; about {work.step_s:,.3g} s "
        f"({', '.join(f'{name} {s:.2g}' for name, s in work.bounds_s.items())} s)",
    ]


def _most(tables: Iterator[dict[str, int]]) -> dict[str, int]:
    """The table with the largest sum."""
    return max(tables, key=lambda table: sum(table.values()))
