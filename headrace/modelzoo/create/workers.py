"""The worker processes of all stages: one pool, whose processes open vocabulary and token store once."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from headrace.errors import UserError
from headrace.modelzoo.create.examples import Source
from headrace.modelzoo.create.flags import Settings
from headrace.modelzoo.create.inputs import Chunk
from headrace.modelzoo.create.plan import Unit, plan_unit
from headrace.modelzoo.create.token_store import TokenStore
from headrace.modelzoo.create.tokenize import tokenize_chunk
from headrace.modelzoo.create.vocabulary import sentence_cleaner
from headrace.modelzoo.create.write import Group, encode_group
from headrace.text.vocabulary import Vocabulary, open_vocabulary
from headrace.text.workers import end_with_parent, num_cores

Task = TypeVar("Task")


@dataclass(frozen=True)
class Folders:
    """What lies in the scratch folder."""

    root: Path

    vocabulary = property(lambda self: self.root / "vocabulary")
    chunks = property(lambda self: self.root / "chunks")
    store = property(lambda self: self.root / "tokens")
    plan = property(lambda self: self.root / "plan")
    parts = property(lambda self: self.root / "parts")
    outputs = property(lambda self: self.root / "files")


class Bench:
    """What one process works with."""

    def __init__(self, folders: Folders, settings: Settings, in_worker: bool):
        self.folders, self.settings = folders, settings
        self.vocabulary: Vocabulary = open_vocabulary(folders.vocabulary, in_worker)
        self.clean = sentence_cleaner(settings)

    @cached_property
    def source(self) -> Source:
        return Source(TokenStore(self.folders.store), self.folders.plan)

    @cached_property
    def separator_id(self) -> int:
        return separator_id(self.vocabulary, self.settings)


def separator_id(vocabulary: Vocabulary, settings: Settings) -> int:
    """Raises UserError when --document_separator_token is no entry of the vocabulary."""
    token = settings.document_separator_token
    if settings.pairs or token == "[SEP]":
        return vocabulary.sep_id
    found = next((i for i in range(vocabulary.size) if vocabulary.token_text(i) == token), None)
    if found is None:
        raise UserError(f"--document_separator_token {token}: not in --vocab_file {settings.vocab_file}")
    return found


_bench: Bench | None = None  # set once in each process that works


def _start(folders: Folders, settings: Settings, in_worker: bool) -> None:
    global _bench
    if in_worker:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends the pool
        end_with_parent()
    _bench = Bench(folders, settings, in_worker)


def do_chunk(chunk: Chunk) -> None:
    assert _bench is not None
    tokenize_chunk(chunk, _bench.folders.chunks, _bench.vocabulary, _bench.clean, _bench.settings)


def do_unit(unit: Unit) -> None:
    assert _bench is not None
    plan_unit(unit, _bench.folders.plan, _bench.source.store, _bench.separator_id, _bench.settings)


def do_group(work: tuple[Group, list[list[int]]]) -> None:
    assert _bench is not None
    of = _bench
    if not work[1]:  # its part is there from an earlier run
        return
    encode_group(*work, of.folders.parts, of.source, of.vocabulary, of.separator_id, of.settings)


class Pool:
    """`each` runs tasks in the processes; with one process, in this one."""

    def __init__(self, num_processes: int, folders: Folders, settings: Settings):
        self.num_processes = num_processes or num_cores()
        self._executor = None
        if self.num_processes == 1:
            _start(folders, settings, in_worker=False)
        else:
            # spawn: a forked child of a process with the tokenizer's threads may hang.
            context = multiprocessing.get_context("spawn")
            arguments = (folders, settings, True)
            self._executor = ProcessPoolExecutor(self.num_processes, context, _start, arguments)

    def __enter__(self):
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=kind is not None)

    def each(self, work: Callable[[Task], Any], tasks: Iterable[Task]) -> Iterator[Task]:
        """Tasks as they are finished, in their order. No more are under way than keep the processes busy."""
        if self._executor is None:
            for task in tasks:
                work(task)
                yield task
            return
        waiting: deque[tuple[Task, Future[Any]]] = deque()
        for task in tasks:
            waiting.append((task, self._executor.submit(work, task)))
            if len(waiting) > self.num_processes + 2:
                yield _finished(*waiting.popleft())
        while waiting:
            yield _finished(*waiting.popleft())


def _finished(task: Task, future: Future[Any]) -> Task:
    try:
        future.result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process was killed, most likely because memory ran out; set --processes to fewer and run the same "
            "command again: what is done stays done"
        ) from None
    return task
