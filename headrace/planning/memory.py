"""How much memory and disk a way of training takes, and how many bytes a step moves.

Everything is added up from what the run itself is made of: layouts, roles and ring of the store, the order in which
segments are fetched, and footprints. The bytes of a step are exact and tested against the store's own count; memory is an
upper bound of what tensors take at one time.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path

import torch

from headrace.models.segments import Segment
from headrace.optim.rule import Rule
from headrace.planning.footprint import Footprint, ModelFootprint
from headrace.store.disk import DEPTH, DiskSegment
from headrace.store.files import pages
from headrace.store.layout import layout_of
from headrace.store.store import STAGING_BYTES, Placement, apart, gradient_room, ram_gradient_bytes
from headrace.store.traffic import SegmentTraffic, sum_by_kind
from headrace.streaming.activations import Policy

LOST_SHARE = 33  # 3 % of the rest: holes of the heap, workspaces of matrix products (measured: up to 0.17 of 6 GiB)
SPILL_RECORDS = 3  # one written or read, one computed with, one ahead


@dataclass(frozen=True)
class Work:
    """Batches of one shape. Lengths are the longest; real batches may be smaller."""

    name: str
    examples: int
    length: int
    steps: int = 1


@dataclass(frozen=True)
class SegmentSize:
    """What a segment's state takes, wherever it is."""

    name: str
    num_parameters: int
    trainable: int
    weight_bytes: int
    """In memory; on disk in the store's dtype."""
    stored_weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    ring_bytes: dict[str, int]
    borrowed_bytes: dict[int, int]
    """Per owner: gradients of its weights that this segment uses."""

    @property
    def resident_bytes(self) -> int:
        return self.weight_bytes + self.gradient_bytes + self.state_bytes

    @property
    def stored_bytes(self) -> int:
        return self.stored_weight_bytes + self.state_bytes


@dataclass(frozen=True)
class Choice:
    """A way of training."""

    placements: tuple[Placement, ...]
    policies: tuple[Policy, ...]
    microbatch_tokens: int
    pool_bytes: int = 0
    prefetch: int = 1
    held_gradient_bytes: int = 0
    spill_bytes: int = 0
    stage_bytes: int = 0
    host_pool_bytes: int = 0
    spill_host_bytes: int = 0

    @property
    def streams(self) -> bool:
        return any(place != "device" for place in self.placements)


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


Footprints = Callable[[int, int], ModelFootprint]
"""(examples in a microbatch, length) -> its footprint."""


