"""Bringing segments' weights in, ahead of the computation that needs them.

One thread loads segments in the order they are expected; the pool makes it wait when it is far enough ahead. An
expectation that proves wrong costs time, never a result.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from headrace.store.folder import FolderStore
from headrace.store.memory import Pool
from headrace.store.store import Store


class Fetcher:
    """Slabs of disk segments on their way to computation and back."""

    def __init__(self, store: Store | FolderStore, needs: Sequence[tuple[int, ...]], pool_bytes: int, depth: int = 1):
        """needs: per segment, the disk segments whose weights it uses (its own and borrowed ones); depth: how many
        segments ahead are fetched, where the pool has room."""
        self.store, self.needs, self.depth = store, needs, depth
        self.pool = Pool(pool_bytes)
        self.thread = ThreadPoolExecutor(1, "headrace-fetch", initializer=torch.set_num_threads, initargs=(1,))
        self.expected: deque[int] = deque()
        self.ahead: deque[tuple[int, Future[dict[int, tuple[Tensor, Tensor]]]]] = deque()
        self.again: list[int] = []
        self.waited_s = 0.0

    def expect(self, order: Sequence[int], again: bool = False) -> None:
        """What will be fetched next; starts on it. again: over and over, until `rest`."""
        self._discard()
        chosen = [i for i in order if self.needs[i]]
        self.expected, self.again = deque(chosen), chosen if again else []
        self._go_ahead()

    def fetch(self, i: int) -> dict[int, tuple[Tensor, Tensor]]:
        """(memory, weights) of every disk segment that segment i uses; the memory goes back with `release`."""
        if self.ahead and self.ahead[0][0] == i:
            future = self.ahead.popleft()[1]
        else:
            self._discard()
            if self.expected and self.expected[0] == i:
                self.expected.popleft()
            future = self.thread.submit(self._load, i)
        self._go_ahead()
        started_s = time.perf_counter()
        slabs = future.result()
        self.waited_s += time.perf_counter() - started_s
        return slabs

    def release(self, slabs: dict[int, tuple[Tensor, Tensor]]) -> None:
        for memory, _ in slabs.values():
            self.pool.give(memory)

    def rest(self) -> None:
        """Stop fetching ahead, so that nobody else touches the store."""
        self.expected.clear()
        self.again = []
        self._discard()

    def close(self) -> None:
        self.pool.close()
        self.thread.shutdown(wait=True, cancel_futures=True)

    def _load(self, i: int) -> dict[int, tuple[Tensor, Tensor]]:
        slabs = {}
        for owner in self.needs[i]:
            size = self.store.layouts[owner].size
            memory = self.pool.take(4 * size)
            slab = memory.view(torch.float32)[:size]
            self.store.load(owner, slab)
            slabs[owner] = memory, slab
        return slabs

    def _go_ahead(self) -> None:
        if not self.expected:
            self.expected.extend(self.again)
        while self.expected and len(self.ahead) < self.depth:
            i = self.expected.popleft()
            self.ahead.append((i, self.thread.submit(self._load, i)))

    def _discard(self) -> None:
        while self.ahead:
            self.release(self.ahead.popleft()[1].result())
