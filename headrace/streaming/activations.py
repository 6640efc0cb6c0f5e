"""What is kept of a segment's forward for its backward.

keep        the graph of the segment stays; weights saved in it are replaced by their place in the slab, and looked up in
            the slab that backward fetches, so nothing is computed twice
spill       as keep, with everything else that was saved written to a scratch file, read back in backward order; of a
            device apart to host memory first, where as much stays as there is room for
recompute   only the segment's input stays; backward runs the segment's forward again
at_once     for the segment that ends in the loss: its backward follows its forward, microbatch by microbatch, so nothing
            stays and its weights are fetched once
"""

import os
import time
from collections import deque
from collections.abc import Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from headrace.errors import UserError
from headrace.store.files import RawFile, pages
from headrace.store.memory import Pool
from headrace.store.traffic import SegmentTraffic, Traffic
from headrace.store.transfer import Mark, Transfer

Policy = Literal["keep", "spill", "recompute", "at_once"]

SMALL_BYTES = 64 << 10
"""Saved tensors below this stay in memory: means and scales of norms, a few numbers a token."""
ALIGNMENT_BYTES = 64

Slabs = dict[int, tuple[Tensor, Tensor]]  # owner: memory, weights


@dataclass(frozen=True)
class Place:
    """A tensor inside something that is elsewhere by the time it is needed. Offsets and strides are elements."""

    holder: Any  # number of a slab's owner, or of a storage in a record
    offset: int
    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class Here:
    """A tensor that stays."""

    tensor: Tensor
    version: int


@dataclass
class Record:
    """What one microbatch of a segment saved: storages one after the other, where computing is, on the host, or in the
    scratch file."""

    traffic: SegmentTraffic
    num_bytes: int = 0
    storages: list[Tensor] = field(default_factory=list)  # uint8, dropped when they are copied
    offsets: list[int] = field(default_factory=list)
    file_offset: int = -1
    memory: Tensor | None = None
    """Where backward finds it."""
    host: Tensor | None = None
    """Of a device apart: where it stays from forward to backward when it is not written."""
    copies: list[Mark] = field(default_factory=list)  # to the host, where the device is apart
    moving: Future[Mark] | None = None


