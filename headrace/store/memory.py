"""Page-aligned memory under a limit.

Slabs come and go with every segment; a pool hands the same memory out again, and makes whoever asks for more than the
limit wait until something is given back: a gradient that is being spilled, a record that is being written. Weights are only
asked for when there is room (`has_room`).
"""

import ctypes
import mmap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from headrace.store.files import aligned, pages

try:
    _glibc = ctypes.CDLL("libc.so.6")
    _malloc_trim, _mallopt = _glibc.malloc_trim, _glibc.mallopt
except (OSError, AttributeError):  # not glibc
    _malloc_trim = _mallopt = None
_M_ARENA_MAX = -8  # malloc.h
GROWTH_BYTES = 32 << 20


def zeros(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(size,) of zeros, for a long time: on the host in memory of their own."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    num_bytes = size * dtype.itemsize
    return aligned(num_bytes)[:num_bytes].view(dtype)


def give_back_freed_memory() -> None:
    """Hand memory that tensors have freed back to the system.

    torch asks for aligned memory, and glibc before 2.38 cuts what it frees of that into pieces it does not use again: the
    process grew by everything a segment saved, freed or not (measured: 1.8 GiB where 1.0 were in use). Costs milliseconds.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


def use_one_heap() -> None:
    """Have all threads from now on take memory from one heap, so that what one frees another uses again.

    glibc gives every thread a heap of its own. Inside 3 GiB, state read by one thread where activations of another had
    been took 0.15 GiB less that way.
    """
    if _mallopt is not None:
        _mallopt(_M_ARENA_MAX, 1)


def resident_bytes() -> int:
    """Memory of this process that is in RAM; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


class Limit:
    """Keeps the process under a size by giving freed memory back before more is taken."""

    def __init__(self, num_bytes: int | None):
        """None: no limit."""
        self.num_bytes, self._had_bytes = num_bytes, 0
        if num_bytes is not None:
            use_one_heap()

    def make_room(self, num_bytes: int = 0) -> None:
        """For num_bytes more. Not while the process has not grown since the last time: what it has had since, it uses
        again sooner than it could be given back and asked for."""
        if self.num_bytes is None:
            return
        if resident_bytes() + num_bytes > max(self.num_bytes, self._had_bytes + GROWTH_BYTES):
            give_back_freed_memory()
            self._had_bytes = resident_bytes() + num_bytes


class Pool:
    """Memory of at most limit_bytes, in use and free together."""

    def __init__(self, limit_bytes: int, make: Callable[[int], Tensor] = aligned):
        """make: new memory of so many bytes, rounded up to pages."""
        self.limit_bytes, self.make = limit_bytes, make
        self.in_use_bytes = 0
        self.waited_s = 0.0
        """How long those who asked have waited for room."""
        self._free: list[Tensor] = []
        self._changed = threading.Condition()
        self._closed = False

    def take(self, num_bytes: int) -> Tensor:
        """Memory of at least num_bytes, uint8; waits until there is room."""
        size = max(pages(num_bytes), 1)
        assert size <= self.limit_bytes, f"{size:,} bytes asked of a pool of {self.limit_bytes:,}"
        with self._changed:
            started_s = time.perf_counter()
            self._changed.wait_for(lambda: self._closed or self.in_use_bytes + size <= self.limit_bytes)
            self.waited_s += time.perf_counter() - started_s
            if self._closed:
                raise RuntimeError("the pool is closed")
            self.in_use_bytes += size
            for i, memory in enumerate(self._free):
                if memory.nbytes == size:
                    return self._free.pop(i)
            while self._free and self.in_use_bytes + sum(m.nbytes for m in self._free) > self.limit_bytes:
                self._free.pop(0)
        return self.make(size)

    def has_room(self, num_bytes: int) -> bool:
        with self._changed:
            return self.in_use_bytes + pages(num_bytes) <= self.limit_bytes

    def give(self, memory: Tensor) -> None:
        """Hand memory of `take` back."""
        with self._changed:
            self.in_use_bytes -= memory.nbytes
            self._free.append(memory)
            self._changed.notify_all()

    def close(self) -> None:
        """Wake up who waits: the run is over."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
