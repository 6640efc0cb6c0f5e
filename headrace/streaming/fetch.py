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
from headrace.store.memory import Limit, Pool
from headrace.store.store import Store

Slabs = dict[int, tuple[Tensor, Tensor]]  # owner: memory, weights


class Fetcher:
    """Slabs of disk segments on their way to computation and back. The thread that computes hands memory out, and only when
    there is room, so the one that loads never waits for anything but the disk."""

    def __init__(self, store: Store | FolderStore, needs: Sequence[tuple[int, ...]], pool_bytes: int, limit: Limit):
        """needs: per segment, the disk segments whose weights it uses (its own and borrowed ones). limit: of the process."""
        self.store, self.needs, self.limit = store, needs, limit
        self.pool = Pool(pool_bytes)
        self.thread = ThreadPoolExecutor(1, "headrace-fetch", initializer=torch.set_num_threads, initargs=(1,))
        self.expected: deque[int] = deque()
        self.to_stage: deque[int] = deque()
        self.ahead: deque[tuple[int, Future[None], Slabs]] = deque()  # being loaded, or loaded
        self.staged: deque[tuple[int, Future[None], Slabs]] = deque()
        self.again: list[int] = []
        self.waited_s = 0.0

    def expect(self, order: Sequence[int], again: bool = False, then: Sequence[int] = ()) -> None:
        """What will be fetched next; starts on it. again: over and over, until `rest`. then: with what the step after
        this one begins; these are staged."""
        chosen = [i for i in order if self.needs[i]]
        staged = [i for i, _, _ in self.staged]
        if self.ahead or chosen[: len(staged)] != staged:
            self.rest()
        self.again = chosen if again else []
        while self.staged:
            i, future, slabs = self.staged.popleft()
            self.ahead.append((i, self.thread.submit(self._finish, future, slabs), slabs))
        self.expected, self.to_stage = deque(chosen[len(self.ahead) :]), deque(then)
        self._go_ahead()

    def fetch(self, i: int) -> Slabs:
        """(memory, weights) of every disk segment that segment i uses; the memory goes back with `release`."""
        if not (self.ahead and self.ahead[0][0] == i):
            wrong = [*(j for j, _, _ in self.ahead), *self.expected]
            self._discard()
            self.expected = deque(wrong[wrong.index(i) :] if i in wrong else [i, *wrong])
            self._go_ahead()
        _, future, slabs = self.ahead.popleft()
        started_s = time.perf_counter()
        future.result()
        self.waited_s += time.perf_counter() - started_s
        return slabs

    def release(self, slabs: Slabs) -> None:
        for memory, _ in slabs.values():
            self.pool.give(memory)
        self._go_ahead()

    def rest(self) -> None:
        """Stop fetching ahead, so that nobody else touches the store."""
        self.again = []
        self._discard()

    def close(self) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)

    def _go_ahead(self) -> None:
        """Begin on what is next, as far as there is room."""
        while self.expected or self.again:
            if not self.expected:
                self.expected.extend(self.again)
            if not self._has_room(self.expected[0]):
                return
            i = self.expected.popleft()
            slabs = self._room(i)
            self.ahead.append((i, self.thread.submit(self._load, slabs), slabs))
        while self.to_stage and self._has_room(self.to_stage[0]):
            i = self.to_stage.popleft()
            slabs = self._room(i)
            self.staged.append((i, self.thread.submit(self._stage, slabs), slabs))

    def _load(self, slabs: Slabs) -> None:
        for owner, (_, slab) in slabs.items():
            self.store.load(owner, slab)

    def _stage(self, slabs: Slabs) -> None:
        assert isinstance(self.store, Store)
        for owner, (_, slab) in slabs.items():
            self.limit.make_room(self.store.state_bytes(owner))
            self.store.stage(owner, slab)

    def _finish(self, staged: Future[None], slabs: Slabs) -> None:
        staged.result()
        self._load(slabs)

    def _has_room(self, i: int) -> bool:
        return self.pool.has_room(sum(pages(4 * self.store.layouts[owner].size) for owner in self.needs[i]))

    def _room(self, i: int) -> Slabs:
        slabs: Slabs = {}
        for owner in self.needs[i]:
            size = self.store.layouts[owner].size
            memory = self.pool.take(4 * size)
            slabs[owner] = memory, memory.view(torch.float32)[:size]
        return slabs

    def _discard(self) -> None:
        """Take back what is under way, when it has ended; what has not begun does not begin."""
        under_way = [*self.ahead, *self.staged]
        self.expected.clear()
        self.to_stage.clear()
        self.ahead.clear()
        self.staged.clear()
        for _, future, _ in reversed(under_way):
            future.cancel()
        self.thread.submit(int).result()  # behind it nothing runs, not even what the cancelled were to finish
        for _, future, slabs in under_way:
            if not future.cancelled():
                future.result()
            for memory, _ in slabs.values():
                self.pool.give(memory)
        if isinstance(self.store, Store):
            self.store.unstage({owner for i, _, _ in under_way for owner in self.needs[i]})
