"""Where the optimizer's state of a segment lies: one slab a role (exp_avg, exp_avg_sq, ...), in slab order.

A rule says which roles a parameter needs and in which shape and dtype (`state_of`). Element-wise rules have state for
every element, or for every block of EVEN_ELEMENTS, so a chunk of the weights is a chunk of every role's slab.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from headrace.optim import Rule, parameter_key, split
from headrace.store.layout import Chunk, Entry, Layout


@dataclass(frozen=True)
class Role:
    """One kind of state of a segment."""

    name: str
    dtype: torch.dtype
    entries: tuple[Entry, ...]
    """Per trainable parameter its state's shape and offset in this role's slab, in slab order."""

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def num_bytes(self) -> int:
        return self.size * self.dtype.itemsize

    def span(self, entry: Entry, first: int, last: int) -> tuple[int, int]:
        """Which elements of this slab belong to elements [first, last) of the weight slab, a piece of `entry`."""
        mine = next(own for own in self.entries if own.name == entry.name)
        if (first, last) == (entry.offset, entry.offset + entry.size):
            return mine.offset, mine.offset + mine.size
        share = entry.size // mine.size  # elements of the parameter to one of its state
        assert share * mine.size == entry.size, f"{entry.name}: {self.name} cannot be cut"
        return mine.offset + (first - entry.offset) // share, mine.offset + (last - entry.offset) // share

    def range_of(self, chunk: Chunk) -> tuple[int, int]:
        """Elements of this slab that a chunk needs."""
        spans = [self.span(*piece) for piece in chunk.pieces]
        return spans[0][0], spans[-1][1]


def roles_of(layout: Layout, rule: Rule) -> tuple[Role, ...]:
    """The state a segment needs. Every parameter has the same roles; one that does not use a role has it empty."""
    kinds: dict[str, torch.dtype] = {}
    for entry in layout.trainable:
        kinds |= {name: dtype for name, (_, dtype) in rule.state_of(entry.shape).items()}
    roles = []
    for name, dtype in kinds.items():
        entries, offset = [], 0
        for entry in layout.trainable:
            shape, _ = rule.state_of(entry.shape).get(name, (torch.Size([0]), dtype))
            entries.append(replace(entry, shape=shape, offset=offset))
            offset += math.prod(shape)
        roles.append(Role(name, dtype, tuple(entries)))
    return tuple(roles)


@torch.no_grad()
def first_values(
    layout: Layout, rule: Rule, roles: Sequence[Role], weights: Mapping[str, Tensor], slab: Tensor
) -> dict[str, Tensor]:
    """Fill the weight slab (size,) fp32 with a segment's first weights, by name, as the rule keeps them. Returns the
    state slabs that do not start as zeros, by role: lower halves, so that an fp32 weight is kept whole. (What does not
    train has no state: it is rounded.)"""
    halves = {role.name: torch.zeros(role.size, dtype=role.dtype) for role in roles if role.name == rule.lower_half}
    places = {entry.name: (role, entry) for role in roles if role.name in halves for entry in role.entries}
    for entry in layout.entries:
        weight = weights[entry.name]
        if entry.name in places:
            role, own = places[entry.name]
            weight = torch.empty(entry.shape, dtype=rule.weight_dtype)
            split(weights[entry.name].to("cpu", torch.float32).contiguous(), weight, own.view(halves[role.name]))
        entry.view(slab).copy_(weight.to(rule.weight_dtype))
    return halves


@dataclass(frozen=True)
class Views:
    """What one call of a rule updates: the parameters of a chunk that decay, or those that do not."""

    decays: bool
    names: tuple[str, ...]
    slabs: tuple[list[Tensor], ...]
    """Of weight, gradient and each role, a view for each parameter."""


def views_of(
    rule: Rule, chunk: Chunk, weight: Tensor, gradient: Tensor, state: Sequence[tuple[Role, Tensor]]
) -> list[Views]:
    """Tensors hold the chunk's elements alone; views have the parameters' shapes where the rule needs them whole."""
    found = []
    for decays in (True, False):
        pieces = [piece for piece in chunk.pieces if piece[0].decays is decays]
        if not pieces:
            continue
        slabs: list[list[Tensor]] = []
        for tensor in (weight, gradient):
            views = [tensor[a - chunk.start : b - chunk.start] for _, a, b in pieces]
            if rule.needs_whole_parameter:
                views = [view.view(entry.shape) for view, (entry, _, _) in zip(views, pieces, strict=True)]
            slabs.append(views)
        for role, tensor in state:
            start = role.range_of(chunk)[0]
            spans = [role.span(*piece) for piece in pieces]
            views = [tensor[a - start : b - start] for a, b in spans]
            if rule.needs_whole_parameter:
                shapes = {own.name: own.shape for own in role.entries}
                views = [view.view(shapes[entry.name]) for view, (entry, _, _) in zip(views, pieces, strict=True)]
            slabs.append(views)
        found.append(Views(decays, tuple(entry.name for entry, _, _ in pieces), tuple(slabs)))
    return found


@dataclass(frozen=True)
class Update:
    """An update that is due: what the rule needs besides slabs. step counts from 1."""

    rule: Rule
    step: int
    lr: float
    gradient_scale: float | Tensor
    seed: int = 0

    def apply(self, chunk: Chunk, weight: Tensor, gradient: Tensor, state: Sequence[tuple[Role, Tensor]]) -> None:
        """Update one chunk in place. Tensors hold the chunk's elements alone."""
        self.apply_to(views_of(self.rule, chunk, weight, gradient, state))

    def apply_to(self, views: Sequence[Views]) -> None:
        """Update what these are views of."""
        for each in views:
            self.rule.update(
                *each.slabs,
                step=self.step,
                lr=self.lr,
                weight_decay=None if each.decays else 0.0,
                gradient_scale=self.gradient_scale,
                keys=[parameter_key(self.seed, name) for name in each.names],
            )
