"""The plan of a run: where every segment lives, what is kept for backward, and what that costs, before a byte moves.

    sizes and footprints of the model, budget, disk, machine  ->  make_plan  ->  Plan (plain data, also plan.json)

Everything is on the device where it fits. If not, every segment starts on disk; activations are kept, or else spilled, or
else recomputed, with the largest microbatch that fits; what memory is left holds gradients and then whole segments,
whichever saves more bytes a step, the first and last segments first because a pass turns around there.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from headrace.errors import UserError
from headrace.planning.machine import Machine
from headrace.planning.memory import Choice, Sizes, Work, with_pools
from headrace.store.files import pages
from headrace.store.store import Placement
from headrace.streaming.activations import Policy

SECONDS_A_DAY = 86_400


@dataclass(frozen=True)
class Wish:
    """What the user decided; the rest is chosen."""

    placement: Literal["auto", "device", "disk"] = "auto"
    activations: Literal["auto", "keep", "spill", "recompute"] = "auto"
    microbatch_tokens: int | None = None
    most_microbatch_tokens: int = 4096
    prefetch: int = 1
    snapshots: int = 0
    """Checkpoints that are kept."""


@dataclass(frozen=True)
class SegmentPlan:
    name: str
    num_parameters: int
    placement: Placement
    activations: Policy
    device_bytes: dict[str, int]
    disk_bytes: dict[str, int]


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
    tokens_to_hide: int
    """Tokens a step from which on computing takes longer than streaming weights and state."""

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
    spill_bytes: int
    works: tuple[WorkPlan, ...]
    machine: Machine
    """The rates that times were computed with."""
    why: tuple[str, ...]

    @property
    def placements(self) -> list[Placement]:
        return [segment.placement for segment in self.segments]

    @property
    def policies(self) -> list[Policy]:
        return [segment.activations for segment in self.segments]

    @property
    def streams(self) -> bool:
        return "disk" in self.placements

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
    wish: Wish = Wish(),
    head: int | None = None,
    device: str = "cpu",
    folder: Path | None = None,
) -> Plan:
    """Choose, and say what it costs. head: the segment whose backward can follow its forward at once. folder: of
    the store, for messages.

    Raises UserError when memory or disk does not suffice, with what would.
    """
    choice, why = _choose(sizes, works, memory_bytes, wish, head)
    disk = _most(sizes.disk_bytes(choice, work, wish.snapshots) for work in works)
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
        needed_bytes=_most(sizes.memory(choice, work) for work in works),
        disk_free_bytes=disk_free_bytes,
        disk_bytes=disk,
        segments=_segments(sizes, choice, works),
        microbatch_tokens=choice.microbatch_tokens,
        pool_bytes=choice.pool_bytes,
        prefetch=choice.prefetch,
        held_gradient_bytes=choice.held_gradient_bytes,
        spill_bytes=choice.spill_bytes,
        works=tuple(_work(sizes, choice, work, machine) for work in works),
        machine=machine,
        why=tuple(why),
    )


# ---- choosing


def _choose(
    sizes: Sizes, works: Sequence[Work], memory_bytes: int | None, wish: Wish, head: int | None
) -> tuple[Choice, list[str]]:
    def needs(choice: Choice) -> int:
        return max(sum(sizes.memory(choice, work).values()) for work in works)

    def fits(choice: Choice) -> bool:
        return memory_bytes is None or needs(choice) <= memory_bytes

    all_tokens = list(_microbatches(works, wish))
    smallest: list[int] = []
    resident_bytes = 0
    if wish.placement != "disk":
        here: list[Placement] = ["device"] * len(sizes.sizes)
        policies: list[Policy] = ["keep"] if wish.activations == "auto" else [wish.activations]
        for policy in policies:
            for tokens in all_tokens:
                choice = _choice(sizes, works, here, policy, tokens, None, 0)
                resident_bytes = resident_bytes or needs(choice)
                if fits(choice):
                    return choice, [
                        f"everything on the device: {size_text(needs(choice))} needed"
                        + (f", {size_text(memory_bytes)} there" if memory_bytes is not None else ""),
                        *_microbatch_why(tokens, all_tokens, wish),
                    ]
                smallest.append(needs(choice))
    if wish.placement != "device":
        on_disk = _everything_on_disk(sizes)
        policies = ["keep", "spill", "recompute"] if wish.activations == "auto" else [wish.activations]
        # Fetching ahead hides the disk, so any policy with it comes before any without.
        ways: list[tuple[Policy, int]] = [(policy, p) for policy in policies for p in range(wish.prefetch, 0, -1)]
        for policy, prefetch in [*ways, *((policy, 0) for policy in policies)]:
            for tokens in all_tokens:
                choice = _choice(sizes, works, on_disk, policy, tokens, head, prefetch)
                if fits(choice):
                    kept = 0
                    if policy == "spill" and wish.activations == "auto":
                        # The last segments' activations are needed first: keep as many as fit. A byte of memory
                        # saves one written and one read, more than gradients or weights do.
                        kept = bisect_right(
                            range(1, len(on_disk) + 1),
                            False,
                            key=lambda n: (
                                not fits(_choice(sizes, works, on_disk, policy, tokens, head, prefetch, kept=n))
                            ),
                        )
                        choice = _choice(sizes, works, on_disk, policy, tokens, head, prefetch, kept=kept)
                    filled = _fill(
                        sizes, works, choice, memory_bytes, needs, wish.placement == "auto", policy, head, kept
                    )
                    return filled, _streamed_why(filled, policy, policies, tokens, all_tokens, wish, resident_bytes)
                smallest.append(needs(choice))
    raise UserError(
        f"the run needs at least {size_text(min(smallest), up=True)} of memory"
        + (f" with device.placement = {wish.placement}" if wish.placement != "auto" else "")
        + (f" and device.activations = {wish.activations}" if wish.activations != "auto" else "")
        + f", and device.memory is {size_text(memory_bytes or 0)}. Give it that, "
        + (
            "leave the placement to `auto`, "
            if wish.placement == "device"
            else "leave the activations to `auto`, "
            if wish.activations != "auto"
            else ""
        )
        + "shorten training.phases.N.sequence_length, or take a smaller model"
    )


def _microbatches(works: Sequence[Work], wish: Wish) -> Iterator[int]:
    """Microbatch sizes in tokens, from the largest to one example."""
    if wish.microbatch_tokens:
        yield wish.microbatch_tokens
        return
    tokens = wish.most_microbatch_tokens
    shortest = min(work.length for work in works)
    while tokens > shortest:
        yield tokens
        tokens = max(tokens // 2, shortest)
    yield shortest


def _everything_on_disk(sizes: Sizes) -> list[Placement]:
    """Segments without weights of their own, or used between segments, stay at hand."""
    return [
        "disk" if size.num_parameters and segment.modules else "device"
        for size, segment in zip(sizes.sizes, sizes.segments, strict=True)
    ]


def _choice(
    sizes: Sizes,
    works: Sequence[Work],
    placements: Sequence[Placement],
    policy: Policy,
    tokens: int,
    head: int | None,
    prefetch: int,
    kept: int = 0,
) -> Choice:
    """kept: how many of the last segments keep what they would spill."""
    policies: list[Policy] = [policy] * len(placements)
    for i in range(len(policies) - kept, len(policies)):
        policies[i] = "keep"
    for i, place in enumerate(placements):
        if i == head:
            policies[i] = "at_once"
        elif policy == "spill" and place == "device":
            policies[i] = "keep"  # weights that are here would be spilled, too
    return with_pools(sizes, Choice(tuple(placements), tuple(policies), tokens), works, prefetch)


def _fill(
    sizes: Sizes,
    works: Sequence[Work],
    choice: Choice,
    memory_bytes: int | None,
    needs: Callable[[Choice], int],
    with_segments: bool,
    policy: Policy,
    head: int | None,
    kept: int,
) -> Choice:
    """Give what memory is left to gradients and segments: the mix that moves the fewest bytes a step."""

    def held(choice: Choice) -> Choice:
        if sizes.eager:
            return choice
        whole = sum(pages(s.gradient_bytes) for s, p in zip(sizes.sizes, choice.placements, strict=True) if p == "disk")
        left = whole if memory_bytes is None else memory_bytes - needs(choice)
        return replace(choice, held_gradient_bytes=min(left, whole))

    def moved(choice: Choice) -> int:
        moved = [sizes.moved(choice, work) for work in works]
        return sum((m.read_bytes + m.written_bytes) * work.steps for m, work in zip(moved, works, strict=True))

    best = held(choice)
    least = moved(best)
    if memory_bytes is None or not with_segments:
        return best
    alone = choice.pool_bytes <= max(sizes.pool_bytes(choice.placements, work, 0) for work in works)
    placements = list(choice.placements)
    last = len(placements) - 1
    for i in dict.fromkeys(i for k in range(len(placements)) for i in (k, last - k)):
        if placements[i] == "device":
            continue
        placements[i] = "device"
        more = _choice(
            sizes, works, placements, policy, choice.microbatch_tokens, head, 0 if alone else choice.prefetch, kept
        )
        if needs(more) > memory_bytes:
            placements[i] = "disk"
            continue
        more = held(more)
        if moved(more) <= least:
            best, least = more, moved(more)
    return best


def _microbatch_why(tokens: int, all_tokens: list[int], wish: Wish) -> list[str]:
    if wish.microbatch_tokens:
        return [f"microbatch of {tokens:,} tokens, as training.microbatch_tokens says"]
    if tokens == all_tokens[0]:
        return [f"microbatch of up to {tokens:,} tokens, the default"]
    return [f"microbatch of up to {tokens:,} tokens: the largest that fits"]


def _streamed_why(
    choice: Choice,
    policy: Policy,
    policies: list[Policy],
    tokens: int,
    all_tokens: list[int],
    wish: Wish,
    resident_bytes: int,
) -> list[str]:
    num_disk = choice.placements.count("disk")
    reason = "device.placement says so" if wish.placement == "disk" else f"all would need {size_text(resident_bytes)}"
    lines = [f"{num_disk} of {len(choice.placements)} segments on disk: {reason}"]
    before = policies[: policies.index(policy)]
    lines.append(f"activations: {policy}" + (f" ({' and '.join(before)} would not fit)" if before else ""))
    return lines + _microbatch_why(tokens, all_tokens, wish)


# ---- what it costs


def _segments(sizes: Sizes, choice: Choice, works: Sequence[Work]) -> tuple[SegmentPlan, ...]:
    plans = []
    for i, size in enumerate(sizes.sizes):
        here = choice.placements[i] == "device"
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
                    k: v for k, v in {**(state if here else {}), "activation": activation_bytes}.items() if v
                },
                disk_bytes={} if here else {k: v for k, v in stored.items() if v},
            )
        )
    return tuple(plans)


def _work(sizes: Sizes, choice: Choice, work: Work, machine: Machine) -> WorkPlan:
    moved, flops = sizes.moved(choice, work), sizes.flops(choice, work)
    trainable = [(size.trainable, place) for size, place in zip(sizes.sizes, choice.placements, strict=True)]
    on_disk = sum(count for count, place in trainable if place == "disk")
    bounds = {
        "compute": flops / machine.flops,
        "read": moved.read_bytes / machine.read_bytes_per_s,
        "write": moved.written_bytes / machine.write_bytes_per_s,
        "update": sum(count for count, _ in trainable) / machine.update_parameters_per_s,
    }
    overlapped_s = on_disk / machine.update_parameters_per_s
    # Updates of disk segments run beside the computation, on one of its cores; those of device segments after it.
    busy_s = bounds["compute"] + (bounds["update"] - overlapped_s) + overlapped_s / machine.cores
    if sizes.eager:  # between two segments' backwards, with the writing waited for
        written = sum(moved.written.get(kind, 0) for kind in ("weight", "state"))
        busy_s = bounds["compute"] + bounds["update"] + written / machine.write_bytes_per_s
    step_s = max(busy_s, bounds["read"] + bounds["write"])
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
        tokens_to_hide=round(tokens * streamed_s / bounds["compute"]) if bounds["compute"] else 0,
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


def size_text(num_bytes: float, up: bool = False) -> str:
    """As people write it: 3.2 GiB. up: rounded so that the number suffices."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            value = num_bytes / size
            digits = 0 if value >= 100 else 1 if value >= 10 else 2
            if up:
                value += 0.5 * 10**-digits
            return f"{value:,.{digits}f} {unit}"
    return f"{num_bytes:,.0f} bytes"
