"""Choosing a way of training: placement, policy and microbatch, from sizes and a budget.

Everything is on the device where it fits. If not, every segment starts on disk; activations are kept, or else spilled, or
else recomputed, with the largest microbatch that fits; what memory is left holds gradients and then whole segments,
whichever saves more bytes a step, the first and last segments first because a pass turns around there.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from headrace.errors import UserError
from headrace.planning.memory import LOST_SHARE, Choice, Sizes, Work, size_text, with_pools
from headrace.store.files import pages
from headrace.store.store import Placement
from headrace.streaming.activations import Policy


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


def choose(
    sizes: Sizes, works: Sequence[Work], memory_bytes: int | None, wish: Wish, head: int | None
) -> tuple[Choice, list[str]]:
    """The choice, and why, in words. Raises UserError when memory does not suffice, with what would."""

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
                    filled = _stage(sizes, works, filled, fits)
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
        left = whole if memory_bytes is None else (memory_bytes - needs(choice)) * LOST_SHARE // (LOST_SHARE + 1)
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


def _stage(sizes: Sizes, works: Sequence[Work], choice: Choice, fits: Callable[[Choice], bool]) -> Choice:
    """Read the state that the next step begins with while this one ends, where that fits: of two segments, or one."""
    if not choice.streams or choice.prefetch == 0:
        return choice
    first = min((sizes.first_states(choice.placements, work)[:2] for work in works), key=len)
    for count in range(len(first), 0, -1):
        staged = replace(choice, stage_bytes=sum(first[:count]))
        if fits(staged):
            return staged
    return choice


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
