"""A segment whose state is on the device that computes: the placement `device`.

Parameters are views of the weight slab and their .grad views of the gradient slab, so backward adds up microbatches in
place, in order; nothing is fetched.
"""

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.models.segments import Segment
from headrace.optim.rule import Rule
from headrace.store.layout import Chunk, Layout
from headrace.store.memory import zeros
from headrace.store.roles import Role, Update, Views, first_values, roles_of, views_of


class DeviceSegment:
    """Invariant: every trainable parameter of the segment and its .grad are views of the slabs."""

    def __init__(self, segment: Segment, layout: Layout, rule: Rule, device: torch.device):
        self.layout, self.weight_dtype = layout, rule.weight_dtype
        self.update_s = 0.0  # of all updates so far
        self.roles: tuple[Role, ...] = roles_of(layout, rule)
        self.weight = zeros(layout.size, torch.float32, device)
        self.gradient = zeros(layout.trainable_size, torch.float32, device)
        self.state = {role.name: zeros(role.size, role.dtype, device) for role in self.roles}
        if not any(segment.parameters[entry.name].is_meta for entry in layout.entries):
            self.fill({entry.name: segment.parameters[entry.name].detach() for entry in layout.entries}, rule)
        for entry in layout.entries:
            parameter, weight = segment.parameters[entry.name], entry.view(self.weight)
            parameter.data = weight
            if entry.trains:
                parameter.grad = entry.view(self.gradient)
        size = layout.trainable_size
        self._whole = Chunk(0, size, tuple((e, e.offset, e.offset + e.size) for e in layout.trainable))
        self._views: list[Views] | None = None  # of the slabs, which stay where they are
        if size and self.weight_dtype is torch.float32:
            self._views = views_of(rule, self._whole, self.weight[:size], self.gradient, self._state())

    def _state(self) -> list[tuple[Role, Tensor]]:
        return [(role, self.state[role.name]) for role in self.roles]

    def fill(self, weights: Mapping[str, Tensor], rule: Rule) -> None:
        """Give it these weights, by name, and its optimizer no history."""
        first = first_values(self.layout, rule, self.roles, weights, self.weight)
        for name, slab in self.state.items():
            slab.copy_(first[name]) if name in first else slab.zero_()

    def update(self, update: Update) -> None:
        size = self.layout.trainable_size
        if not size:
            return
        started_s = time.perf_counter()
        if self._views is not None:
            update.apply_to(self._views)
        else:
            stored = self.weight[:size].to(self.weight_dtype)
            update.apply(self._whole, stored, self.gradient, self._state())
            self.weight[:size].copy_(stored)
        self.update_s += time.perf_counter() - started_s

    def gradients(self) -> dict[str, Tensor]:
        return {entry.name: entry.view(self.gradient) for entry in self.layout.trainable}
