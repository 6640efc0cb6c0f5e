"""Where each parameter lies in its segment's slabs.

slab of a segment:  [ even parameters | odd parameters | gap | frozen parameters ]    flat; the gap is up to a page
one slab a role:    weight (all of it), gradient and the optimizer's moments (even and odd parameters)

What trains and what is frozen are two files, each without gaps: an update writes only the first. Frozen ones begin on a
page of the slab, so that both can be read past the page cache.

Even parameters have a multiple of EVEN_ELEMENTS elements, so each of them starts at a multiple of it, in memory and in a
file. A slab can then be cut into chunks at page boundaries without cutting a parameter where that would change a bit
(`headrace.optim.BLOCK_ELEMENTS`) or split a block of an 8-bit moment. Odd ones (biases, norms) are few and go together.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headrace.models.segments import Segment

EVEN_ELEMENTS = 256
CHUNK_ELEMENTS = 1 << 20
PAGE_ELEMENTS = 1024  # fp32


@dataclass(frozen=True)
class Entry:
    """One parameter: elements [offset, offset + size) of the slab, in this shape."""

    name: str
    shape: torch.Size
    offset: int
    decays: bool
    """Whether weight decay applies to it."""
    trains: bool = True
    stored_as: str | None = None
    """Its name in files, where that is another."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def file_name(self) -> str:
        return self.stored_as or self.name

    def view(self, slab: Tensor) -> Tensor:
        return slab[self.offset : self.offset + self.size].view(self.shape)


@dataclass(frozen=True)
class Chunk:
    """Elements [start, stop) of the slab, and which part of which trainable parameter they are."""

    start: int
    stop: int
    pieces: tuple[tuple[Entry, int, int], ...]  # (entry, first and last + 1 element of the slab)


@dataclass(frozen=True)
class Part:
    """Elements [start, stop) of the weight slab: what trains, or what does not. One file."""

    entries: tuple[Entry, ...]
    start: int
    stop: int

    @property
    def trains(self) -> bool:
        return self.entries[0].trains

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Layout:
    """The slab layout of one segment."""

    segment: str
    entries: tuple[Entry, ...]
    """All parameters, in slab order."""

    def entry(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.name == name)

    @property
    def trainable(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.trains)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that have elements: of what trains, then of what does not."""
        groups = [self.trainable, tuple(entry for entry in self.entries if not entry.trains)]
        return tuple(Part(g, g[0].offset, g[-1].offset + g[-1].size) for g in groups if g)

    @property
    def size(self) -> int:
        """Elements of the weight slab, the gap included."""
        return self.parts[-1].stop if self.entries else 0

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters."""
        return sum(entry.size for entry in self.entries)

    @property
    def trainable_size(self) -> int:
        """Elements of gradient and moment slabs: a prefix of the weight slab."""
        return sum(entry.size for entry in self.trainable)

    def chunks(self, whole: bool = False) -> Iterator[Chunk]:
        """Cuts of the trainable prefix at multiples of CHUNK_ELEMENTS; all odd parameters lie in the last. whole: one."""
        entries, size = self.trainable, self.trainable_size
        even = sum(entry.size for entry in entries if entry.size % EVEN_ELEMENTS == 0)
        if not size:
            return
        starts = list(range(0, max(even, 1), size if whole else CHUNK_ELEMENTS))
        for start, stop in zip(starts, [*starts[1:], size], strict=True):
            pieces = (
                (entry, max(entry.offset, start), min(entry.offset + entry.size, stop))
                for entry in entries
                if entry.offset < stop and entry.offset + entry.size > start
            )
            yield Chunk(start, stop, tuple(pieces))


def layout_of(segment: Segment, no_decay: Sequence[str]) -> Layout:
    """Lay a segment's parameters out. no_decay: name parts that exclude from weight decay."""
    entries, offset = [], 0

    def part(item: tuple[str, nn.Parameter]) -> int:
        parameter = item[1]
        return 2 if not parameter.requires_grad else int(parameter.numel() % EVEN_ELEMENTS > 0)

    for name, parameter in sorted(segment.parameters.items(), key=part):  # stable: model order within a part
        decays = not any(piece in name for piece in no_decay)
        if entries and entries[-1].trains and not parameter.requires_grad:
            offset += -offset % PAGE_ELEMENTS
        stored_as = segment.stored_as.get(name)
        entries.append(Entry(name, parameter.shape, offset, decays, parameter.requires_grad, stored_as))
        offset += parameter.numel()
    return Layout(segment.name, tuple(entries))
