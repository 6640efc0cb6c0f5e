"""Bringing segments' weights in, ahead of the computation that needs them.

    forward                              backward                        the next step's forward
    load 0 | load 1 | load 2 | ...       ... | load 1 | load 0           stage 0 | stage 1 |> finish 0 | finish 1 | load 2

One thread loads segments in the order they are expected, as far ahead as the pool has room for. The first segments of the
next step are staged while the backward pass of this one still runs: what their update needs is read before the update is
known, so that the next forward pass has nothing to wait for but arithmetic. An expectation that proves wrong costs time,
never a result.

For a device apart from the host (`headrace.store.transfer`) weights go on from their slab in host memory to one on the device:
the thread that loads begins the copy and goes on, computing waits for it.
"""

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headrace.store.files import pages
from headrace.store.folder import FolderStore
from headrace.store.memory import Limit, Pool
from headrace.store.store import Store
from headrace.store.transfer import Mark

Slabs = dict[int, tuple[Tensor, Tensor]]  # owner: memory, weights


@dataclass
class Fetch:
    """What a segment needs, on its way. All but `slabs` is of a device apart alone."""

    slabs: Slabs
    """Where it is computed with."""
    host: dict[int, tuple[Tensor | None, Tensor]] = field(default_factory=dict)
    """Where it is loaded, until it is sent. Memory None: the weights are there all the time."""
    after: dict[int, Mark] = field(default_factory=dict)
    """What computed with the slab's memory before."""
    sent: list[Mark] = field(default_factory=list)


class Fetcher:
    """Slabs of segments that are not on the device, on their way to computation and back. The thread that computes hands
    memory out, and only when there is room, so the one that loads never waits for anything but the disk."""

    def __init__(
        self,
        store: Store | FolderStore,
        needs: Sequence[tuple[int, ...]],
        pool_bytes: int,
        limit: Limit,
        host_pool_bytes: int = 0,
    ):
        """needs: per segment, the fetched segments whose weights it uses (its own and borrowed ones). limit: of the process.
        host_pool_bytes: beside a device apart, for slabs that come from disk."""
        self.store, self.needs, self.limit, self.transfer = store, needs, limit, store.transfer
        if self.transfer is None:
            self.pool = Pool(pool_bytes)
        else:
            self.pool = Pool(pool_bytes, self.transfer.device_memory)
            self.host_pool = Pool(host_pool_bytes, self.transfer.host_memory)
        self._leaving: deque[tuple[Mark, Tensor]] = deque()  # host memory of slabs that are being sent
        self._used: dict[int, Mark] = {}  # by address, what computed with memory that was given back
        self.thread = ThreadPoolExecutor(1, "headrace-fetch", initializer=torch.set_num_threads, initargs=(1,))
        self.expected: deque[int] = deque()
        self.to_stage: deque[int] = deque()
        self.ahead: deque[tuple[int, Future[None], Fetch]] = deque()  # being loaded, or loaded
        self.staged: deque[tuple[int, Future[None], Fetch]] = deque()
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
            i, future, fetch = self.staged.popleft()
            self.ahead.append((i, self.thread.submit(self._finish, future, fetch), fetch))
        self.expected, self.to_stage = deque(chosen[len(self.ahead) :]), deque(then)
        self._go_ahead()

    def fetch(self, i: int) -> Slabs:
        """(memory, weights) of every fetched segment that segment i uses; the memory goes back with `release`."""
        if not (self.ahead and self.ahead[0][0] == i):
            wrong = [*(j for j, _, _ in self.ahead), *self.expected]
            self._discard()
            self.expected = deque(wrong[wrong.index(i) :] if i in wrong else [i, *wrong])
            self._go_ahead()
        _, future, fetch = self.ahead.popleft()
        started_s = time.perf_counter()
        future.result()
        if self.transfer is not None:
            for mark in fetch.sent:
                self.transfer.before_computing(mark)
        self.waited_s += time.perf_counter() - started_s
        return fetch.slabs

    def release(self, slabs: Slabs) -> None:
        self._give(slabs)
        self._go_ahead()

    def rest(self) -> None:
        """Stop fetching ahead, so that nobody else touches the store."""
        self.again = []
        self._discard()

    def close(self) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)
        for mark, _ in self._leaving:
            assert self.transfer is not None
            self.transfer.wait(mark)

    def _go_ahead(self) -> None:
        """Begin on what is next, as far as there is room."""
        while self.expected or self.again:
            if not self.expected:
                self.expected.extend(self.again)
            if not self._has_room(self.expected[0]):
                return
            i = self.expected.popleft()
            fetch = self._room(i)
            self.ahead.append((i, self.thread.submit(self._load, fetch), fetch))
        while self.to_stage and self._has_room(self.to_stage[0]):
            i = self.to_stage.popleft()
            fetch = self._room(i)
            self.staged.append((i, self.thread.submit(self._stage, fetch), fetch))

    def _load(self, fetch: Fetch) -> None:
        for owner, (_, slab) in fetch.slabs.items():
            if self.transfer is None:
                self.store.load(owner, slab)
                continue
            memory, host = fetch.host[owner]
            self.store.load(owner, host)
            mark = self.transfer.send(host, slab, after=fetch.after.get(owner))
            self.store.sent(owner, mark)
            fetch.sent.append(mark)
            del fetch.host[owner]
            if memory is not None:
                self._leaving.append((mark, memory))

    def _stage(self, fetch: Fetch) -> None:
        assert isinstance(self.store, Store)
        for owner, (_, slab) in (fetch.slabs if self.transfer is None else fetch.host).items():
            self.limit.make_room(self.store.state_bytes(owner))
            self.store.stage(owner, slab)

    def _finish(self, staged: Future[None], fetch: Fetch) -> None:
        staged.result()
        self._load(fetch)

    def _has_room(self, i: int) -> bool:
        sizes = {owner: pages(4 * self.store.layouts[owner].size) for owner in self.needs[i]}
        if not self.pool.has_room(sum(sizes.values())):
            return False
        if self.transfer is None:
            return True
        host_bytes = sum(size for owner, size in sizes.items() if self.store.host_slab(owner) is None)
        while self._leaving:
            mark, memory = self._leaving[0]
            if not self.transfer.passed(mark):
                if self.ahead or self.host_pool.has_room(host_bytes):
                    break
                self.transfer.wait(mark)  # or else there would be nothing to go on with
            self._leaving.popleft()
            self.host_pool.give(memory)
        return self.host_pool.has_room(host_bytes)

    def _room(self, i: int) -> Fetch:
        fetch = Fetch({})
        for owner in self.needs[i]:
            size = self.store.layouts[owner].size
            memory = self.pool.take(4 * size)
            fetch.slabs[owner] = memory, memory.view(torch.float32)[:size]
            if self.transfer is None:
                continue
            fetch.after[owner] = self._used.pop(memory.data_ptr(), None)
            slab, memory = self.store.host_slab(owner), None
            if slab is None:
                memory = self.host_pool.take(4 * size)
                slab = memory.view(torch.float32)[:size]
            fetch.host[owner] = memory, slab
        return fetch

    def _give(self, slabs: Slabs) -> None:
        for memory, _ in slabs.values():
            if self.transfer is not None:
                self._used[memory.data_ptr()] = self.transfer.computed()
            self.pool.give(memory)

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
        for _, future, fetch in under_way:
            if not future.cancelled():
                future.result()
            self._give(fetch.slabs)
            for memory, _ in fetch.host.values():
                if memory is not None:
                    self.host_pool.give(memory)
        if isinstance(self.store, Store):
            self.store.unstage({owner for i, _, _ in under_way for owner in self.needs[i]})
