"""How many bytes a step moves: exact, and tested against the store's own count.

Added up in the order in which segments are fetched and gradients finished.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace.planning.footprint import Footprint, ModelFootprint
from headrace.planning.sizes import Choice, Sizes, Work
from headrace.store.files import pages
from headrace.store.traffic import sum_by_kind


@dataclass(frozen=True)
class Moved:
    """Bytes a step reads from disk and writes to it, sends to a device apart and brings back, by kind: of a segment, or of
    all."""

    read: dict[str, int] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    sent: dict[str, int] = field(default_factory=dict)
    brought: dict[str, int] = field(default_factory=dict)

    @property
    def read_bytes(self) -> int:
        return sum(self.read.values())

    @property
    def written_bytes(self) -> int:
        return sum(self.written.values())

    @property
    def link_bytes(self) -> int:
        return sum(self.sent.values()) + sum(self.brought.values())


def bytes_moved(sizes: Sizes, choice: Choice, work: Work) -> Moved:
    """Bytes a step moves, from the second on: the first has no update to do."""
    segments = bytes_moved_by_segment(sizes, choice, work)
    return Moved(
        sum_by_kind(each.read for each in segments),
        sum_by_kind(each.written for each in segments),
        sum_by_kind(each.sent for each in segments),
        sum_by_kind(each.brought for each in segments),
    )


def bytes_moved_by_segment(sizes: Sizes, choice: Choice, work: Work) -> list[Moved]:
    """The same, by the segment that owns what is moved; activations by the one that saved them."""
    moved = [Moved() for _ in sizes.sizes]

    def add(counts: dict[str, int], kind: str, size: int) -> None:
        if size:
            counts[kind] = counts.get(kind, 0) + size

    needs = sizes.needs(choice.placements)
    pieces = sizes.pieces(work, choice.microbatch_tokens)
    visits = [v for v in pieces[0][0].visits if needs[v.segment]]
    spilled = _spilled_gradients(sizes, choice, visits, needs)
    is_apart = sizes.apart(choice.placements)
    for visit in visits:
        fetches = 2 if _goes_back(visit, choice) else 1
        for owner in needs[visit.segment]:
            if choice.placements[owner] == "disk":
                add(moved[owner].read, "weight", fetches * sizes.sizes[owner].stored_weight_bytes)
            if is_apart:
                add(moved[owner].sent, "weight", fetches * sizes.sizes[owner].weight_bytes)
    for owner in {owner for visit in visits for owner in needs[visit.segment] if sizes.sizes[owner].trainable}:
        size, read, written = sizes.sizes[owner], moved[owner].read, moved[owner].written
        if is_apart:
            add(moved[owner].brought, "gradient", size.gradient_bytes)
            if sizes.eager and choice.placements[owner] == "disk":
                add(moved[owner].brought, "weight", size.gradient_bytes)
        if choice.placements[owner] == "ram":
            continue
        add(read, "state", size.state_bytes)
        add(written, "weight", size.stored_trainable_bytes)
        add(written, "state", size.state_bytes)
        if owner in spilled:
            add(read, "gradient", size.gradient_bytes)
            add(written, "gradient", size.gradient_bytes)
    left = choice.spill_host_bytes if is_apart else 0
    for visit in _records(choice, pieces):
        own, size = moved[visit.segment], visit.spilled_bytes
        if is_apart:
            add(own.brought, "activation", size)
            add(own.sent, "activation", size)
        if is_apart and pages(size) <= left:
            left -= pages(size)
        else:
            add(own.read, "activation", size)
            add(own.written, "activation", size)
    return moved


def _goes_back(visit: Footprint, choice: Choice) -> bool:
    """Whether backward visits the segment again."""
    return visit.goes_back and choice.policies[visit.segment] != "at_once"


def record_bytes(sizes: Sizes, choice: Choice, work: Work) -> int:
    """What all records of a step take, to keep them in host memory."""
    pieces = sizes.pieces(work, choice.microbatch_tokens)
    return sum(pages(visit.spilled_bytes) for visit in _records(choice, pieces))


def _records(choice: Choice, pieces: Sequence[tuple[ModelFootprint, int, int]]) -> Iterator[Footprint]:
    """What a step spills, in the order in which it does."""
    for visits in zip(*(footprint.visits for footprint, _, _ in pieces), strict=True):
        for visit, (_, _, count) in zip(visits, pieces, strict=True):
            if choice.policies[visit.segment] == "spill" and visit.spilled_bytes:
                yield from [visit] * count


def _spilled_gradients(
    sizes: Sizes, choice: Choice, visits: Sequence[Footprint], needs: list[tuple[int, ...]]
) -> set[int]:
    """Owners whose gradients do not fit what may be held, when they come in the order in which they are finished."""
    if sizes.eager:
        return set()
    left: dict[int, int] = {}
    spilled: set[int] = set()
    held_bytes = 0

    def finish(owner: int) -> None:
        nonlocal held_bytes
        size = max(pages(sizes.sizes[owner].gradient_bytes), 1)
        if sizes.sizes[owner].trainable and choice.placements[owner] == "disk":
            if held_bytes + size <= choice.held_gradient_bytes:
                held_bytes += size
            else:
                spilled.add(owner)

    def leave(visit: Footprint) -> None:
        for owner in needs[visit.segment]:
            left[owner] -= 1
            if not left[owner]:
                finish(owner)

    for visit in visits:
        if visit.goes_back:
            for owner in needs[visit.segment]:
                left[owner] = left.get(owner, 0) + 1
            if choice.policies[visit.segment] == "at_once":
                leave(visit)
    for visit in reversed(visits):
        if _goes_back(visit, choice):
            leave(visit)
    return spilled
