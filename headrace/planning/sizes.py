"""What a model's segments take, and what passes through them, for any way of training.

Everything is added up from what the run itself is made of: layouts, roles and ring of the store, and footprints.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import torch

from headrace.models.segments import Segment
from headrace.optim.rule import Rule
from headrace.planning.footprint import Footprint, ModelFootprint
from headrace.store.disk import DiskSegment
from headrace.store.files import pages
from headrace.store.layout import layout_of
from headrace.store.placement import Placement, apart
from headrace.store.traffic import SegmentTraffic
from headrace.streaming.activations import Policy

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
    stored_trainable_bytes: int
    """Of that, what an update writes."""
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

    @property
    def changing_bytes(self) -> int:
        """Of what is stored, what every checkpoint has anew; the rest is linked."""
        return self.stored_trainable_bytes + self.state_bytes


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
                state = DiskSegment(layout, rule, Path("w"), Path("f"), Path("s"), Path("g"), threads, SegmentTraffic())
                borrowed: dict[int, int] = {}
                for name in segment.borrowed:
                    if entries[name].trains:
                        owner = self.owner[name]
                        borrowed[owner] = borrowed.get(owner, 0) + 4 * entries[name].size + 4096
                self.sizes.append(
                    SegmentSize(
                        name=segment.name,
                        num_parameters=layout.num_parameters,
                        trainable=layout.trainable_size,
                        weight_bytes=4 * layout.size,
                        stored_weight_bytes=state.weight_bytes,
                        stored_trainable_bytes=layout.trainable_size * rule.weight_dtype.itemsize,
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

    def first_states(self, placements: Sequence[Placement], work: Work) -> list[int]:
        """Bytes of state of the segments a step begins with, as far as they can be staged (`Store.to_stage`)."""
        needs = self.needs(placements)
        order = [v.segment for v in self.pieces(work, work.length)[0][0].visits if needs[v.segment]]
        if self.eager or self.rule.weight_dtype is not torch.float32:
            return []
        staged = takewhile(lambda i: needs[i] == (i,) and placements[i] == "disk", order)
        return [self.sizes[i].state_bytes for i in staged]

    def activation_bytes(self, choice: Choice, work: Work, i: int) -> int:
        """What stays of segment i's forward until its backward."""
        total = 0
        for footprint, _, count in self.pieces(work, choice.microbatch_tokens):
            kept = sum(kept_bytes(v, choice.policies[i]) for v in footprint.visits if v.segment == i)
            total = total + count * kept if choice.streams else max(total, kept)
        return total

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


def kept_bytes(visit: Footprint, policy: Policy) -> int:
    if policy == "keep":
        return visit.saved_bytes
    if policy == "spill":
        return visit.saved_bytes - visit.spilled_original_bytes
    return visit.input_bytes if policy == "recompute" else 2 * visit.input_bytes  # at_once: input and its gradient
