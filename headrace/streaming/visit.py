"""A segment's forward and, later, backward for all microbatches, and the one autograd function behind it.

    forward    fetch weights, run every microbatch, keep what backward needs, release
    backward   fetch weights, run every microbatch's backward in order: gradients add up in the segment's slab, release

What backward needs is kept by one of the policies of `headrace.streaming.activations`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils import _pytree as pytree

from headrace.models.blank import placeholder
from headrace.streaming.activations import Policy
from headrace.streaming.generator import RandomState, random_state

if TYPE_CHECKING:
    from headrace.streaming.executor import Streaming


@dataclass(frozen=True)
class Call:
    """One microbatch at a segment: what to run, on what."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    microbatch: int
    training: bool


class Visit:
    """A segment's forward and, later, backward for all microbatches."""

    def __init__(self, streaming: "Streaming", i: int, calls: list[Call], flat: list[tuple[list[Any], Any]]):
        self.streaming, self.i, self.calls, self.flat = streaming, i, calls, flat
        self.policy: Policy = streaming.policies[i]
        self.goes_back = streaming.trains[i] or any(needs_grad(t) for leaves, _ in flat for t in leaves)
        """Whether there is a backward: something in the segment or before it trains."""
        self.number = streaming.number_visit()
        self.leaves: list[list[Tensor]] = []  # per microbatch the differentiable inputs, cut off from what made them
        self.edges: list[list[GradientEdge | None]] = []  # per microbatch and output, where its backward begins
        self.outputs: list[tuple[list[Any], Any]] = []  # per microbatch: leaves (differentiable ones: None), structure
        self.generators: list[RandomState | None] = []
        self.slabs: dict[int, tuple[Tensor, Tensor]] = {}

    def run_plainly(self, j: int) -> tuple[Any, RandomState | None]:
        call = self.calls[j]
        self.streaming.seed(self.i, call)
        result = call.function(*call.args, **call.kwargs)
        return result, random_state(self.streaming.store.device) if call.training else None

    def forward(self) -> list[Tensor]:
        """All microbatches; returns the differentiable outputs, microbatch by microbatch."""
        streaming, differentiable = self.streaming, []
        for owner in streaming.needs[self.i] if self.goes_back else ():
            streaming.backward_visits[owner] = streaming.backward_visits.get(owner, 0) + 1
        streaming.clock.start()
        self.slabs = streaming.fetch(self.i)
        if self.policy == "at_once":
            streaming.bind_gradients(self.i)
        try:
            for j, call in enumerate(self.calls):
                leaves, structure = self.flat[j]
                fresh = [t.detach().requires_grad_() if needs_grad(t) else t for t in leaves]
                self.leaves.append([t for t, given in zip(fresh, leaves, strict=True) if needs_grad(given)])
                args, kwargs = pytree.tree_unflatten(fresh, structure)
                streaming.seed(self.i, call)
                if self.policy == "recompute":
                    with torch.no_grad():
                        result = call.function(*args, **kwargs)
                    self.flat[j] = (fresh if self.goes_back else [], structure)
                else:
                    given = [t for t in leaves if isinstance(t, Tensor) and not t.requires_grad]
                    given += streaming.resident[self.i]
                    with (
                        torch.enable_grad(),
                        streaming.saved.record(self.i, self.number, j, self.policy, self.slabs, given),
                    ):
                        result = call.function(*args, **kwargs)
                    self.flat[j] = ([], structure)
                self.generators.append(random_state(streaming.store.device) if call.training else None)
                outputs, structure = pytree.tree_flatten(result)
                any_float = self.policy == "recompute" and self.goes_back  # there is no graph yet to tell
                chosen = [_floats(t) if any_float else needs_grad(t) for t in outputs]
                if self.policy == "at_once":
                    [loss] = [t for t, yes in zip(outputs, chosen, strict=True) if yes]
                    streaming.clock.forward(self.i)
                    loss.backward(torch.full_like(loss, streaming.loss_gradient))
                    streaming.clock.backward(self.i)
                elif self.policy != "recompute":
                    self.edges.append([get_gradient_edge(t) for t, yes in zip(outputs, chosen, strict=True) if yes])
                    for leaf in self.leaves[-1]:
                        leaf.data = placeholder(
                            leaf.shape, leaf.device
                        )  # its memory belongs to what was saved, or to nobody
                if self.policy == "spill":
                    streaming.limit.make_room()
                differentiable += [t.detach() for t, yes in zip(outputs, chosen, strict=True) if yes]
                rest = [_Differentiable if yes else t for t, yes in zip(outputs, chosen, strict=True)]
                self.outputs.append((rest, structure))
            streaming.clock.forward(self.i)
            if self.policy == "at_once":
                streaming.gradients_done(self.i, self.slabs)
        finally:
            streaming.release(self.i, self.slabs)
            self.slabs = {}
        if self.policy != "recompute":  # inputs are in what was saved, or needed by nobody
            self.calls = [replace(call, args=(), kwargs={}) for call in self.calls]
        self.counts = [sum(t is _Differentiable for t in rest) for rest, _ in self.outputs]
        return differentiable

    def results(self, differentiable: list[Tensor]) -> list[tuple[Any, RandomState | None]]:
        """Put the differentiable outputs, now part of the graph, back where they were."""
        queue = iter(differentiable)
        results = []
        for (rest, structure), generator in zip(self.outputs, self.generators, strict=True):
            leaves = [next(queue) if t is _Differentiable else t for t in rest]
            results.append((pytree.tree_unflatten(leaves, structure), generator))
        self.outputs, self.generators = [], []
        return results

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the differentiable outputs in, of the inputs out, both microbatch by microbatch."""
        streaming, result = self.streaming, []
        if self.policy == "at_once":
            factors = {g.item() for g in gradients if g is not None}
            assert factors == {streaming.loss_gradient}, (
                f"the loss was multiplied by {factors} after the head's backward"
            )
            return [leaf.grad for leaves in self.leaves for leaf in leaves]
        streaming.clock.start()
        slabs = streaming.fetch(self.i)
        streaming.saved.weights(self.number, slabs)
        try:
            streaming.bind_gradients(self.i)
            queue = iter(gradients)
            for j, call in enumerate(self.calls):
                mine = [next(queue) for _ in range(self.counts[j])]
                if self.policy == "recompute":
                    edges = self._run_again(j, call)
                else:
                    edges = self.edges[j]
                    streaming.saved.expect(self.number, j)
                pairs = [(edge, g) for edge, g in zip(edges, mine, strict=True) if edge is not None and g is not None]
                if pairs:
                    torch.autograd.backward([edge for edge, _ in pairs], [g for _, g in pairs])
                streaming.saved.done(self.number, j)
                result += [leaf.grad for leaf in self.leaves[j]]
                self.leaves[j] = []
                if self.policy != "recompute":
                    self.edges[j] = []
                self.flat[j] = ([], None)
            streaming.clock.backward(self.i)
            streaming.gradients_done(self.i, slabs)
        finally:
            streaming.saved.weights(self.number, {})
            streaming.release(self.i, slabs)
        return result

    def _run_again(self, j: int, call: Call) -> list[GradientEdge | None]:
        fresh, structure = self.flat[j]
        args, kwargs = pytree.tree_unflatten(fresh, structure)
        self.streaming.seed(self.i, call)
        with torch.enable_grad(), self.streaming.autocast():
            outputs, _ = pytree.tree_flatten(call.function(*args, **kwargs))
        return [get_gradient_edge(t) if t.requires_grad else None for t in outputs if _floats(t)]


class VisitFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, visit: Visit, anchor: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.visit = visit
        ctx.set_materialize_grads(False)
        return tuple(visit.forward())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        visit, ctx.visit = ctx.visit, None
        assert visit is not None, "the graph of a streamed segment can be used once"
        return (None, None, *visit.backward(gradients))


class _Differentiable:
    """Stands for an output that went through autograd."""


def _floats(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def needs_grad(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad
