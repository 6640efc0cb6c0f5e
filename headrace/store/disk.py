"""A segment whose state is on disk: the placement `disk`.

    load:   [weights chunk | moments chunk | gradient chunk] -> update -> written back; the weights stay in the slab
            read ahead by a few chunks, written behind: one pass over the state is all an update costs
            frozen weights, a file of their own, are only read

The files of a segment are the snapshot's files. A file that a snapshot shares (it has a second hard link) is never
written to: the update goes to a new file that takes its place.
"""

import errno
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headrace.errors import UserError
from headrace.optim.rule import Rule
from headrace.store.files import (
    PAGE_BYTES,
    SlabFile,
    aligned,
    block_sum,
    file_sum,
    header_of,
    pages,
    sum_text,
    write_slab,
)
from headrace.store.layout import Chunk, Layout
from headrace.store.roles import Role, Update, roles_of
from headrace.store.traffic import SegmentTraffic

DEPTH = 5  # chunks in flight: two read, one updated, two written
PIECE_BYTES = 16 << 20  # of what is read at one go; several pieces at a time


class Ring:
    """Room for chunks of everything an update moves besides fp32 weights. One load uses it at a time."""

    def __init__(self, num_bytes: dict[str, int], depth: int = DEPTH, staging_bytes: int = 0):
        """staging_bytes: for weights that are read without an update and do not lie on disk in fp32."""
        self.slots = [{name: aligned(size) for name, size in num_bytes.items()} for _ in range(depth)]
        self.staging = aligned(staging_bytes)
        self.num_bytes = depth * sum(num_bytes.values()) + staging_bytes


class DiskSegment:
    """State of one segment in files under `folder`. Invariant: `pending` is the update they still lack, or None."""

    def __init__(
        self,
        layout: Layout,
        rule: Rule,
        weights: Path,
        frozen: Path,
        state: Path,
        scratch: Path,
        threads: ThreadPoolExecutor,
        traffic: SegmentTraffic,
    ):
        """weights, frozen: the files of the weights that train and of those that do not; state: what the names of the
        optimizer's files begin with; scratch: the file of a spilled gradient."""
        self.layout, self.rule, self.weight_dtype = layout, rule, rule.weight_dtype
        self.roles = roles_of(layout, rule)
        self.chunks = list(layout.chunks(whole=rule.needs_whole_parameter))
        self.weights, self.frozen = weights, frozen
        self.parts = {(weights if part.trains else frozen): part for part in layout.parts}
        """By file."""
        self.state = {role.name: state.with_name(f"{state.name}.{role.name}.safetensors") for role in self.roles}
        self.scratch = scratch
        self.threads, self.traffic = threads, traffic
        self.pending: Update | None = None
        self.gradient: Tensor | None = None
        """Gradient held in memory (trainable_size,) fp32; None and not spilled: zeros."""
        self.spilled = False
        self.norms: dict[str, Tensor] = {}
        self.update_s = 0.0
        """Arithmetic of all updates so far."""
        self.sums: dict[Path, str] = {}
        """Sums of files that have not changed since."""
        self.staged: list[dict[str, Tensor]] | None = None
        """By chunk and role, state that is in memory already (bytes); the weights are then, too. In pieces, so that it fits
        where activations were."""

    def ring_bytes(self) -> dict[str, int]:
        """What `load` needs of the ring."""
        if not self.chunks:
            return {}
        need: dict[str, int] = {}
        if not self.rule.needs_whole_parameter:  # else gradients are at hand when they are used, see Store.eager
            need["gradient"] = max(4 * (chunk.stop - chunk.start) for chunk in self.chunks)
        if self.weight_dtype is not torch.float32:
            need["weight"] = max(self.weight_dtype.itemsize * (chunk.stop - chunk.start) for chunk in self.chunks)
        for role in self.roles:
            spans = [role.range_of(chunk) for chunk in self.chunks]
            need[role.name] = max(role.dtype.itemsize * (b - a) for a, b in spans)
        return need

    def create(self, slab: Tensor, first: Mapping[str, Tensor]) -> None:
        """Make the files: these weights (size,) fp32, and state that is zero but for these slabs, by role."""
        self.sums.clear()
        for path in self.files:
            path.unlink(missing_ok=True)  # a snapshot may share it
        for role in self.roles:
            if role.name in first:
                write_slab(self.state[role.name], self._header(role), first[role.name])
            else:
                SlabFile.create(self.state[role.name], self._header(role), role.num_bytes).close()
        for path, part in self.parts.items():
            stored = slab[part.start : part.stop].to(self.weight_dtype)
            self.sums[path] = write_slab(path, header_of(part.entries, self.weight_dtype), stored)

    @property
    def weight_bytes(self) -> int:
        return self.layout.num_parameters * self.weight_dtype.itemsize

    @property
    def changing(self) -> list[Path]:
        """The files that an update writes."""
        return [self.weights, *self.state.values()] if self.layout.trainable_size else []

    @property
    def files(self) -> list[Path]:
        return [*self.parts, *self.state.values()]

    def stage(self, slab: Tensor) -> None:
        """Read what `load` into this slab will read, before it is known which update is pending."""
        staged: list[dict[str, Tensor]] = []
        try:
            with ExitStack() as files:
                tasks = []
                for path, part in self.parts.items():
                    weights = files.enter_context(SlabFile(path))
                    data = _bytes(slab[part.start : part.stop])
                    starts = range(0, data.nbytes, PIECE_BYTES)
                    tasks += [self.threads.submit(weights.read, a, data[a : a + PIECE_BYTES]) for a in starts]
                states = {role: files.enter_context(SlabFile(self.state[role.name])) for role in self.roles}
                for chunk in self.chunks:
                    staged.append({})
                    for role, file in states.items():
                        a, b = (role.dtype.itemsize * i for i in role.range_of(chunk))
                        staged[-1][role.name] = _small(b - a)
                        tasks.append(self.threads.submit(file.read, a, staged[-1][role.name]))
                for task in tasks:
                    task.exception()  # let all end before their files close
                _wait(tasks)
        except OSError as error:
            raise _disk_error(error, self.weights) from None
        self.staged = staged

    def unstage(self) -> None:
        """Forget what `stage` read; it counts as read."""
        if self.staged is not None:
            self.traffic.add("weight", self.weight_bytes, written=False)
            self.traffic.add("state", sum(role.num_bytes for role in self.roles), written=False)
            self.staged = None

    def load(self, slab: Tensor, ring: Ring) -> None:
        """Fill the slab (size,) fp32 with the weights, applying a pending update on the way and writing it back."""
        staged, left = self.staged, dict(self.parts)
        self.unstage()
        try:
            if self.pending is not None:
                self._update(slab, ring, False, False, staged)
                del left[self.weights]
            for path, part in left.items() if staged is None else ():
                self._read(path, slab[part.start : part.stop], ring)
        except OSError as error:
            raise _disk_error(error, self.weights) from None

    def update(self, slab: Tensor, ring: Ring, sums: bool = False, have_weights: bool = False) -> None:
        """Apply the pending update to the files alone, in a slab for what trains (trainable_size,) fp32.

        sums: note the sums of the files, as a snapshot needs them. have_weights: the slab is filled already."""
        assert self.staged is None
        try:
            self._update(slab, ring, sums, have_weights, None)
        except OSError as error:
            raise _disk_error(error, self.weights) from None

    def _update(
        self, slab: Tensor, ring: Ring, sums: bool, have_weights: bool, staged: list[dict[str, Tensor]] | None
    ) -> None:
        assert self.pending is not None
        totals = dict.fromkeys(self.changing, 0)
        for path in totals:
            self.sums.pop(path, None)
        update, self.pending = self.pending, None
        targets = {path: _writable(path) for path in totals}
        sources = {path: SlabFile(path) for path in targets}
        gradient_file = SlabFile(self.scratch) if self.spilled else None
        depth = len(ring.slots)
        writes: list[list[Future[None]]] = [[] for _ in ring.slots]
        reads: dict[int, list[Future[None]]] = {}

        def room(k: int) -> dict[str, Tensor]:
            """Where chunk k's bytes of everything but the fp32 weights are, or come to."""
            slot = ring.slots[k % depth]
            return slot if staged is None else slot | staged[k]

        def begin(k: int) -> None:
            chunk, slot = self.chunks[k], room(k)
            _wait(writes[k % depth])
            weight = self._weight_bytes_of(chunk, slab, slot)
            tasks: list[Future[None]] = []
            if not have_weights and staged is None:
                tasks = [self._submit(sources[self.weights].read, self._weight_offset(chunk), weight, "weight", False)]
            for role in self.roles if staged is None else ():
                a, b = role.range_of(chunk)
                piece = slot[role.name][: (b - a) * role.dtype.itemsize]
                if len(piece):
                    offset = a * role.dtype.itemsize
                    tasks.append(self._submit(sources[self.state[role.name]].read, offset, piece, "state", False))
            if gradient_file is not None:
                piece = slot["gradient"][: 4 * (chunk.stop - chunk.start)]
                tasks.append(self._submit(gradient_file.read, 4 * chunk.start, piece, "gradient", False))
            reads[k] = tasks

        try:
            ahead = max(depth - 1, 1)
            for k in range(min(ahead, len(self.chunks))):
                begin(k)
            for k, chunk in enumerate(self.chunks):
                slot = room(k)
                _wait(reads.pop(k))
                self._apply(update, chunk, slab, slot, have_weights)
                weight = self._weight_bytes_of(chunk, slab, slot)
                tasks = [self._submit(targets[self.weights].write, self._weight_offset(chunk), weight, "weight", True)]
                for role in self.roles:
                    a, b = role.range_of(chunk)
                    piece = slot[role.name][: (b - a) * role.dtype.itemsize]
                    if len(piece):
                        offset, file = a * role.dtype.itemsize, targets[self.state[role.name]]
                        tasks.append(self._submit(file.write, offset, piece, "state", True))
                writes[k % depth] = tasks
                if sums:
                    totals[self.weights] += block_sum(weight, self._weight_offset(chunk))
                    for role in self.roles:
                        a, b = role.range_of(chunk)
                        size = role.dtype.itemsize
                        totals[self.state[role.name]] += block_sum(slot[role.name][: (b - a) * size], a * size)
                if k + ahead < len(self.chunks):
                    begin(k + ahead)
            self.gradient, self.spilled = None, False
            for tasks in writes:
                _wait(tasks)
            for path, file in targets.items():
                if file.path != path:
                    file.path.replace(path)
            if sums:
                headers = [header_of(self.layout.trainable, self.weight_dtype), *map(self._header, self.roles)]
                for path, header in zip(totals, headers, strict=True):
                    self.sums[path] = sum_text(header, totals[path])
        finally:
            for tasks in [*reads.values(), *writes]:
                for task in tasks:
                    task.exception()  # let them end before their files close
            for file in [*targets.values(), *sources.values(), *([gradient_file] if gradient_file else [])]:
                file.close()

    def sum_of(self, path: Path) -> str:
        """The file's sum; reads it when it is not known."""
        if path not in self.sums:
            self.sums[path] = file_sum(path)
        return self.sums[path]

    def spill(self, gradient: Tensor, ready: Callable[[], None]) -> Future[None]:
        """Start writing the gradient (trainable_size,) to the scratch file. ready: waits until it is in memory."""
        self.spilled, self.gradient = True, None

        def write() -> None:
            data = _bytes(gradient)
            ready()
            try:
                if not self.scratch.exists():
                    SlabFile.create(self.scratch, header_of(self.layout.trainable, torch.float32), data.nbytes).close()
                with SlabFile(self.scratch, "w") as file:
                    file.write(0, data)
            except OSError as error:
                raise _disk_error(error, self.scratch) from None
            self.traffic.add("gradient", data.nbytes, written=True)

        return self.threads.submit(write)

    def drop_gradient(self) -> None:
        self.gradient, self.spilled, self.norms = None, False, {}

    def _apply(self, update: Update, chunk: Chunk, slab: Tensor, slot: dict[str, Tensor], have_weights: bool) -> None:
        started_s = time.perf_counter()
        whole = slab[chunk.start : chunk.stop]
        stored = self._weight_bytes_of(chunk, slab, slot).view(
            self.weight_dtype
        )  # the slab's own memory where it is fp32
        if self.weight_dtype is not torch.float32 and have_weights:
            stored.copy_(whole)  # exact: the slab holds nothing but values of this type
        if self.gradient is not None:
            gradient = self.gradient[chunk.start : chunk.stop]
        else:
            gradient = slot["gradient"].view(torch.float32)[: chunk.stop - chunk.start]
            if not self.spilled:
                gradient.zero_()
        state = []
        for role in self.roles:
            a, b = role.range_of(chunk)
            state.append((role, slot[role.name].view(role.dtype)[: b - a]))
        update.apply(chunk, stored, gradient, state)
        if self.weight_dtype is not torch.float32:
            whole.copy_(stored)
        self.update_s += time.perf_counter() - started_s

    def _read(self, path: Path, slab: Tensor, ring: Ring) -> None:
        """Fill a part of the weight slab."""
        with SlabFile(path) as file:
            if self.weight_dtype is torch.float32:
                data = _bytes(slab)
                tasks = [
                    self._submit(file.read, a, data[a : a + PIECE_BYTES], "weight", False)
                    for a in range(0, len(data), PIECE_BYTES)
                ]
                _wait(tasks)
                return
            size = self.weight_dtype.itemsize
            room = ring.staging.nbytes // size
            for a in range(0, len(slab), room):
                piece = slab[a : a + room]
                stored = ring.staging[: len(piece) * size]
                file.read(a * size, stored)
                self.traffic.add("weight", stored.nbytes, written=False)
                piece.copy_(stored.view(self.weight_dtype))

    def _weight_offset(self, chunk: Chunk) -> int:
        return chunk.start * self.weight_dtype.itemsize

    def _weight_bytes_of(self, chunk: Chunk, slab: Tensor, slot: dict[str, Tensor]) -> Tensor:
        if self.weight_dtype is torch.float32:
            return _bytes(slab[chunk.start : chunk.stop])
        return slot["weight"][: (chunk.stop - chunk.start) * self.weight_dtype.itemsize]

    def _header(self, role: Role) -> bytes:
        return header_of(role.entries, role.dtype, f".{role.name}")

    def _submit(self, move: Any, offset: int, data: Tensor, kind: str, written: bool) -> Future[None]:
        self.traffic.add(kind, data.nbytes, written)
        return self.threads.submit(move, offset, data)


def _small(num_bytes: int) -> Tensor:
    """Page-aligned memory from the heap, where what other tensors have freed is used again."""
    memory = torch.empty(pages(num_bytes) + PAGE_BYTES, dtype=torch.uint8)
    start = -memory.data_ptr() % PAGE_BYTES
    return memory[start : start + num_bytes]


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8)


def _wait(tasks: Sequence[Future[None]]) -> None:
    for task in tasks:
        task.result()


def _writable(path: Path) -> SlabFile:
    """The file itself, or a new one beside it when a snapshot shares it."""
    if path.stat().st_nlink == 1:
        return SlabFile(path, "w")
    with SlabFile(path) as old:
        with path.open("rb") as raw:
            header = raw.read(old.data_start)
        return SlabFile.create(path.with_name(path.name + ".new"), header, old.data_bytes)


def _disk_error(error: OSError, path: Path) -> UserError:
    what = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
    return UserError(
        f"{path}: {what}; stopped. The last checkpoint is untouched: make room, then run again, it goes on from there"
    )
