"""Choosing a way of training: placement, policy and microbatch, from sizes and a budget.

Everything is on the device where it fits. If not, every segment starts on disk (beside a GPU in host memory where they all
fit); activations are kept, or else spilled, or
else recomputed, with the largest microbatch that fits; what memory is left holds gradients and then whole segments,
whichever saves more bytes a step, the first and last segments first because a pass turns around there. Beside a GPU segments
then move from disk to host memory in the same order, as many as device.ram holds; on a CPU, where the two are one memory, only
placement `ram` does so, as the GPU's twin.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from headrace.errors import UserError
from headrace.planning.memory import LOST_SHARE, host_memory_needed, memory_needed, size_text
from headrace.planning.sizes import Choice, Sizes, Work, with_pools
from headrace.planning.traffic import bytes_moved, record_bytes
from headrace.store.files import pages
from headrace.store.placement import Placement
from headrace.streaming.activations import Policy


@dataclass(frozen=True)
class Wish:
    """What the user decided; the rest is chosen."""

    placement: Literal["auto", "device", "ram", "disk"] = "auto"
    activations: Literal["auto", "keep", "spill", "recompute"] = "auto"
    microbatch_tokens: int | None = None
    most_microbatch_tokens: int = 4096
    prefetch: int = 1
    snapshots: int = 0
    """Checkpoints that are kept."""


def choose(
    sizes: Sizes,
    works: Sequence[Work],
    memory_bytes: int | None,
    wish: Wish,
    head: int | None,
    ram_bytes: int | None = None,
) -> tuple[Choice, list[str]]:
    """The choice, and why, in words. ram_bytes: of the host, beside a device apart. Raises UserError when memory does not
    suffice, with what would."""

    def needs(choice: Choice) -> int:
        return max(sum(memory_needed(sizes, choice, work).values()) for work in works)

    def fits(choice: Choice) -> bool:
        on_device = memory_bytes is None or needs(choice) <= memory_bytes
        return on_device and (ram_bytes is None or sum(host_memory_needed(sizes, choice).values()) <= ram_bytes)

    def note(choice: Choice) -> None:
        if memory_bytes is not None and needs(choice) > memory_bytes:
            smallest.append(needs(choice))
        else:
            smallest_host.append(sum(host_memory_needed(sizes, choice).values()))

    all_tokens = list(_microbatches(works, wish))
    smallest: list[int] = []
    smallest_host: list[int] = []
    resident_bytes = 0
    if wish.placement in ("auto", "device"):
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
        tiers: list[Placement] = ["ram"] if wish.placement == "ram" else ["disk"]
        if wish.placement == "auto" and sizes.device.type != "cpu":
            tiers = ["ram", "disk"]
        policies = ["keep", "spill", "recompute"] if wish.activations == "auto" else [wish.activations]
        # Fetching ahead hides the disk, so any policy with it comes before any without.
        ways: list[tuple[Policy, int]] = [(policy, p) for policy in policies for p in range(wish.prefetch, 0, -1)]
        ways.extend((policy, 0) for policy in policies)
        for start, (policy, prefetch) in product([_everything_in(sizes, tier) for tier in tiers], ways):
            for tokens in all_tokens:
                choice = _choice(sizes, works, start, policy, tokens, head, prefetch)
                if fits(choice):
                    kept = 0
                    if policy == "spill" and wish.activations == "auto":
                        # The last segments' activations are needed first: keep as many as fit. A byte of memory
                        # saves one written and one read, more than gradients or weights do.
                        kept = bisect_right(
                            range(1, len(start) + 1),
                            False,
                            key=lambda n: (
                                not fits(_choice(sizes, works, start, policy, tokens, head, prefetch, kept=n))
                            ),
                        )
                        choice = _choice(sizes, works, start, policy, tokens, head, prefetch, kept=kept)
                    budget = Budget(memory_bytes, ram_bytes, needs, fits)
                    filled = _fill(sizes, works, choice, budget, wish.placement == "auto", policy, head, kept)
                    filled = _stage(sizes, works, filled, fits)
                    filled = _keep_on_host(sizes, works, filled, ram_bytes)
                    return filled, _streamed_why(filled, policy, policies, tokens, all_tokens, wish, resident_bytes)
                note(choice)
    if smallest_host:
        raise UserError(
            f"the run needs at least {size_text(min(smallest_host), up=True)} of host memory"
            + (f" with device.placement = {wish.placement}" if wish.placement != "auto" else "")
            + f", and device.ram is {size_text(ram_bytes or 0)}. Give it that, "
            + ("leave the placement to `auto` or `disk`, " if wish.placement == "ram" else "")
            + "or take a smaller model"
        )
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


@dataclass(frozen=True)
class Budget:
    memory_bytes: int | None
    ram_bytes: int | None
    needs: Callable[[Choice], int]
    """Of `memory_bytes`."""
    fits: Callable[[Choice], bool]
    """Both."""


def _everything_in(sizes: Sizes, tier: Placement) -> list[Placement]:
    """Segments without weights of their own, or used between segments, stay at hand."""
    return [
        tier if size.num_parameters and segment.modules else "device"
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
    budget: Budget,
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
        if sizes.apart(choice.placements):
            limit, used = budget.ram_bytes, sum(host_memory_needed(sizes, choice).values())
        else:
            limit, used = budget.memory_bytes, budget.needs(choice)
        left = whole if limit is None else (limit - used) * LOST_SHARE // (LOST_SHARE + 1)
        return replace(choice, held_gradient_bytes=min(left, whole))

    def moved(choice: Choice) -> tuple[int, int]:
        """To and from disk; where that is equal, over the link to a device apart."""
        moved = [(bytes_moved(sizes, choice, work), work.steps) for work in works]
        return sum((m.read_bytes + m.written_bytes) * n for m, n in moved), sum(m.link_bytes * n for m, n in moved)

    best = held(choice)
    least = moved(best)
    if not with_segments or (budget.memory_bytes is None and budget.ram_bytes is None):
        return best
    tiers: list[Placement] = ["device", "ram"] if sizes.apart(choice.placements) else ["device"]
    alone = choice.pool_bytes <= max(sizes.pool_bytes(choice.placements, work, 0) for work in works)
    placements = list(choice.placements)
    last = len(placements) - 1
    from_the_turns = list(dict.fromkeys(i for k in range(len(placements)) for i in (k, last - k)))
    for tier, i in product(tiers, from_the_turns):
        before = placements[i]
        if before in ("device", tier):
            continue
        placements[i] = tier
        more = _choice(
            sizes, works, placements, policy, choice.microbatch_tokens, head, 0 if alone else choice.prefetch, kept
        )
        if not budget.fits(more):
            placements[i] = before
            continue
        more = held(more)
        if moved(more) <= least:
            best, least = more, moved(more)
    return best


def _stage(sizes: Sizes, works: Sequence[Work], choice: Choice, fits: Callable[[Choice], bool]) -> Choice:
    """Read the state that the next step begins with while this one ends, where that fits: of two segments, or one."""
    if not choice.streams or choice.prefetch == 0:
        return choice
    first = min((_up_to_two(sizes.first_states(choice.placements, work)) for work in works), key=len)
    for count in range(len(first), 0, -1):
        staged = replace(choice, stage_bytes=sum(first[:count]))
        if fits(staged):
            return staged
    return choice


def _up_to_two(state_bytes: Sequence[int]) -> list[int]:
    """The first ones with at most two that are not 0: frozen segments have no state to wait for."""
    with_state = [i for i, size in enumerate(state_bytes) if size]
    return list(state_bytes[: with_state[2]] if len(with_state) > 2 else state_bytes)


def _keep_on_host(sizes: Sizes, works: Sequence[Work], choice: Choice, ram_bytes: int | None) -> Choice:
    """Leave spilled activations in host memory, as many as there is room for."""
    if not sizes.apart(choice.placements):
        return choice
    most = max(record_bytes(sizes, choice, work) for work in works)
    left = most if ram_bytes is None else ram_bytes - sum(host_memory_needed(sizes, choice).values())
    return replace(choice, spill_host_bytes=min(most, left))


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
    tiers: list[tuple[Placement, str]] = [("ram", "in host memory"), ("disk", "on disk")]
    counts = [
        f"{n} of {len(choice.placements)} segments {place}" for t, place in tiers if (n := choice.placements.count(t))
    ]
    chosen = wish.placement in ("ram", "disk")
    reason = "device.placement says so" if chosen else f"all would need {size_text(resident_bytes)}"
    lines = [f"{', '.join(counts)}: {reason}"]
    before = policies[: policies.index(policy)]
    lines.append(f"activations: {policy}" + (f" ({' and '.join(before)} would not fit)" if before else ""))
    return lines + _microbatch_why(tokens, all_tokens, wish)
