"""A segment whose state is in host memory, beside a device apart: the placement `ram`.

    load:   a pending update, on the host, then the weights are sent to a slab on the device

Its gradient comes back from the device as that of a segment on disk does, and is always held.
"""

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from headrace.optim.rule import Rule
from headrace.store.layout import Layout
from headrace.store.memory import zeros
from headrace.store.roles import Role, Update, first_values, roles_of
from headrace.store.transfer import Mark, Transfer


class RamSegment:
    """Invariant: `pending` is the update that weights and state still lack, or None."""

    def __init__(self, layout: Layout, rule: Rule, transfer: Transfer):
        self.layout, self.weight_dtype, self.transfer = layout, rule.weight_dtype, transfer
        self.roles: tuple[Role, ...] = roles_of(layout, rule)
        self.chunks = list(layout.chunks(whole=rule.needs_whole_parameter))
        self.weight = transfer.host_memory(4 * layout.size).view(torch.float32)[: layout.size]
        """(size,) fp32, with the values of weight_dtype."""
        self.state = {role.name: zeros(role.size, role.dtype, torch.device("cpu")) for role in self.roles}
        self.pending: Update | None = None
        self.gradient: Tensor | None = None
        """(trainable_size,) fp32 in host memory, until its update is done; None: zeros."""
        self.norms: dict[str, Tensor] = {}
        self.update_s = 0.0
        """Arithmetic of all updates so far."""
        self.sent: Mark = None
        """The last copy of the weights to the device."""

    def fill(self, weights: Mapping[str, Tensor], rule: Rule) -> None:
        """Give it these weights, by name, and its optimizer no history."""
        self.transfer.wait(self.sent)
        first = first_values(self.layout, rule, self.roles, weights, self.weight)
        for name, slab in self.state.items():
            slab.copy_(first[name]) if name in first else slab.zero_()

    def load(self) -> None:
        """Do the pending update."""
        if self.pending is None:
            return
        update, self.pending = self.pending, None
        self.transfer.wait(self.sent)
        started_s = time.perf_counter()
        gradient = torch.zeros(self.layout.trainable_size) if self.gradient is None else self.gradient
        for chunk in self.chunks:
            weight = self.weight[chunk.start : chunk.stop]
            stored = weight.to(self.weight_dtype)  # the slab itself where weights are fp32
            spans = [(role, role.range_of(chunk)) for role in self.roles]
            state = [(role, self.state[role.name][a:b]) for role, (a, b) in spans]
            update.apply(chunk, stored, gradient[chunk.start : chunk.stop], state)
            if self.weight_dtype is not torch.float32:
                weight.copy_(stored)
        self.gradient = None
        self.update_s += time.perf_counter() - started_s

    def drop_gradient(self) -> None:
        self.gradient, self.norms = None, {}
