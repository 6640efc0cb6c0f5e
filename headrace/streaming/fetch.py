"""Bringing segments' weights in, ahead of the computation that needs them.

    forward                              backward                        the next step's forward
    load 0 | load 1 | load 2 | ...       ... | load 1 | load 0           stage 0 | stage 1 |> finish 0 | finish 1 | load 2

One thread loads segments in the order they are expected, as far ahead as the pool has room for. The first segments of the
next step are staged while the backward pass of this one still runs: what their update needs is read before the update is
known, so that the next forward pass has nothing to wait for but arithmetic. An expectation that proves wrong costs time,
never a result.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from headrace.store.files import pages
from headrace.store.folder import FolderStore
from headrace.store.memory import Pool
from headrace.store.store import Store

Slabs = dict[int, tuple[Tensor, Tensor]]  # owner: memory, weights


class Fetcher:
    """Slabs of disk segments on their way to computation and back."""

    def __init__(self, store: Store | FolderStore, needs: Sequence[tuple[int, ...]], pool_bytes: int):
        """needs: per segment, the disk segments whose weights it uses (its own and borrowed ones)."""
        self.store, self.needs = store, needs
        self.pool = Pool(pool_bytes)
        self.thread = ThreadPoolExecutor(1, "headrace-fetch", initializer=torch.set_num_threads, initargs=(1,))
        self.ahead: deque[tuple[int, Future[Slabs], Future[Slabs] | None]] = deque()  # the last: what it was staged by
        self.staged: deque[tuple[int, Future[Slabs]]] = deque()
        self.again: list[int] = []
        self.waited_s = 0.0

    def expect(self, order: Sequence[int], again: bool = False, then: Sequence[int] = ()) -> None:
        """What will be fetched next; starts on it. again: over and over, until `rest`. then: with what the step after
        this one begins; these are staged."""
        chosen = [i for i in order if self.needs[i]]
        staged = [i for i, _ in self.staged]
        if self.ahead or chosen[: len(staged)] != staged:
            self.rest()
        self.again = chosen if again else []
        while self.staged:
            i, future = self.staged.popleft()
            self.ahead.append((i, self.thread.submit(self._finish, future), future))
        self._go_ahead(chosen[len(self.ahead) :])
        room = self.pool.limit_bytes  # or else the last to be staged would wait for those that wait for it
        for i in then:
            room -= sum(pages(4 * self.store.layouts[owner].size) for owner in self.needs[i])
            if room < 0:
                break
            self.staged.append((i, self.thread.submit(self._stage, i)))

    def fetch(self, i: int) -> Slabs:
        """(memory, weights) of every disk segment that segment i uses; the memory goes back with `release`."""
        if not (self.ahead and self.ahead[0][0] == i):
            wrong = [j for j, _, _ in self.ahead]
            self._discard()
            self._go_ahead(wrong[wrong.index(i) :] if i in wrong else [i, *wrong])
        future = self.ahead.popleft()[1]
        if self.again and len(self.ahead) < 2:
            self._go_ahead(self.again)
        started_s = time.perf_counter()
        slabs = future.result()
        self.waited_s += time.perf_counter() - started_s
        return slabs

    def release(self, slabs: Slabs) -> None:
        for memory, _ in slabs.values():
            self.pool.give(memory)

    def rest(self) -> None:
        """Stop fetching ahead, so that nobody else touches the store."""
        self.again = []
        self._discard()

    def close(self) -> None:
        self.pool.close()
        self.thread.shutdown(wait=True, cancel_futures=True)

    def _go_ahead(self, order: Sequence[int]) -> None:
        self.ahead.extend((i, self.thread.submit(self._load, i), None) for i in order)

    def _load(self, i: int) -> Slabs:
        slabs = self._room(i)
        for owner, (_, slab) in slabs.items():
            self.store.load(owner, slab)
        return slabs

    def _stage(self, i: int) -> Slabs:
        assert isinstance(self.store, Store)
        slabs = self._room(i)
        for owner, (_, slab) in slabs.items():
            self.store.stage(owner, slab)
        return slabs

    def _finish(self, staged: Future[Slabs]) -> Slabs:
        slabs = staged.result()
        for owner, (_, slab) in slabs.items():
            self.store.load(owner, slab)
        return slabs

    def _room(self, i: int) -> Slabs:
        slabs: Slabs = {}
        for owner in self.needs[i]:
            size = self.store.layouts[owner].size
            memory = self.pool.take(4 * size)
            slabs[owner] = memory, memory.view(torch.float32)[:size]
        return slabs

    def _discard(self) -> None:
        """Take back what is under way. First in, first out: the one that waits for room gets it from those before it."""
        under_way = [*self.ahead, *((i, future, future) for i, future in self.staged)]
        self.ahead.clear()
        self.staged.clear()
        for _, future, _ in reversed(under_way):
            future.cancel()
        for i, future, staged in under_way:
            for begun in (future, staged):
                if begun is not None and not begun.cancelled():
                    self.release(begun.result())
                    break
            if staged is not None and isinstance(self.store, Store):
                self.store.unstage(self.needs[i])