class Saved:
    """Tensors that autograd saved in segments, under the segments' policies."""

    def __init__(
        self,
        scratch: Path | None = None,
        pool_bytes: int = 0,
        traffic: Traffic | None = None,
        transfer: Transfer | None = None,
        host_bytes: int = 0,
    ):
        """scratch: file that `spill` writes to; pool_bytes: memory for records on their way there and back. transfer: to a
        device apart, where as much again is taken; host_bytes: what may then stay in host memory."""
        self.scratch, self.traffic, self.transfer, self.host_bytes = scratch, traffic, transfer, host_bytes
        if transfer is None:
            self.pool = self.host_pool = Pool(pool_bytes)
        else:
            self.pool = Pool(pool_bytes, transfer.device_memory)
            self.host_pool = Pool(pool_bytes + host_bytes, transfer.host_memory)
        self._staying_bytes = 0
        self._used: dict[int, Mark] = {}  # by address, what computed with memory that was given back
        self._waited_s = 0.0
        self._slabs: dict[int, Slabs] = {}
        self._records: dict[tuple[int, int], Record] = {}
        self._order: list[tuple[int, int]] = []  # as records were made
        self._ahead: deque[tuple[int, int]] = deque()  # those that backward will need next
        self._end = 0
        self._file: RawFile | None = None
        self._threads = ThreadPoolExecutor(2, "headrace-spill")

    @property
    def waited_s(self) -> float:
        """How long computing has waited for room to spill to, and for records to come back."""
        return self._waited_s + sum(pool.waited_s for pool in {self.pool, self.host_pool})

    @contextmanager
    def record(
        self, segment: int, visit: int, microbatch: int, policy: Policy, slabs: Slabs, given: Collection[Tensor]
    ) -> Iterator[None]:
        """Take over what autograd saves while this lasts. given: tensors that others hold anyway."""
        if policy == "at_once":
            yield
            return
        owners = {memory.untyped_storage().data_ptr(): owner for owner, (memory, _) in slabs.items()}
        stay = {tensor.untyped_storage().data_ptr() for tensor in given}
        record = Record(self.traffic.segments[segment] if self.traffic is not None else SegmentTraffic())
        numbers: dict[int, int] = {}
        versions: list[tuple[Tensor, int]] = []

        def pack(tensor: Tensor) -> Any:
            storage = tensor.untyped_storage()
            address, offset = storage.data_ptr(), int(tensor.storage_offset())
            if address in owners:
                return Place(owners[address], offset, tensor.size(), tensor.stride(), tensor.dtype)
            # Not the tensor itself: a leaf's memory is taken away, and an output would hold its own graph.
            alias = tensor.detach()
            if policy == "keep" or address in stay or storage.nbytes() < SMALL_BYTES:
                return Here(alias, alias._version)
            versions.append((alias, alias._version))
            if address not in numbers:
                numbers[address] = len(record.storages)
                record.storages.append(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))  # pyright: ignore
                record.offsets.append(record.num_bytes)
                record.num_bytes += -(-storage.nbytes() // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
            return record, Place(numbers[address], offset, tensor.size(), tensor.stride(), tensor.dtype)

        def unpack(packed: Any) -> Tensor:
            if isinstance(packed, Here):
                _unchanged(packed.tensor, packed.version)
                return packed.tensor
            if isinstance(packed, Place):
                return torch.as_strided(self._slabs[visit][packed.holder][1], packed.size, packed.stride, packed.offset)
            held, place = packed
            assert held.memory is not None, "backward of a segment that was not announced"
            flat = held.memory[held.offsets[place.holder] :]
            flat = flat[: flat.nbytes - flat.nbytes % place.dtype.itemsize].view(place.dtype)
            return torch.as_strided(flat, place.size, place.stride, flat.storage_offset() + place.offset)

        with saved_tensors_hooks(pack, unpack):
            yield
        for alias, version in versions:
            _unchanged(alias, version)
        versions.clear()  # autograd keeps `pack`, and with it what it refers to
        if record.num_bytes:
            self._spill((visit, microbatch), record)

    def weights(self, visit: int, slabs: Slabs) -> None:
        """Where weights are found while the visit's backward runs."""
        self._slabs[visit] = slabs

    def expect(self, visit: int, microbatch: int) -> None:
        """The backward of this microbatch is next: have its record in memory, and begin on those after it."""
        if not self._records:
            return
        if not self._ahead:
            self._ahead = deque(self._backward_order())
        while self._ahead and self._ahead[0] == (visit, microbatch):
            self._ahead.popleft()
        record = self._records.get((visit, microbatch))
        if record is not None:
            if record.memory is None:
                self._fetch(record)
            assert record.moving is not None
            started_s = time.perf_counter()
            mark = record.moving.result()
            if self.transfer is not None:
                self.transfer.before_computing(mark)
            self._waited_s += time.perf_counter() - started_s
        for key in self._ahead:
            ahead = self._records.get(key)
            if ahead is not None and ahead.memory is None:
                if not self.pool.has_room(ahead.num_bytes):
                    break
                self._fetch(ahead)

    def done(self, visit: int, microbatch: int) -> None:
        """The backward of this microbatch is over."""
        record = self._records.pop((visit, microbatch), None)
        if record is not None and record.memory is not None:
            if self.transfer is not None:
                self._used[record.memory.data_ptr()] = self.transfer.computed()
            self.pool.give(record.memory)
            record.memory = None
        if record is not None and record.host is not None:
            self._wait_for_copies(record)
            self._staying_bytes -= record.host.nbytes
            self.host_pool.give(record.host)
            record.host = None

    def clear(self) -> None:
        """The step is over: nothing of it is needed any more."""
        for visit, microbatch in list(self._records):
            record = self._records[visit, microbatch]
            if record.moving is not None:
                mark = record.moving.result()
                if self.transfer is not None:
                    self.transfer.wait(mark)
            self.done(visit, microbatch)
        self._slabs.clear()
        self._order, self._ahead, self._end = [], deque(), 0

    def close(self) -> None:
        self.pool.close()
        self.host_pool.close()
        self._threads.shutdown(wait=True)
        self.close_file()

    def close_file(self) -> None:
        """Let go of the scratch file; the next record begins a new one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _backward_order(self) -> list[tuple[int, int]]:
        """Visits from the last to the first, microbatches of each in order."""
        order: list[tuple[int, int]] = []
        visits: list[list[tuple[int, int]]] = []
        for key in self._order:
            if not visits or visits[-1][0][0] != key[0]:
                visits.append([])
            visits[-1].append(key)
        for visit in reversed(visits):
            order += visit
        return order

    def _spill(self, key: tuple[int, int], record: Record) -> None:
        """Copy the record out of autograd's memory and begin writing it."""
        if record.num_bytes > self.pool.limit_bytes:
            raise UserError(
                f"one microbatch of a segment saves {record.num_bytes:,} bytes, more than the {self.pool.limit_bytes:,} set "
                f"aside for spilling; make the microbatch smaller or give more memory"
            )
        memory = self.host_pool.take(record.num_bytes)
        self._records[key] = record
        self._order.append(key)
        # Copied here and now, not by the thread that writes: memory that is freed in the order in which it was taken is
        # used again for the next microbatch, and a heap that another thread frees late grows and stays.
        for storage, offset in zip(record.storages, record.offsets, strict=True):
            there = memory[offset : offset + storage.nbytes]
            if self.transfer is None:
                there.copy_(storage)
            else:
                record.copies.append(self.transfer.bring(storage, there))
        record.storages = []
        if self.transfer is not None:
            record.traffic.add_link("activation", record.num_bytes, sent=False)
            if self._staying_bytes + memory.nbytes <= self.host_bytes:
                record.host = memory
                self._staying_bytes += memory.nbytes
                return
        assert self.scratch is not None, "policy `spill` needs a scratch file"
        if self._file is None:
            self.scratch.parent.mkdir(parents=True, exist_ok=True)
            self._file = RawFile(self.scratch)
        record.file_offset, self._end = self._end, self._end + pages(record.num_bytes)
        file = self._file

        def write() -> None:
            try:
                self._wait_for_copies(record)
                file.write(record.file_offset, memory[: pages(record.num_bytes)])
            except OSError as error:
                raise UserError(f"{self.scratch}: {os.strerror(error.errno or 0)}; make room, then run again") from None
            finally:
                self.host_pool.give(memory)
            record.traffic.add("activation", record.num_bytes, written=True)

        record.moving = self._threads.submit(write)

    def _wait_for_copies(self, record: Record) -> None:
        """Until the host has all of it."""
        for mark in record.copies:
            assert self.transfer is not None
            self.transfer.wait(mark)

    def _fetch(self, record: Record) -> None:
        """Begin bringing a record back to where computing is."""
        memory, written, file = self.pool.take(record.num_bytes), record.moving, self._file
        record.memory = memory
        used = self._used.pop(memory.data_ptr(), None)

        def read(host: Tensor) -> None:
            assert file is not None and written is not None
            written.result()
            file.read(record.file_offset, host[: pages(record.num_bytes)])
            record.traffic.add("activation", record.num_bytes, written=False)

        def send(transfer: Transfer) -> Mark:
            host = record.host
            if host is not None:
                self._wait_for_copies(record)
            else:
                host = self.host_pool.take(record.num_bytes)
                read(host)
            mark = transfer.send(host[: record.num_bytes], memory[: record.num_bytes], after=used)
            record.traffic.add_link("activation", record.num_bytes, sent=True)
            if record.host is None:
                transfer.wait(mark)
                self.host_pool.give(host)
            return mark

        if self.transfer is None:
            record.moving = self._threads.submit(read, memory)
        else:
            record.moving = self._threads.submit(send, self.transfer)


def _unchanged(tensor: Tensor, version: int) -> None:
    if tensor._version != version:
        raise RuntimeError(
            f"a tensor {tuple(tensor.shape)} {tensor.dtype} that backward needs was changed in place after it was saved"
        )
