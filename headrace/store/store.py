"""All segments' state, each on the tier it was placed on, and what a training step asks of it.

Enters: gradients, segment by segment (`headrace.store.gradients`). Leaves: the exact global norm, and updates: at once
where the state is on the device, on the next fetch where it is in host memory or on disk; those are done on the host.
"""

import os
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from headrace.models.blank import placeholder
from headrace.models.segments import Segment
from headrace.optim.rule import Rule
from headrace.store.device import DeviceSegment
from headrace.store.disk import DiskSegment
from headrace.store.files import aligned
from headrace.store.gradients import Gradients
from headrace.store.layout import layout_of
from headrace.store.memory import Pool
from headrace.store.placement import Placement, apart, make_ring, make_states, take_folder, weight_file
from headrace.store.ram import RamSegment
from headrace.store.roles import Update, first_values
from headrace.store.traffic import Traffic
from headrace.store.transfer import Mark, Transfer, transfer_to

IO_THREADS = 4


class Store:
    """State of every segment. Invariant: between steps, a disk segment's files and its pending update together are its
    state."""

    def __init__(
        self,
        segments: Sequence[Segment],
        rule: Rule,
        no_decay: Sequence[str],
        device: torch.device,
        placements: Sequence[Placement] | None = None,
        folder: Path | None = None,
        *,
        held_gradient_bytes: int = 0,
        stage_bytes: int = 0,
        eager: bool = False,
        seed: int = 0,
    ):
        """folder: where disk segments keep their files. held_gradient_bytes: how much of their gradients may stay in
        memory from backward to update; the rest is spilled. stage_bytes: how much state may be read while a step ends, for the
        updates that the next one begins with. eager: update each segment as soon as its gradient is whole,
        which needs no global norm and holds no gradient. seed: of stochastic rounding."""
        self.segments, self.device, self.rule = list(segments), device, rule
        self.placements: list[Placement] = list(placements) if placements is not None else ["device"] * len(segments)
        self.layouts = [layout_of(segment, no_decay) for segment in segments]
        for i, layout in enumerate(self.layouts):
            if not layout.entries:  # it only borrows: nothing to place
                self.placements[i] = "device"
        self.transfer: Transfer | None = transfer_to(device) if apart(device, self.placements) else None
        """None: segments are fetched into the memory that the device computes in."""
        self.folder, self.weight_dtype = folder, rule.weight_dtype
        self.eager, self.seed, self.stage_bytes = eager, seed, stage_bytes
        assert eager or not rule.needs_whole_parameter or "disk" not in self.placements, "this rule updates eagerly"
        self.threads = ThreadPoolExecutor(IO_THREADS, thread_name_prefix="headrace-io")
        self.traffic = Traffic(len(self.segments))
        self.states = make_states(
            self.segments,
            self.layouts,
            self.placements,
            rule,
            device,
            self.transfer,
            folder,
            self.threads,
            self.traffic,
        )
        self._unlock: weakref.finalize | None = None
        if "disk" in self.placements:
            assert folder is not None
            self._unlock = weakref.finalize(self, os.close, take_folder(folder))
        self.ring = make_ring(self.states, rule)
        self.due: Update | None = None
        self.owner = {entry.name: i for i, layout in enumerate(self.layouts) for entry in layout.entries}
        self.gradients = Gradients(
            self.segments, self.states, self.owner, device, self.transfer, self.traffic, held_gradient_bytes, eager
        )
        # Host memory for weights of a disk segment that is updated in backward.
        self._weights_again: Tensor | None = None

    @property
    def num_parameters(self) -> int:
        return sum(layout.trainable_size for layout in self.layouts)

    def weight_file(self, i: int, trains: bool = True) -> str:
        return weight_file(i, len(self.layouts), trains)

    def device_state(self, i: int) -> DeviceSegment | None:
        state = self.states[i]
        return state if isinstance(state, DeviceSegment) else None

    @torch.no_grad()
    def fill(self, i: int, weights: Mapping[str, Tensor]) -> None:
        """Give segment i these weights, by name, and its optimizer no history."""
        state, layout = self.states[i], self.layouts[i]
        self.forget(i)
        if not isinstance(state, DiskSegment):
            state.fill(weights, self.rule)
        else:
            slab = aligned(4 * layout.size).view(torch.float32)[: layout.size]
            state.create(slab, first_values(layout, self.rule, state.roles, weights, slab))

    def forget(self, i: int) -> None:
        """Segment i gets another state from elsewhere: drop what is known of the old one."""
        state = self.states[i]
        if isinstance(state, DeviceSegment):
            return
        state.pending = None
        state.drop_gradient()
        self.gradients.give_back(i)
        if isinstance(state, DiskSegment):
            state.sums.clear()
        for name, parameter in self.segments[i].parameters.items():
            parameter.data = placeholder(self.layouts[i].entry(name).shape, self.device)

    def weights(self, i: int) -> dict[str, Tensor]:
        """Segment i's weights as they are between steps, copied."""
        state, layout = self.states[i], self.layouts[i]
        if isinstance(state, DeviceSegment):
            return {entry.name: entry.view(state.weight).clone() for entry in layout.entries}
        assert state.pending is None, "flush first"
        if isinstance(state, RamSegment):
            return {entry.name: entry.view(state.weight).clone() for entry in layout.entries}
        slab = aligned(4 * layout.size).view(torch.float32)[: layout.size]
        state.load(slab, self.ring)
        return {entry.name: entry.view(slab) for entry in layout.entries}

    # ---- a step

    def expect_update(self, *, step: int, lr: float, gradient_scale: float = 1.0) -> None:
        """Before backward: what `update` will be called with. With eager updates, disk segments go ahead with it."""
        self.due = Update(self.rule, step, lr, gradient_scale, self.seed) if self.eager else None

    def finish_gradient(self, i: int, weights: Tensor | None = None) -> None:
        """All of the segment's gradient is there: keep it or, when updates are eager, use it on the segment's weights."""
        finished = self.gradients.finish(i)
        if finished is None:
            return
        if self.due is None:
            self.gradients.keep(i, *finished)
            return
        assert weights is not None, "an eager update needs the weights of its segment at hand"
        state = self.states[i]
        assert not isinstance(state, DeviceSegment)
        self.gradients.hold(i, *finished)
        state.pending = self.due
        weights = weights[: self.layouts[i].trainable_size]
        if isinstance(state, DiskSegment) and self.transfer is not None:
            weights = self._bring_weights(self.transfer, i, weights)
        self.gradients.wait(i)
        if isinstance(state, DiskSegment):
            state.update(weights, self.ring, have_weights=True)
        else:
            state.load()
        self.gradients.give_back(i)

    def gradient_norm(self) -> Tensor:
        """Global L2 norm of the gradients, a Tensor (); bits of `torch.nn.utils.get_total_norm`."""
        for i in self.gradients.unfinished():
            self.finish_gradient(i)
        return self.gradients.norm()

    def update(self, *, step: int, lr: float, gradient_scale: float | Tensor) -> None:
        """One optimizer update of every segment. step counts from 1."""
        update = Update(self.rule, step, lr, gradient_scale, self.seed)
        host_scale = gradient_scale.cpu() if isinstance(gradient_scale, Tensor) else gradient_scale
        later = Update(self.rule, step, lr, host_scale, self.seed)
        eager, self.due = self.due is not None, None
        for i, state in enumerate(self.states):
            if isinstance(state, DeviceSegment):
                state.update(update)
            elif self.layouts[i].trainable_size and not eager:
                assert state.pending is None, f"segment {state.layout.segment} still lacks an update"
                state.pending = later

    def _bring_weights(self, transfer: Transfer, i: int, weights: Tensor) -> Tensor:
        """What trains of a fetched segment's weights, on the host again."""
        if self._weights_again is None:
            on_disk = [layout for layout, p in zip(self.layouts, self.placements, strict=True) if p == "disk"]
            self._weights_again = transfer.host_memory(4 * max(layout.trainable_size for layout in on_disk))
        host = self._weights_again.view(torch.float32)[: len(weights)]
        transfer.wait(transfer.bring(weights, host))
        self.traffic.segments[i].add_link("weight", weights.nbytes, sent=False)
        return host

    # ---- fetching

    def host_slab(self, i: int) -> Tensor | None:
        """Where a segment's weights (size,) fp32 are on the host all the time; None: `load` needs a slab for them."""
        state = self.states[i]
        return state.weight if isinstance(state, RamSegment) else None

    def load(self, i: int, slab: Tensor) -> None:
        """Fill the slab of a fetched segment in host memory, updated; called on one thread at a time."""
        state = self.states[i]
        assert not isinstance(state, DeviceSegment)
        with self._gradient_at_hand(i):
            if isinstance(state, DiskSegment):
                state.load(slab, self.ring)
            else:
                state.load()

    @contextmanager
    def _gradient_at_hand(self, i: int) -> Iterator[None]:
        """Around a load or update of a fetched segment: its gradient has come when it begins, and is free when it ends."""
        state = self.states[i]
        assert not isinstance(state, DeviceSegment)
        had = state.pending is not None
        if had:
            self.gradients.wait(i)
        yield
        if had:
            self.gradients.give_back(i)

    def sent(self, i: int, mark: Mark) -> None:
        """Segment i's weights are on their way to the device until the mark."""
        state = self.states[i]
        assert not isinstance(state, DeviceSegment)
        self.traffic.segments[i].add_link("weight", 4 * self.layouts[i].size, sent=True)
        if isinstance(state, RamSegment):
            state.sent = mark

    def to_stage(self, order: Sequence[int], needs: Sequence[tuple[int, ...]]) -> list[int]:
        """The first segments of a step's order whose state can be read before their update is known."""
        chosen: list[int] = []
        left = self.stage_bytes
        if self.eager or self.weight_dtype is not torch.float32:
            return chosen
        for i in order:
            state = self.states[i]
            if i in chosen or needs[i] != (i,) or not isinstance(state, DiskSegment) or self.state_bytes(i) > left:
                break
            left -= self.state_bytes(i)
            chosen.append(i)
        return chosen

    def state_bytes(self, i: int) -> int:
        """Of the optimizer's state of segment i."""
        return sum(role.num_bytes for role in self.states[i].roles)

    def stage(self, i: int, slab: Tensor) -> None:
        """Begin a `load` of a disk segment into this slab, before its update is known; on the thread of `load`."""
        state = self.states[i]
        assert isinstance(state, DiskSegment)
        state.stage(slab)

    def unstage(self, owners: Collection[int]) -> None:
        """There will be no `load` that ends what `stage` began."""
        for i in owners:
            state = self.states[i]
            if isinstance(state, DiskSegment):
                state.unstage()

    def flush(self, sums: bool = False) -> None:
        """Do every update that is due. Nothing may be fetching meanwhile."""
        due: dict[int, DiskSegment] = {}
        for i, state in enumerate(self.states):
            if isinstance(state, RamSegment) and state.pending:
                self.load(i, state.weight)
            elif isinstance(state, DiskSegment) and state.pending:
                due[i] = state
        if due:
            pool = Pool(max(4 * self.layouts[i].trainable_size for i in due) + 4096)
            for i, state in due.items():
                size = self.layouts[i].trainable_size
                memory = pool.take(4 * size)
                with self._gradient_at_hand(i):
                    state.update(memory.view(torch.float32)[:size], self.ring, sums)
                pool.give(memory)

    def close(self) -> None:
        self.gradients.close()
        self.threads.shutdown(wait=True, cancel_futures=True)
        if self.transfer is not None:
            self.transfer.close()
        if self._unlock is not None:
            self._unlock()