class Sizes:
    """The sizes of a model's segments under a rule, and what follows from them for any choice."""

    def __init__(
        self,
        segments: Sequence[Segment],
        rule: Rule,
        footprints: Footprints,
        eager: bool = False,
        device: torch.device | None = None,
    ):
        """eager: as `Store`'s, each segment is updated in backward. device None: the CPU."""
        self.eager, self.device = eager, device or torch.device("cpu")
        self.segments, self.rule, self.footprints = list(segments), rule, footprints
        layouts = [layout_of(segment, ()) for segment in segments]
        self.owner = {entry.name: i for i, layout in enumerate(layouts) for entry in layout.entries}
        entries = {entry.name: entry for layout in layouts for entry in layout.entries}
        self.sizes: list[SegmentSize] = []
        with ThreadPoolExecutor(1) as threads:
            for segment, layout in zip(segments, layouts, strict=True):
                state = DiskSegment(layout, rule, Path("w"), Path("s"), Path("g"), threads, SegmentTraffic())
                borrowed: dict[int, int] = {}
                for name in segment.borrowed:
                    if entries[name].trains:
                        owner = self.owner[name]
                        borrowed[owner] = borrowed.get(owner, 0) + 4 * entries[name].size + 4096
                self.sizes.append(
                    SegmentSize(
                        name=segment.name,
                        num_parameters=layout.size,
                        trainable=layout.trainable_size,
                        weight_bytes=4 * layout.size,
                        stored_weight_bytes=state.weight_bytes,
                        gradient_bytes=4 * layout.trainable_size,
                        state_bytes=sum(role.num_bytes for role in state.roles),
                        ring_bytes=state.ring_bytes(),
                        borrowed_bytes=borrowed,
                    )
                )

    def needs(self, placements: Sequence[Placement]) -> list[tuple[int, ...]]:
        """Per segment the fetched segments whose weights it uses, as `Streaming.needs`."""
        names = [[*segment.parameters, *segment.borrowed] for segment in self.segments]
        return [tuple(sorted({self.owner[n] for n in each if placements[self.owner[n]] != "device"})) for each in names]

    def apart(self, placements: Sequence[Placement]) -> bool:
        return apart(self.device, placements)

    def pieces(self, work: Work, microbatch_tokens: int) -> list[tuple[ModelFootprint, int, int]]:
        """(footprint, its examples, how many of them) of a batch's microbatches."""
        examples = min(max(1, microbatch_tokens // work.length), work.examples)
        pieces = [(self.footprints(examples, work.length), examples, work.examples // examples)]
        if rest := work.examples % examples:
            pieces.append((self.footprints(rest, work.length), rest, 1))
        return pieces

    # ---- memory

    def pool_bytes(
        self, placements: Sequence[Placement], work: Work, prefetch: int, tiers: Sequence[Placement] = ("ram", "disk")
    ) -> int:
        """Room for the weights of 1 + prefetch fetches in a row, whichever they are; of those from these tiers."""
        needs = self.needs(placements)
        footprint = self.pieces(work, work.length)[0][0]
        order = [visit.segment for visit in footprint.visits if needs[visit.segment]]
        each = [[owner for owner in needs[i] if placements[owner] in tiers] for i in [*order, *reversed(order)]]
        room = [sum(pages(self.sizes[owner].weight_bytes) for owner in owners) for owners in each]
        room += room[:prefetch]
        return max((sum(room[k : k + 1 + prefetch]) for k in range(max(len(room) - prefetch, 1))), default=0)

    def spill_bytes(self, choice: Choice, work: Work) -> int:
        records = [
            pages(visit.spilled_bytes)
            for footprint, _, _ in self.pieces(work, choice.microbatch_tokens)
            for visit in footprint.visits
            if choice.policies[visit.segment] == "spill"
        ]
        return SPILL_RECORDS * max(records, default=0)

    def memory(self, choice: Choice, work: Work) -> dict[str, int]:
        """Most bytes at one time, by kind, of the memory the device computes in."""
        on_device = [size for size, place in zip(self.sizes, choice.placements, strict=True) if place == "device"]
        fetched = [i for i, place in enumerate(choice.placements) if place != "device"]
        need = {
            "weights": sum(size.weight_bytes for size in on_device),
            "gradients": sum(size.gradient_bytes for size in on_device)
            + sum(sum(size.borrowed_bytes.values()) for size in self.sizes),
            "state": sum(size.state_bytes for size in on_device),
        }
        flush_bytes = 0
        if fetched:
            need["weights in flight"] = choice.pool_bytes
            room = gradient_room([self.sizes[i].gradient_bytes for i in fetched], self.eager)
            if self.apart(choice.placements):
                need["gradients in flight"] = room
            else:
                need["gradients in flight"] = choice.held_gradient_bytes + room
                need["state in flight"] = self._ring_bytes(fetched)
                need["state read ahead"] = self._staged_bytes(choice, work)
                flush_bytes = max(self.sizes[i].weight_bytes for i in fetched) + 4096
        if choice.spill_bytes:
            need["activations in flight"] = 2 * choice.spill_bytes  # a record, and what it is copied from
        need["activations"], need["temporaries"] = self._activations(choice, work)
        need["temporaries"] = max(need["temporaries"], flush_bytes - need["activations"])
        need["lost between tensors"] = sum(need.values()) // LOST_SHARE
        return {kind: size for kind, size in need.items() if size}

    def host_memory(self, choice: Choice) -> dict[str, int]:
        """Most bytes at one time, by kind, of host memory beside a device apart; what the process itself takes aside."""
        if not self.apart(choice.placements):
            return {}
        in_ram = [size for size, place in zip(self.sizes, choice.placements, strict=True) if place == "ram"]
        on_disk = [i for i, place in enumerate(choice.placements) if place == "disk"]
        need = {
            "weights": sum(pages(size.weight_bytes) for size in in_ram),
            "gradients": ram_gradient_bytes([size.gradient_bytes for size in in_ram], self.eager),
            "state": sum(size.state_bytes for size in in_ram),
            "activations": choice.spill_host_bytes,
            "activations in flight": choice.spill_bytes,
        }
        if on_disk:
            largest = max(self.sizes[i].weight_bytes for i in on_disk) + 4096
            room = gradient_room([self.sizes[i].gradient_bytes for i in on_disk], self.eager)
            need["weights in flight"] = (
                choice.host_pool_bytes + largest
            )  # brought back for an eager update, or to flush
            need["gradients in flight"] = choice.held_gradient_bytes + room
            need["state in flight"] = self._ring_bytes(on_disk)
            need["state read ahead"] = choice.stage_bytes
        return {kind: size for kind, size in need.items() if size}

    def _ring_bytes(self, on_disk: Sequence[int]) -> int:
        ring: dict[str, int] = {}
        for i in on_disk:
            for name, size in self.sizes[i].ring_bytes.items():
                ring[name] = max(ring.get(name, 0), pages(size))
        depth = 1 if self.rule.needs_whole_parameter else DEPTH
        staging_bytes = STAGING_BYTES if any(s.stored_weight_bytes < s.weight_bytes for s in self.sizes) else 0
        return depth * sum(ring.values()) + staging_bytes

    def first_states(self, placements: Sequence[Placement], work: Work) -> list[int]:
        """Bytes of state of the segments a step begins with, as far as they can be staged (`Store.to_stage`)."""
        needs = self.needs(placements)
        order = [v.segment for v in self.pieces(work, work.length)[0][0].visits if needs[v.segment]]
        if self.eager or self.rule.weight_dtype is not torch.float32:
            return []
        staged = takewhile(lambda i: needs[i] == (i,) and placements[i] == "disk", order)
        return [self.sizes[i].state_bytes for i in staged]

    def _staged_bytes(self, choice: Choice, work: Work) -> int:
        """What staged state takes beyond activations that are gone by then: all but those of the first fetched segments."""
        needs = self.needs(choice.placements)
        fetched = [i for i in range(len(needs)) if needs[i]]
        gone = range(fetched[2] + 1, len(needs)) if len(fetched) > 2 else ()
        return max(choice.stage_bytes - sum(self.activation_bytes(choice, work, i) for i in gone), 0)

    def _activations(self, choice: Choice, work: Work) -> tuple[int, int]:
        """Bytes that stay from forward to backward, and most bytes beyond that."""
        stay = stream = 0
        temporary = 0
        for footprint, _, count in self.pieces(work, choice.microbatch_tokens):
            count = count if choice.streams else 1  # or else microbatches go through the model one by one
            kept = footprint.between_saved_bytes
            kept += sum(_kept_bytes(visit, choice.policies[visit.segment]) for visit in footprint.visits)
            moving = max((v.input_bytes + v.output_bytes for v in footprint.visits), default=0)
            stay, stream = (stay + count * kept, stream + count * moving) if choice.streams else (max(stay, kept), 0)
            most = max((_most_bytes(v, choice.policies[v.segment]) for v in footprint.visits), default=0)
            temporary = max(temporary, most, footprint.between_peak_bytes)
        return stay, stream + temporary

    def activation_bytes(self, choice: Choice, work: Work, i: int) -> int:
        """What stays of segment i's forward until its backward."""
        total = 0
        for footprint, _, count in self.pieces(work, choice.microbatch_tokens):
            kept = sum(_kept_bytes(v, choice.policies[i]) for v in footprint.visits if v.segment == i)
            total = total + count * kept if choice.streams else max(total, kept)
        return total

    # ---- disk

    def disk_bytes(self, choice: Choice, work: Work, snapshots: int) -> dict[str, int]:
        """Most bytes on disk at one time, with that many checkpoints kept (one more exists while it takes over)."""
        live = sum(s.stored_bytes for s, place in zip(self.sizes, choice.placements, strict=True) if place == "disk")
        everything = sum(size.stored_bytes for size in self.sizes)
        moved = self.moved(choice, work)
        files = {
            "live state": live,
            "checkpoints": everything * (snapshots + 1) - live if snapshots else 0,  # the newest is linked with live
            "gradients": moved.written.get("gradient", 0),
            "activations": moved.written.get("activation", 0),
        }
        return {kind: size for kind, size in files.items() if size}

    # ---- traffic

    def moved(self, choice: Choice, work: Work) -> Moved:
        """Bytes a step moves, from the second on: the first has no update to do."""
        segments = self.moved_by_segment(choice, work)
        return Moved(
            sum_by_kind(each.read for each in segments),
            sum_by_kind(each.written for each in segments),
            sum_by_kind(each.sent for each in segments),
            sum_by_kind(each.brought for each in segments),
        )

    def moved_by_segment(self, choice: Choice, work: Work) -> list[Moved]:
        """The same, by the segment that owns what is moved; activations by the one that saved them."""
        moved = [Moved() for _ in self.sizes]

        def add(counts: dict[str, int], kind: str, size: int) -> None:
            if size:
                counts[kind] = counts.get(kind, 0) + size

        needs = self.needs(choice.placements)
        pieces = self.pieces(work, choice.microbatch_tokens)
        visits = [v for v in pieces[0][0].visits if needs[v.segment]]
        spilled = self.spilled_gradients(choice, visits, needs)
        is_apart = self.apart(choice.placements)
        for visit in visits:
            fetches = 1 if choice.policies[visit.segment] == "at_once" else 2
            for owner in needs[visit.segment]:
                if choice.placements[owner] == "disk":
                    add(moved[owner].read, "weight", fetches * self.sizes[owner].stored_weight_bytes)
                if is_apart:
                    add(moved[owner].sent, "weight", fetches * self.sizes[owner].weight_bytes)
        for owner in {owner for visit in visits for owner in needs[visit.segment] if self.sizes[owner].trainable}:
            size, read, written = self.sizes[owner], moved[owner].read, moved[owner].written
            if is_apart:
                add(moved[owner].brought, "gradient", size.gradient_bytes)
                if self.eager and choice.placements[owner] == "disk":
                    add(moved[owner].brought, "weight", size.weight_bytes)
            if choice.placements[owner] == "ram":
                continue
            add(read, "state", size.state_bytes)
            add(written, "weight", size.stored_weight_bytes)
            add(written, "state", size.state_bytes)
            if owner in spilled:
                add(read, "gradient", size.gradient_bytes)
                add(written, "gradient", size.gradient_bytes)
        left = choice.spill_host_bytes if is_apart else 0
        for visit in self._records(choice, pieces):
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

    def _records(self, choice: Choice, pieces: Sequence[tuple[ModelFootprint, int, int]]) -> Iterator[Footprint]:
        """What a step spills, in the order in which it does."""
        for visits in zip(*(footprint.visits for footprint, _, _ in pieces), strict=True):
            for visit, (_, _, count) in zip(visits, pieces, strict=True):
                if choice.policies[visit.segment] == "spill" and visit.spilled_bytes:
                    yield from [visit] * count

    def records_bytes(self, choice: Choice, work: Work) -> int:
        """What all records of a step take, to keep them in host memory."""
        pieces = self.pieces(work, choice.microbatch_tokens)
        return sum(pages(visit.spilled_bytes) for visit in self._records(choice, pieces))

    def spilled_gradients(self, choice: Choice, visits: Sequence[Footprint], needs: list[tuple[int, ...]]) -> set[int]:
        """Owners whose gradients do not fit what may be held, when they come in the order in which they are finished."""
        if self.eager:
            return set()
        left: dict[int, int] = {}
        spilled: set[int] = set()
        held_bytes = 0

        def finish(owner: int) -> None:
            nonlocal held_bytes
            size = max(pages(self.sizes[owner].gradient_bytes), 1)
            if self.sizes[owner].trainable and choice.placements[owner] == "disk":
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
            for owner in needs[visit.segment]:
                left[owner] = left.get(owner, 0) + 1
            if choice.policies[visit.segment] == "at_once":
                leave(visit)
        for visit in reversed(visits):
            if choice.policies[visit.segment] != "at_once":
                leave(visit)
        return spilled

    def flops(self, choice: Choice, work: Work) -> float:
        """Floating-point operations of a step, recomputation included."""
        between = sum(count * piece.between_flops for piece, _, count in self.pieces(work, choice.microbatch_tokens))
        return between + sum(self.flops_by_segment(choice, work))

    def flops_by_segment(self, choice: Choice, work: Work) -> list[float]:
        """The same without what is computed between segments."""
        flops = [0.0] * len(self.sizes)
        for footprint, _, count in self.pieces(work, choice.microbatch_tokens):
            for visit in footprint.visits:
                forwards = 2 if choice.policies[visit.segment] == "recompute" else 1
                flops[visit.segment] += count * (forwards * visit.forward_flops + visit.backward_flops)
        return flops


def with_pools(sizes: Sizes, choice: Choice, works: Sequence[Work], prefetch: int) -> Choice:
    """The choice with room for what it moves, at the least."""
    return replace(
        choice,
        prefetch=max(prefetch, 1),
        pool_bytes=max(sizes.pool_bytes(choice.placements, work, prefetch) for work in works) if choice.streams else 0,
        host_pool_bytes=max(sizes.pool_bytes(choice.placements, work, prefetch, ("disk",)) for work in works)
        if sizes.apart(choice.placements)
        else 0,
        spill_bytes=max(sizes.spill_bytes(choice, work) for work in works),
    )


def _kept_bytes(visit: Footprint, policy: Policy) -> int:
    if policy == "keep":
        return visit.saved_bytes
    if policy == "spill":
        return visit.saved_bytes - visit.spilled_original_bytes
    return visit.input_bytes if policy == "recompute" else 2 * visit.input_bytes  # at_once: input and its gradient


def _most_bytes(visit: Footprint, policy: Policy) -> int:
    if policy == "keep":
        return max(visit.forward_bytes - max(visit.saved_bytes - visit.input_bytes, 0), visit.backward_bytes)
    if policy == "spill":
        return max(visit.forward_bytes, visit.backward_bytes)
    return max(visit.plain_bytes, visit.whole_bytes)


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
