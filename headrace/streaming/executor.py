"""Runs segments: the meeting point of model, store, fetcher and activations.

Dropout draws from (seed, step, segment, microbatch), so its numbers do not depend on the order or place in which segments
run.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from headrace.models.blank import placeholder
from headrace.models.segments import Segment
from headrace.store.folder import FolderStore
from headrace.store.layout import Entry
from headrace.store.memory import Limit
from headrace.store.store import Store
from headrace.streaming.activations import Policy, Saved
from headrace.streaming.clock import Clock
from headrace.streaming.fetch import Fetcher
from headrace.streaming.generator import seed_generators, set_random_state
from headrace.streaming.lockstep import lane_number, meet, run_in_lanes
from headrace.streaming.visit import Call, Visit, VisitFunction, needs_grad
from headrace.text.random import key

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class Pass:
    """Which pass through the model is running; the training step moves it, segments read it."""

    seed: int
    step: int = 0
    microbatch: int = 0
    """Of lane 0, or of the only one."""


class Streaming:
    """Runs segments: the meeting point of model, store, fetcher and activations."""

    def __init__(
        self,
        segments: Sequence[Segment],
        store: Store | FolderStore,
        running: Pass,
        saved: Saved,
        policies: Sequence[Policy],
        pool_bytes: int = 0,
        host_pool_bytes: int = 0,
        autocast: Callable[[], Any] = nullcontext,
        head: int = -1,
        tidy_above_bytes: int | None = None,
    ):
        """store: a FolderStore runs forward only. policies: how each segment keeps what its backward needs. head: the
        segment the task runs itself. tidy_above_bytes: when the process takes more than this, what is freed goes back to the
        system at once. pool_bytes, host_pool_bytes: as `Fetcher`'s."""
        self.store, self.running, self.saved = store, running, saved
        self.policies, self.autocast = list(policies), autocast
        owner = {name: i for i, segment in enumerate(segments) for name in segment.parameters}
        parameters = {name: p for segment in segments for name, p in segment.parameters.items()}
        entries = {entry.name: entry for layout in store.layouts for entry in layout.entries}
        # Per segment: its parameters that are fetched, the segment that owns each, and its place there.
        self.fetched: list[list[tuple[nn.Parameter, int, Entry]]] = []
        needs = []
        for segment in segments:
            names = [*segment.parameters, *segment.borrowed]
            elsewhere = [name for name in names if store.placements[owner[name]] != "device"]
            self.fetched.append([(parameters[name], owner[name], entries[name]) for name in elsewhere])
            needs.append(tuple(sorted({owner[name] for name in elsewhere})))
        self.needs = needs
        # Slabs on the device that a segment's saved tensors may lie in.
        self.resident = [
            [state.weight for j in {owner[n] for n in (*s.parameters, *s.borrowed)} if (state := store.device_state(j))]
            for s in segments
        ]
        # Weights another segment owns, with its entry: their gradients are collected apart, wherever they are.
        self.borrowed = [
            [(parameters[name], entries[name]) for name in segment.borrowed if parameters[name].requires_grad]
            for segment in segments
        ]
        # Whether a segment uses weights that train.
        self.trains = [
            any(parameters[name].requires_grad for name in (*segment.parameters, *segment.borrowed))
            for segment in segments
        ]
        self.limit = Limit(tidy_above_bytes)
        self.fetcher = Fetcher(store, needs, pool_bytes, self.limit, host_pool_bytes)
        self.clock = Clock(len(segments), self._waited_s)
        self.head = head % len(segments)
        self.one_stack = len({s.name.rpartition("block-")[0] for s in segments if "block-" in s.name}) == 1
        self.training = True
        self.loss_gradient = 1.0
        self.history: list[int] = []
        self.num_visits = 0
        # A first guess; then what the step before visited.
        self.order: list[int] = [*range(len(segments))]
        first = self.trains.index(True) if True in self.trains else 0
        self.order += [i for i in reversed(self.order) if self.policies[i] != "at_once" and i >= first]
        self.backward_visits: dict[int, int] = {}

    @property
    def streams(self) -> bool:
        """Whether anything has to be fetched."""
        return any(self.needs)

    @property
    def training_store(self) -> Store:
        """The store, where gradients go."""
        assert isinstance(self.store, Store), "weights of a folder are read only"
        return self.store

    # ---- a step

    def begin(self, step: int, loss_gradient: float = 1.0) -> None:
        """Before the first forward of a step: start fetching. loss_gradient: what the loss is multiplied by."""
        self.running.step, self.running.microbatch, self.loss_gradient = step, 0, loss_gradient
        self.history, self.backward_visits, self.num_visits = [], {}, 0
        fetched = [i for i in self.order if self.needs[i]]
        self.fetcher.expect(fetched, then=self.training_store.to_stage(fetched, self.needs))

    def end(self) -> None:
        """After the last backward of a step: what was visited is what the next step is expected to visit."""
        self.order = self.history
        self.saved.clear()
        if self.fetcher.ahead:  # expected and not visited
            self.fetcher.rest()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Around forward passes without gradients or dropout: fetches ahead in forward order, again and again."""
        self.fetcher.expect(list(dict.fromkeys(self.order)), again=True)
        self.history, was_training = [], self.training  # what is visited here is not what the next step visits
        self.training = False
        try:
            yield
        finally:
            self.training = was_training
            self.fetcher.rest()

    def close(self) -> None:
        self.fetcher.close()
        self.saved.close()

    # ---- segments

    def run(self, i: int, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], training: bool):
        """Run one lane's microbatch through segment i; with the other lanes when the segment is fetched for it."""
        call = Call(function, args, kwargs, self.running.microbatch + (lane_number() or 0), training)
        # With other lanes, autograd would add up microbatches from the last to the first; with two stacks, what both
        # read would be added up in an order that no separate segments can follow.
        # Where something streams every segment is a visit: alike whatever the number of microbatches, and on the clock.
        alone = lane_number() is None and self.one_stack and not self.streams
        if alone and not self.needs[i] and not self.borrowed[i] and self.policies[i] == "keep":
            self.seed(i, call)
            return function(*args, **kwargs)
        result, generator = meet(i, call, self.together)
        if generator is not None:
            set_random_state(generator, self.store.device)
        return result

    def run_head(self, function: Callable[..., Any], *tensors: Tensor) -> Any:
        """Run what the task does with the last segment's weights."""
        return self.run(self.head, function, tensors, {}, self.training)

    def in_lanes(self, function: Callable[[T], R], microbatches: Sequence[T]) -> list[R]:
        """function(microbatch) for all of them, in lock step."""
        if len(microbatches) == 1:
            results = [function(microbatches[0])]
        else:
            lanes = [lambda microbatch=microbatch: function(microbatch) for microbatch in microbatches]
            results = run_in_lanes(lanes, self.together)
        self.running.microbatch += len(microbatches)
        return results

    def groups(self, microbatches: Sequence[T]) -> list[list[T]]:
        """Microbatches that go through the model together: all when weights are fetched, or else one at a time, because
        then nothing is gained by holding all their activations."""
        return [list(microbatches)] if self.streams else [[microbatch] for microbatch in microbatches]

    def together(self, i: int, calls: list[Any]) -> list[Any]:
        """Run segment i for all lanes: (result, state of the random generator after it) for each."""
        flat = [pytree.tree_flatten((call.args, call.kwargs)) for call in calls]
        visit = Visit(self, i, calls, flat)
        if torch.is_grad_enabled():
            differentiable = [t for leaves, _ in flat for t in leaves if needs_grad(t)]
            anchor = torch.zeros((), requires_grad=True)  # weights alone need a gradient, too
            outputs = VisitFunction.apply(visit, anchor, *differentiable) if visit.goes_back else visit.forward()
            return visit.results(list(outputs))
        slabs = self.fetch(i)
        try:
            return [visit.run_plainly(j) for j in range(len(calls))]
        finally:
            self.release(i, slabs)

    def fetch(self, i: int) -> dict[int, tuple[Tensor, Tensor]]:
        """Bring in and bind the weights segment i uses."""
        if not self.needs[i]:
            return {}
        self.history.append(i)
        slabs = self.fetcher.fetch(i)
        for parameter, owner, entry in self.fetched[i]:
            parameter.data = entry.view(slabs[owner][1])
        return slabs

    def release(self, i: int, slabs: dict[int, tuple[Tensor, Tensor]]) -> None:
        for parameter, entry in self.borrowed[i]:
            parameter.grad = self.training_store.gradients.own(entry)
        for parameter, _, entry in self.fetched[i]:
            parameter.data = placeholder(entry.shape, self.store.device)
            parameter.grad = None
        self.fetcher.release(slabs)
        self.limit.make_room()

    def number_visit(self) -> int:
        self.num_visits += 1
        return self.num_visits

    def bind_gradients(self, i: int) -> None:
        for parameter, owner, entry in self.fetched[i]:
            if parameter.requires_grad and owner == i:
                parameter.grad = entry.view(self.training_store.gradients.slab(owner))
        for parameter, entry in self.borrowed[i]:
            parameter.grad = self.training_store.gradients.borrowed(i, entry.name)

    def gradients_done(self, i: int, slabs: dict[int, tuple[Tensor, Tensor]]) -> None:
        """A backward visit ends; a segment's gradient is whole when everyone who used its weights was there."""
        for owner in self.needs[i]:
            self.backward_visits[owner] = self.backward_visits.get(owner, 0) - 1
            if self.backward_visits[owner] == 0:
                self.training_store.finish_gradient(owner, slabs[owner][1])

    def _waited_s(self) -> float:
        """How long computing has waited so far."""
        store = self.training_store
        pools = {store.gradients.pool, store.gradients.held_pool}
        return self.fetcher.waited_s + self.saved.waited_s + sum(pool.waited_s for pool in pools)

    def seed(self, i: int, call: Call) -> None:
        if call.training:
            seed = key("dropout", self.running.seed, self.running.step, i, call.microbatch)
            seed_generators(seed, self.store.device)
