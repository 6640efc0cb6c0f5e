"""All segments' state, each on the tier it was placed on, and what a training step asks of it.

Enters: gradients, segment by segment. Leaves: the exact global norm, and updates: at once where the state is on the
device, on the next fetch where it is in host memory or on disk; those are done on the host.

    device    weights, gradients, state    what computes, and slabs of segments that are fetched
    ram       weights, gradients, state    of a device apart from it: a GPU, or on a CPU its twin (`store.transfer`)
    disk      weights, state               gradients held in host memory, or spilled
"""

import fcntl
import os
import weakref
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from headrace.errors import UserError
from headrace.models.blank import placeholder
from headrace.models.segments import Segment
from headrace.optim import join_norms, tensor_norms
from headrace.optim.rule import Rule
from headrace.store.device import DeviceSegment
from headrace.store.disk import DEPTH, DiskSegment, Ring
from headrace.store.files import aligned, pages
from headrace.store.layout import Entry, Layout, layout_of
from headrace.store.memory import Pool
from headrace.store.ram import RamSegment
from headrace.store.roles import Update, first_values
from headrace.store.traffic import Traffic
from headrace.store.transfer import Mark, Transfer, transfer_to

Placement = Literal["device", "ram", "disk"]
IO_THREADS = 4
STAGING_BYTES = 16 << 20


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
        self.transfer: Transfer | None = None
        """None: segments are fetched into the memory that the device computes in."""
        if apart(device, self.placements):
            self.transfer = transfer_to(device)
        self._unlock: weakref.finalize | None = None
        self.threads = ThreadPoolExecutor(IO_THREADS, thread_name_prefix="headrace-io")
        self.traffic = Traffic(len(self.segments))
        self.folder, self.weight_dtype = folder, rule.weight_dtype
        self.eager, self.seed = eager, seed
        assert eager or not rule.needs_whole_parameter or "disk" not in self.placements, "this rule updates eagerly"
        self.states: list[DeviceSegment | RamSegment | DiskSegment] = []
        for i, (segment, layout, placement) in enumerate(zip(segments, self.layouts, self.placements, strict=True)):
            if placement == "device":
                self.states.append(DeviceSegment(segment, layout, rule, device))
                continue
            if placement == "ram":
                assert self.transfer is not None
                self.states.append(RamSegment(layout, rule, self.transfer))
                continue
            assert folder is not None
            live = folder / "live"
            (live / "optimizer").mkdir(parents=True, exist_ok=True)
            number = f"{i:03d}-{layout.segment}"
            self.states.append(
                DiskSegment(
                    layout,
                    rule,
                    live / self.weight_file(i),
                    live / "optimizer" / number,
                    folder / "scratch" / f"{number}.gradient.safetensors",
                    self.threads,
                    self.traffic.segments[i],
                )
            )
        on_disk = [state for state in self.states if isinstance(state, DiskSegment)]
        if on_disk:
            assert folder is not None
            (folder / "scratch").mkdir(exist_ok=True)
            self._unlock = weakref.finalize(self, os.close, _lock(folder))
            for left_over in [*(folder / "live").rglob("*.new"), *(folder / "scratch").iterdir()]:
                left_over.unlink()
        need: dict[str, int] = {}
        for state in on_disk:
            for name, size in state.ring_bytes().items():
                need[name] = max(need.get(name, 0), size)
        staging_bytes = 0 if self.weight_dtype is torch.float32 else STAGING_BYTES
        self.ring = Ring(need, 1 if rule.needs_whole_parameter else DEPTH, staging_bytes)
        self.due: Update | None = None
        self.held_gradient_bytes, self.stage_bytes = held_gradient_bytes, stage_bytes
        self.owner = {entry.name: i for i, layout in enumerate(self.layouts) for entry in layout.entries}
        borrowed_bytes = sum(
            4 * self.layouts[self.owner[name]].entry(name).size + 4096
            for segment in segments
            for name in segment.borrowed
            if self.placements[self.owner[name]] != "device"
        )
        room = gradient_room([4 * state.layout.trainable_size for state in on_disk], eager)
        if self.transfer is None:
            self.gradient_pool = self.held_pool = Pool(held_gradient_bytes + room + borrowed_bytes)
        else:
            fetched = [state for state in self.states if not isinstance(state, DeviceSegment)]
            sizes = [4 * state.layout.trainable_size for state in fetched]
            self.gradient_pool = Pool(gradient_room(sizes, eager) + borrowed_bytes, self.transfer.device_memory)
            in_ram = [4 * state.layout.trainable_size for state in fetched if isinstance(state, RamSegment)]
            held_bytes = held_gradient_bytes + ram_gradient_bytes(in_ram, eager)
            self.held_pool = Pool(held_bytes + room, self.transfer.host_memory)
        """Of gradients in backward, where computing is; and of those that wait for their update, on the host."""
        self._borrowed: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}  # memory, gradient, by borrower and name
        self._gradients: dict[int, tuple[Tensor, Tensor]] = {}  # memory, slab: segments in backward now
        self._held: dict[int, Tensor] = {}  # memory of gradients that wait for their update
        self._arriving: dict[int, Mark] = {}  # by segment, gradients on their way to the host
        self._leaving: dict[int, Mark] = {}  # by address, the memory on the device that they leave
        self._weights_again: Tensor | None = (
            None  # host memory for weights of a disk segment that is updated in backward
        )
        self._spills: list[Future[None]] = []

    @property
    def num_parameters(self) -> int:
        return sum(layout.trainable_size for layout in self.layouts)

    def weight_file(self, i: int) -> str:
        return f"model-{i + 1:05d}-of-{len(self.layouts):05d}.safetensors"

    def device_state(self, i: int) -> DeviceSegment | None:
        state = self.states[i]
        return state if isinstance(state, DeviceSegment) else None

    @torch.no_grad()
    def fill(self, i: int, weights: Mapping[str, Tensor]) -> None:
        """Give segment i these weights, by name, and its optimizer no history."""
        state, layout = self.states[i], self.layouts[i]
        if isinstance(state, DeviceSegment):
            state.fill(weights, self.rule)
            return
        if isinstance(state, RamSegment):
            state.fill(weights, self.rule)
        else:
            slab = aligned(4 * layout.size).view(torch.float32)[: layout.size]
            state.create(slab, first_values(layout, self.rule, state.roles, weights, slab))
        self.forget(i)

    def forget(self, i: int) -> None:
        """Segment i gets another state from elsewhere: drop what is known of the old one."""
        state = self.states[i]
        if isinstance(state, DeviceSegment):
            return
        state.pending = None
        state.drop_gradient()
        self.give_back_gradient(i)
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

    # ---- gradients

    def zero_gradients(self) -> None:
        """Begin a step."""
        for state in self.states:
            if isinstance(state, DeviceSegment):
                state.gradient.zero_()
        for _, gradient in self._borrowed.values():
            gradient.zero_()

    def gradient(self, i: int) -> Tensor:
        """The gradient slab of a fetched segment in this step's backward, zeros at first (trainable_size,) fp32."""
        if i not in self._gradients:
            memory = self.gradient_pool.take(4 * self.layouts[i].trainable_size)
            if self.transfer is not None:
                self.transfer.before_computing(self._leaving.pop(memory.data_ptr(), None))
            slab = memory.view(torch.float32)[: self.layouts[i].trainable_size].zero_()
            self._gradients[i] = memory, slab
        return self._gradients[i][1]

    def borrowed_gradient(self, borrower: int, name: str) -> Tensor:
        """Where the gradient of a weight goes that `borrower` uses and another segment owns: apart from the owner's, so
        that the sum of both does not depend on the order in which microbatches and segments run."""
        if (borrower, name) not in self._borrowed:
            owner = self.owner[name]
            entry = self.layouts[owner].entry(name)
            if self.placements[owner] == "device":
                memory = torch.zeros(4 * entry.size, dtype=torch.uint8, device=self.device)
            else:
                memory = self.gradient_pool.take(4 * entry.size)
                if self.transfer is not None:
                    self.transfer.before_computing(self._leaving.pop(memory.data_ptr(), None))
            gradient = memory.view(torch.float32)[: entry.size].view(entry.shape).zero_()
            self._borrowed[borrower, name] = memory, gradient
        return self._borrowed[borrower, name][1]

    def own_gradient(self, entry: Entry) -> Tensor | None:
        """What a parameter's .grad is between visits of its segment: a view of the slab on the device, else nothing."""
        state = self.states[self.owner[entry.name]]
        return entry.view(state.gradient) if isinstance(state, DeviceSegment) else None

    def _add_borrowed(self, i: int, slab: Tensor) -> None:
        """Add what borrowers of segment i's weights contribute, in segment order."""
        for borrower, name in sorted(key for key in self._borrowed if self.owner[key[1]] == i):
            memory, gradient = self._borrowed[borrower, name]
            self.layouts[i].entry(name).view(slab).add_(gradient)
            if self.placements[i] != "device":
                del self._borrowed[borrower, name]
                self.gradient_pool.give(memory)

    def finish_gradient(self, i: int, weights: Tensor | None = None) -> None:
        """All of the segment's gradient is there: note its norms; keep it, write it away or, when updates are eager, use
        it on the segment's weights."""
        if any(self.owner[name] == i for _, name in self._borrowed):
            self.gradient(i)  # it may have none of its own
        if i not in self._gradients:
            return
        memory, slab = self._gradients.pop(i)
        self._add_borrowed(i, slab)
        state = self.states[i]
        assert not isinstance(state, DeviceSegment)
        state.norms = _norms(self.layouts[i], slab)
        if self.transfer is not None:
            memory, slab = self._bring_gradient(self.transfer, i, memory, slab)
        if self.due is not None:
            assert weights is not None, "an eager update needs the weights of its segment at hand"
            state.gradient, state.pending, self._held[i] = slab, self.due, memory
            if isinstance(state, DiskSegment) and self.transfer is not None:
                weights = self._bring_weights(self.transfer, i, weights)
            self._wait_for_gradient(i)
            if isinstance(state, DiskSegment):
                state.load(weights, self.ring, have_weights=True)
            else:
                state.load()
            self.give_back_gradient(i)
            return
        held = sum(held.nbytes for j, held in self._held.items() if self.placements[j] == "disk")
        if isinstance(state, RamSegment) or held + memory.nbytes <= self.held_gradient_bytes:
            state.gradient, self._held[i] = slab, memory
            return
        spill = state.spill(slab, lambda: self._wait_for_gradient(i))
        spill.add_done_callback(lambda _: self.held_pool.give(memory))
        self._spills.append(spill)

    def _bring_gradient(self, transfer: Transfer, i: int, memory: Tensor, slab: Tensor) -> tuple[Tensor, Tensor]:
        """Begin moving a gradient from the device to the host; returns its memory and slab there."""
        host = self.held_pool.take(4 * len(slab))
        there = host.view(torch.float32)[: len(slab)]
        mark = transfer.bring(slab, there)
        self.traffic.segments[i].add_link("gradient", slab.nbytes, sent=False)
        self._arriving[i] = self._leaving[memory.data_ptr()] = mark
        self.gradient_pool.give(memory)
        return host, there

    def _bring_weights(self, transfer: Transfer, i: int, weights: Tensor) -> Tensor:
        """A fetched segment's weights on the host again."""
        if self._weights_again is None:
            sizes = [layout.size for layout, p in zip(self.layouts, self.placements, strict=True) if p == "disk"]
            self._weights_again = transfer.host_memory(4 * max(sizes))
        host = self._weights_again.view(torch.float32)[: len(weights)]
        transfer.wait(transfer.bring(weights, host))
        self.traffic.segments[i].add_link("weight", weights.nbytes, sent=False)
        return host

    def _wait_for_gradient(self, i: int) -> None:
        """Until segment i's gradient has come to the host."""
        if self.transfer is not None:
            self.transfer.wait(self._arriving.pop(i, None))

    def gradient_norm(self) -> Tensor:
        """Global L2 norm of the gradients, a Tensor (); bits of `torch.nn.utils.get_total_norm`."""
        owners = {self.owner[name] for _, name in self._borrowed}
        for i in sorted({*self._gradients, *owners}):
            state = self.states[i]
            if isinstance(state, DeviceSegment):
                self._add_borrowed(i, state.gradient)
            else:
                self.finish_gradient(i)
        while self._spills:
            self._spills.pop().result()
        norms: list[Tensor] = []
        for segment, layout, state in zip(self.segments, self.layouts, self.states, strict=True):
            own = _norms(layout, state.gradient) if isinstance(state, DeviceSegment) else state.norms
            zero = torch.zeros((), device=self.device)
            norms += [own.get(name, zero) for name, p in segment.parameters.items() if p.requires_grad]
        return join_norms(norms)

    # ---- updates

    def expect_update(self, *, step: int, lr: float, gradient_scale: float = 1.0) -> None:
        """Before backward: what `update` will be called with. With eager updates, disk segments go ahead with it."""
        self.due = Update(self.rule, step, lr, gradient_scale, self.seed) if self.eager else None

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

    def drop_gradients(self) -> None:
        """The step is skipped: forget its gradients."""
        for i, state in enumerate(self.states):
            if not isinstance(state, DeviceSegment):
                state.drop_gradient()
                self.give_back_gradient(i)

    def give_back_gradient(self, i: int) -> None:
        """The segment's update is done: its gradient's memory is free."""
        if i in self._held:
            self._wait_for_gradient(i)
            self.held_pool.give(self._held.pop(i))

    def host_slab(self, i: int) -> Tensor | None:
        """Where a segment's weights (size,) fp32 are on the host all the time; None: `load` needs a slab for them."""
        state = self.states[i]
        return state.weight if isinstance(state, RamSegment) else None

    def load(self, i: int, slab: Tensor, sums: bool = False) -> None:
        """Fill the slab of a fetched segment in host memory, updated; called on one thread at a time."""
        state = self.states[i]
        assert not isinstance(state, DeviceSegment)
        had = state.pending is not None
        if had:
            self._wait_for_gradient(i)
        if isinstance(state, DiskSegment):
            state.load(slab, self.ring, sums)
        else:
            state.load()
        if had:
            self.give_back_gradient(i)

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
        if self.eager or self.weight_dtype is not torch.float32 or not left:
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
        due: list[int] = []
        for i, state in enumerate(self.states):
            if isinstance(state, RamSegment) and state.pending:
                self.load(i, state.weight)
            elif isinstance(state, DiskSegment) and state.pending:
                due.append(i)
        if due:
            pool = Pool(max(4 * self.layouts[i].size for i in due) + 4096)
            for i in due:
                memory = pool.take(4 * self.layouts[i].size)
                self.load(i, memory.view(torch.float32)[: self.layouts[i].size], sums)
                pool.give(memory)

    def close(self) -> None:
        self.gradient_pool.close()
        self.held_pool.close()
        self.threads.shutdown(wait=True, cancel_futures=True)
        if self.transfer is not None:
            self.transfer.close()
        if self._unlock is not None:
            self._unlock()


