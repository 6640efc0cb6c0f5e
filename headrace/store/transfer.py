"""Between host memory and a device apart from it.

    host slab --send--> device slab --computing--> device gradient --bring--> host gradient
              a mark: computing waits for it                       a mark: whoever reads the host's copy waits for it

All that differs between a GPU and its twin is here. A *mark* is a point that something under way will have passed when what
was begun before it is done: an event on CUDA, a future on the twin. Copies in one direction are done in the order in which
they were begun. Where the device computes in host memory there is no transfer at all: `Store.transfer` is None.

`CudaTransfer` has never run: no GPU was at hand. `CopyThreads`, which it mirrors call by call, is what tests run: there the
device is a second set of slabs in the same memory, copied by threads of their own, so that a wait that is missing shows as
wrong numbers.
"""

import mmap
import time
from abc import ABC, abstractmethod
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headrace.progress import say
from headrace.store.files import aligned, pages

Mark = torch.cuda.Event | Future[None] | None
"""None: nothing is under way."""


class Transfer(ABC):
    """Copies between the two memories. Tensors are uint8 memory or views of it, contiguous, of equal size."""

    @abstractmethod
    def host_memory(self, num_bytes: int) -> Tensor:
        """New page-aligned host memory that the device can copy from and to while the process goes on, uint8."""

    @abstractmethod
    def device_memory(self, num_bytes: int) -> Tensor:
        """New memory on the device, uint8 (num_bytes rounded up to pages)."""

    @abstractmethod
    def send(self, host: Tensor, device: Tensor, after: Mark = None) -> Mark:
        """Begin copying to the device, once `after` has passed. The host's memory is needed until the mark has passed."""

    @abstractmethod
    def bring(self, device: Tensor, host: Tensor) -> Mark:
        """Begin copying what the computing begun so far leaves in `device`. Its memory may be dropped, but not written
        to, before the mark has passed."""

    @abstractmethod
    def computed(self) -> Mark:
        """Passes when all computing begun so far is done."""

    @abstractmethod
    def before_computing(self, mark: Mark) -> None:
        """Computing that begins from now on waits until the mark has passed."""

    @abstractmethod
    def wait(self, mark: Mark) -> None:
        """Stop this thread until the mark has passed."""

    @abstractmethod
    def passed(self, mark: Mark) -> bool:
        """Whether the mark has passed already."""

    @abstractmethod
    def close(self) -> None:
        """Let what is under way end."""


def transfer_to(device: torch.device) -> Transfer:
    """The transfer to a device, taken as apart from the host."""
    return CudaTransfer(device) if device.type == "cuda" else CopyThreads()


class CopyThreads(Transfer):
    """The CPU as a device apart: computing is done when its call returns, copies when their thread has made them."""

    def __init__(self, delay_s: float = 0.0):
        """delay_s: before each copy, so that tests see who does not wait."""
        self.delay_s = delay_s
        self._in, self._out = (
            ThreadPoolExecutor(1, f"headrace-{name}", initializer=torch.set_num_threads, initargs=(1,))
            for name in ("send", "bring")
        )

    def host_memory(self, num_bytes: int) -> Tensor:
        return aligned(num_bytes)

    def device_memory(self, num_bytes: int) -> Tensor:
        return aligned(num_bytes)

    def send(self, host: Tensor, device: Tensor, after: Mark = None) -> Mark:
        assert after is None
        return self._in.submit(self._copy, host, device)

    def bring(self, device: Tensor, host: Tensor) -> Mark:
        return self._out.submit(self._copy, device, host)

    def computed(self) -> Mark:
        return None

    def before_computing(self, mark: Mark) -> None:
        self.wait(mark)

    def wait(self, mark: Mark) -> None:
        if mark is not None:
            assert isinstance(mark, Future)
            mark.result()

    def passed(self, mark: Mark) -> bool:
        assert mark is None or isinstance(mark, Future)
        return mark is None or mark.done()

    def close(self) -> None:
        self._in.shutdown(wait=True)
        self._out.shutdown(wait=True)

    def _copy(self, source: Tensor, target: Tensor) -> None:
        if self.delay_s:
            time.sleep(self.delay_s)
        target.copy_(source)


class CudaTransfer(Transfer):
    """A GPU: one stream a direction beside the one that computes, which is whatever stream is current where the model runs.
    Never run; see the top of this file."""

    def __init__(self, device: torch.device):
        self.device = device
        self._in, self._out = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def host_memory(self, num_bytes: int) -> Tensor:
        return pinned(num_bytes)

    def device_memory(self, num_bytes: int) -> Tensor:
        with torch.cuda.stream(self._in):
            memory = torch.empty(pages(num_bytes), dtype=torch.uint8, device=self.device)
        computing = torch.cuda.current_stream(self.device)
        computing.wait_stream(self._in)  # a copy into a slab that had this memory before may be under way
        for stream in (computing, self._out):
            memory.record_stream(stream)  # given back to torch only when they are done with it, too
        return memory

    def send(self, host: Tensor, device: Tensor, after: Mark = None) -> Mark:
        with torch.cuda.stream(self._in):
            if after is not None:
                assert isinstance(after, torch.cuda.Event)
                self._in.wait_event(after)
            device.copy_(host, non_blocking=True)
        return _event(self._in)

    def bring(self, device: Tensor, host: Tensor) -> Mark:
        self._out.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._out):
            host.copy_(device, non_blocking=True)
            device.record_stream(self._out)
        return _event(self._out)

    def computed(self) -> Mark:
        return _event(torch.cuda.current_stream(self.device))

    def before_computing(self, mark: Mark) -> None:
        if mark is not None:
            assert isinstance(mark, torch.cuda.Event)
            torch.cuda.current_stream(self.device).wait_event(mark)

    def wait(self, mark: Mark) -> None:
        if mark is not None:
            assert isinstance(mark, torch.cuda.Event)
            mark.synchronize()

    def passed(self, mark: Mark) -> bool:
        assert mark is None or isinstance(mark, torch.cuda.Event)
        return mark is None or mark.query()

    def close(self) -> None:
        torch.cuda.synchronize(self.device)


def _event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event


def _cudart() -> Any:
    return torch.cuda.cudart()


class _Pinned(mmap.mmap):
    """Memory that the driver knows; it is told before the memory goes."""

    address = 0

    def __del__(self) -> None:
        if self.address:
            _cudart().cudaHostUnregister(self.address)


def pinned(num_bytes: int) -> Tensor:
    """As `aligned`, page-locked: exactly that size, where torch's own pinned memory is rounded up to a power of two
    (https://github.com/pytorch/pytorch/issues/95823). Pageable, with a line that says so, where the driver refuses."""
    memory = _Pinned(-1, max(pages(num_bytes), 1))
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    refused = int(_cudart().cudaHostRegister(tensor.data_ptr(), len(memory), 0))
    if refused:
        _say_not_pinned(refused)
    else:
        memory.address = tensor.data_ptr()
    return tensor


@cache
def _say_not_pinned(error: int) -> None:
    say(f"CUDA cannot lock host memory (error {error}): transfers to the GPU go through pageable memory and are slower")
