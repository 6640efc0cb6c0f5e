"""Gradients from the backward pass that makes them to the update that uses them.

    device       a slab for the whole run; parameters' .grad are views of it
    elsewhere    a slab while the segment is in backward  ->  brought to the host  ->  held in memory, or spilled to disk
    borrowed     of a weight that one segment uses and another owns: apart, added to the owner's in segment order

Each gradient's norms are noted when it is whole, so that the global norm needs none of them again.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from headrace.models.segments import Segment
from headrace.optim import join_norms, tensor_norms
from headrace.store.device import DeviceSegment
from headrace.store.disk import DiskSegment
from headrace.store.files import pages
from headrace.store.layout import Entry, Layout
from headrace.store.memory import Pool
from headrace.store.placement import SegmentState
from headrace.store.ram import RamSegment
from headrace.store.traffic import Traffic
from headrace.store.transfer import Mark, Transfer


class Gradients:
    """The gradients of all segments."""

    def __init__(
        self,
        segments: Sequence[Segment],
        states: Sequence[SegmentState],
        owner: Mapping[str, int],
        device: torch.device,
        transfer: Transfer | None,
        traffic: Traffic,
        held_bytes: int,
        eager: bool,
    ):
        """owner: of each parameter, its segment. held_bytes, eager: as `Store`'s."""
        self.segments, self.states, self.owner = segments, states, owner
        self.device, self.transfer, self.traffic, self.held_bytes = device, transfer, traffic, held_bytes
        self.layouts: list[Layout] = [state.layout for state in states]
        on_disk = [4 * state.layout.trainable_size for state in states if isinstance(state, DiskSegment)]
        in_ram = [4 * state.layout.trainable_size for state in states if isinstance(state, RamSegment)]
        borrowed_bytes = sum(
            4 * self.layouts[owner[name]].entry(name).size + 4096
            for segment in segments
            for name in segment.borrowed
            if not isinstance(states[owner[name]], DeviceSegment)
        )
        room = gradient_room(on_disk, eager)
        self.pool: Pool
        """Of gradients in backward, where computing is."""
        self.held_pool: Pool
        """Of those that wait for their update, on the host."""
        if transfer is None:
            self.pool = self.held_pool = Pool(held_bytes + room + borrowed_bytes)
        else:
            self.pool = Pool(gradient_room(on_disk + in_ram, eager) + borrowed_bytes, transfer.device_memory)
            self.held_pool = Pool(held_bytes + ram_gradient_bytes(in_ram, eager) + room, transfer.host_memory)
        self._borrowed: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}  # memory, gradient, by borrower and name
        self._slabs: dict[int, tuple[Tensor, Tensor]] = {}  # memory, slab: segments in backward now
        self._held: dict[int, Tensor] = {}  # memory of gradients that wait for their update
        self._arriving: dict[int, Mark] = {}  # by segment, gradients on their way to the host
        self._leaving: dict[int, Mark] = {}  # by address, the memory on the device that they leave
        self._spills: list[Future[None]] = []

    def zero(self) -> None:
        """Begin a step."""
        for state in self.states:
            if isinstance(state, DeviceSegment):
                state.gradient.zero_()
        for _, gradient in self._borrowed.values():
            gradient.zero_()

    # ---- in backward

    def slab(self, i: int) -> Tensor:
        """The gradient slab of a fetched segment in this step's backward, zeros at first (trainable_size,) fp32."""
        if i not in self._slabs:
            size = self.layouts[i].trainable_size
            memory = self._take(4 * size)
            self._slabs[i] = memory, memory.view(torch.float32)[:size].zero_()
        return self._slabs[i][1]

    def borrowed(self, borrower: int, name: str) -> Tensor:
        """Where the gradient of a weight goes that `borrower` uses and another segment owns: apart from the owner's, so
        that the sum of both does not depend on the order in which microbatches and segments run."""
        if (borrower, name) not in self._borrowed:
            owner = self.owner[name]
            entry = self.layouts[owner].entry(name)
            if isinstance(self.states[owner], DeviceSegment):
                memory = torch.zeros(4 * entry.size, dtype=torch.uint8, device=self.device)
            else:
                memory = self._take(4 * entry.size)
            gradient = memory.view(torch.float32)[: entry.size].view(entry.shape).zero_()
            self._borrowed[borrower, name] = memory, gradient
        return self._borrowed[borrower, name][1]

    def own(self, entry: Entry) -> Tensor | None:
        """What a parameter's .grad is between visits of its segment: a view of the slab on the device, else nothing."""
        state = self.states[self.owner[entry.name]]
        return entry.view(state.gradient) if isinstance(state, DeviceSegment) else None

    def _take(self, num_bytes: int) -> Tensor:
        """Memory to compute in, which no gradient is leaving any more."""
        memory = self.pool.take(num_bytes)
        if self.transfer is not None:
            self.transfer.before_computing(self._leaving.pop(memory.data_ptr(), None))
        return memory

    def _add_borrowed(self, i: int, slab: Tensor) -> None:
        """Add what borrowers of segment i's weights contribute, in segment order."""
        for borrower, name in sorted(key for key in self._borrowed if self.owner[key[1]] == i):
            memory, gradient = self._borrowed[borrower, name]
            self.layouts[i].entry(name).view(slab).add_(gradient)
            if not isinstance(self.states[i], DeviceSegment):
                del self._borrowed[borrower, name]
                self.pool.give(memory)

    # ---- from backward to the update

    def unfinished(self) -> list[int]:
        """Segments off the device whose gradient `finish` has not seen yet."""
        lent = {self.owner[name] for _, name in self._borrowed}
        return [i for i in sorted({*self._slabs, *lent}) if not isinstance(self.states[i], DeviceSegment)]

    def finish(self, i: int) -> tuple[Tensor, Tensor] | None:
        """All of a fetched segment's gradient is there: note its norms, and begin to bring it to the host. Returns its
        memory and slab there, which go to `hold` or `keep`; None where it has no gradient."""
        if any(self.owner[name] == i for _, name in self._borrowed):
            self.slab(i)  # it may have none of its own
        if i not in self._slabs:
            return None
        memory, slab = self._slabs.pop(i)
        self._add_borrowed(i, slab)
        state = self.states[i]
        assert not isinstance(state, DeviceSegment)
        state.norms = _norms(self.layouts[i], slab)
        return (memory, slab) if self.transfer is None else self._bring(self.transfer, i, memory, slab)

    def hold(self, i: int, memory: Tensor, slab: Tensor) -> None:
        """Keep a gradient of `finish` in memory until `give_back`."""
        state = self.states[i]
        assert not isinstance(state, DeviceSegment)
        state.gradient, self._held[i] = slab, memory

    def keep(self, i: int, memory: Tensor, slab: Tensor) -> None:
        """Keep a gradient of `finish` until its update: in memory as far as held_bytes go, or else on disk."""
        state = self.states[i]
        held = sum(m.nbytes for j, m in self._held.items() if isinstance(self.states[j], DiskSegment))
        if not isinstance(state, DiskSegment) or held + memory.nbytes <= self.held_bytes:
            self.hold(i, memory, slab)
            return
        spill = state.spill(slab, lambda: self.wait(i))
        spill.add_done_callback(lambda _: self.held_pool.give(memory))
        self._spills.append(spill)

    def wait(self, i: int) -> None:
        """Until segment i's gradient has come to the host."""
        if self.transfer is not None:
            self.transfer.wait(self._arriving.pop(i, None))

    def give_back(self, i: int) -> None:
        """The segment's update is done: its gradient's memory is free."""
        if i in self._held:
            self.wait(i)
            self.held_pool.give(self._held.pop(i))

    def drop(self) -> None:
        """The step is skipped: forget its gradients."""
        for i, state in enumerate(self.states):
            if not isinstance(state, DeviceSegment):
                state.drop_gradient()
                self.give_back(i)

    def norm(self) -> Tensor:
        """Global L2 norm of all gradients, finished before, a Tensor (); bits of `torch.nn.utils.get_total_norm`."""
        for i in sorted({self.owner[name] for _, name in self._borrowed}):
            state = self.states[i]
            assert isinstance(state, DeviceSegment)
            self._add_borrowed(i, state.gradient)
        while self._spills:
            self._spills.pop().result()
        norms: list[Tensor] = []
        for segment, layout, state in zip(self.segments, self.layouts, self.states, strict=True):
            own = _norms(layout, state.gradient) if isinstance(state, DeviceSegment) else state.norms
            zero = torch.zeros((), device=self.device)
            norms += [own.get(name, zero) for name, p in segment.parameters.items() if p.requires_grad]
        return join_norms(norms)

    def close(self) -> None:
        self.pool.close()
        self.held_pool.close()

    def _bring(self, transfer: Transfer, i: int, memory: Tensor, slab: Tensor) -> tuple[Tensor, Tensor]:
        """Begin moving a gradient from the device to the host; returns its memory and slab there."""
        host = self.held_pool.take(4 * len(slab))
        there = host.view(torch.float32)[: len(slab)]
        mark = transfer.bring(slab, there)
        self.traffic.segments[i].add_link("gradient", slab.nbytes, sent=False)
        self._arriving[i] = self._leaving[memory.data_ptr()] = mark
        self.pool.give(memory)
        return host, there


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