def _lock(folder: Path) -> int:
    """Hold the folder for this process, as long as the handle is open; raises UserError when another one does."""
    handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UserError(
            f"{folder}: another process keeps its state here; wait for it, or choose another store"
        ) from None
    return handle


def apart(device: torch.device, placements: Sequence[Placement]) -> bool:
    """Whether what is fetched goes through host memory to a device apart from it. On a CPU the two are one, unless a segment
    is placed in `ram`: then the device is a second set of slabs, as the twin of a GPU."""
    return any(place != "device" for place in placements) and (device.type != "cpu" or "ram" in placements)


def ram_gradient_bytes(sizes_bytes: Sequence[int], eager: bool) -> int:
    """Host memory for the gradients of segments in `ram`: all of them, or with eager updates one at a time."""
    sizes = [max(pages(size), 1) for size in sizes_bytes] or [0]
    return max(sizes) if eager else sum(sizes)


def gradient_room(sizes_bytes: Sequence[int], eager: bool) -> int:
    """Memory for gradients on their way: one grows, the largest, while two of the usual size before it are written. With
    eager updates none is."""
    sizes = sorted(size + 4096 for size in sizes_bytes) or [0]
    return sizes[-1] + (0 if eager else 2 * sizes[len(sizes) // 2])


def _norms(layout: Layout, gradient: Tensor) -> dict[str, Tensor]:
    views = [entry.view(gradient) for entry in layout.trainable]
    return dict(zip((entry.name for entry in layout.trainable), tensor_norms(views), strict=True))
