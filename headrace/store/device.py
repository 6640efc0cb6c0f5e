"""A segment whose state is on the device that computes: the placement `device`.

Parameters are views of the weight slab and their .grad views of the gradient slab, so backward adds up microbatches in
place, in order; nothing is fetched.
"""

import time

import torch
from torch import Tensor

from headrace.models.segments import Segment
from headrace.optim.rule import Rule
from headrace.store.layout import Chunk, Layout
from headrace.store.roles import Role, Update, roles_of


class DeviceSegment:
    """Invariant: every trainable parameter of the segment and its .grad are views of the slabs."""

    def __init__(self, segment: Segment, layout: Layout, rule: Rule, device: torch.device):
        self.layout, self.weight_dtype = layout, rule.weight_dtype
        self.update_s = 0.0  # of all updates so far
        self.roles: tuple[Role, ...] = roles_of(layout, rule)
        self.weight = torch.zeros(layout.size, device=device)
        self.gradient = torch.zeros(layout.trainable_size, device=device)
        self.state = {role.name: torch.zeros(role.size, dtype=role.dtype, device=device) for role in self.roles}
        for entry in layout.entries:
            parameter, weight = segment.parameters[entry.name], entry.view(self.weight)
            if not parameter.is_meta:
                weight.copy_(parameter.detach().to(self.weight_dtype))
            parameter.data = weight
            if entry.trains:
                parameter.grad = entry.view(self.gradient)

    def update(self, update: Update) -> None:
        size = self.layout.trainable_size
        if size:
            started_s = time.perf_counter()
            whole = Chunk(0, size, tuple((e, e.offset, e.offset + e.size) for e in self.layout.trainable))
            stored = self.weight[:size].to(self.weight_dtype)  # the slab itself where weights are fp32
            update.apply(whole, stored, self.gradient, [(r, self.state[r.name]) for r in self.roles])
            if self.weight_dtype is not torch.float32:
                self.weight[:size].copy_(stored)
            self.update_s += time.perf_counter() - started_s

    def gradients(self) -> dict[str, Tensor]:
        return {entry.name: entry.view(self.gradient) for entry in self.layout.trainable}
