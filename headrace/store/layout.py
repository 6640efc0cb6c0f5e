"""Where each parameter lies in its segment's slabs.

slab of a segment:  [ word_embeddings.weight | pad | position_embeddings.weight | pad | ... ]   flat fp32
one slab a role:    weight, gradient, exp_avg, exp_avg_sq, all in this layout
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from headrace.models.segments import Segment

ALIGNMENT_ELEMENTS = 16  # 64 bytes: a cache line, and a whole AVX-512 vector


@dataclass(frozen=True)
class Entry:
    """One parameter: elements [offset, offset + size) of the slab, in this shape."""

    name: str
    shape: torch.Size
    offset: int
    decays: bool
    """Whether weight decay applies to it."""

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def view(self, slab: Tensor) -> Tensor:
        return slab[self.offset : self.offset + self.size].view(self.shape)


@dataclass(frozen=True)
class Layout:
    """The slab layout of one segment. Parameters that don't train have no entry."""

    segment: str
    entries: tuple[Entry, ...]
    size: int  # elements, padding included


def layout_of(segment: Segment, no_decay: Sequence[str]) -> Layout:
    """Lay a segment's trainable parameters out in model order. no_decay: name parts that exclude from weight decay."""
    entries, offset = [], 0
    for name, parameter in segment.parameters.items():
        if parameter.requires_grad:
            decays = not any(part in name for part in no_decay)
            entries.append(Entry(name, parameter.shape, offset, decays))
            offset += -(-parameter.numel() // ALIGNMENT_ELEMENTS) * ALIGNMENT_ELEMENTS
    return Layout(segment.name, tuple(entries), offset)


def bind(parameter: nn.Parameter, weight: Tensor, gradient: Tensor) -> None:
    """Make the parameter a view of its slabs, keeping its value; backward then adds straight into the gradient slab."""
    weight.copy_(parameter.detach())
    parameter.data = weight
    parameter.grad = gradient
