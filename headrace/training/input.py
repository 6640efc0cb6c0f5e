"""Batches for training, made in worker processes ahead of the step that needs them.

    token folder -> examples in the phase's order -> batch k = examples [k B, (k + 1) B) -> worker k mod W makes it

Every worker walks the same order, so the batches are the same for any number of workers.
"""

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from headrace.text.batches import Batch, MakesBatches
from headrace.text.examples import Cursor, ExampleRule, examples_from
from headrace.text.tokens import TokenFolder
from headrace.text.workers import end_with_parent


@dataclass
class _BatchStream(IterableDataset):
    tokens: TokenFolder
    example_rule: ExampleRule
    batch_rule: MakesBatches
    batch_size: int
    cursor: Cursor
    num_batches: int

    def __iter__(self) -> Iterator[tuple[Batch, Cursor]]:
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        shards = self.tokens.shards("train")
        examples = examples_from(shards, self.example_rule, self.cursor)
        for k in range(self.num_batches):
            chosen = list(islice(examples, self.batch_size))
            if k % num_workers == worker:
                spans, keys, cursors = zip(*chosen, strict=True)
                yield self.batch_rule.batch(shards, spans, keys), cursors[-1]


class TrainingInput:
    """Iterates over (batch, cursor after it) and measures how long training waited for them."""

    def __init__(
        self,
        tokens: TokenFolder,
        example_rule: ExampleRule,
        batch_rule: MakesBatches,
        *,
        batch_size: int,
        cursor: Cursor,
        num_batches: int,
        num_workers: int,
    ):
        stream = _BatchStream(tokens, example_rule, batch_rule, batch_size, cursor, num_batches)
        self._loader: DataLoader[Any] = DataLoader(
            stream,
            batch_size=None,
            num_workers=num_workers,
            worker_init_fn=_begin_worker if num_workers else None,
            prefetch_factor=4 if num_workers else None,
            collate_fn=_as_it_is,
        )
        self.waited_s = 0.0

    def __iter__(self) -> Iterator[tuple[Batch, Cursor]]:
        batches = iter(self._loader)
        while True:
            started_s = time.perf_counter()
            try:
                item = next(batches)
            except StopIteration:
                return
            finally:
                self.waited_s += time.perf_counter() - started_s
            yield item


def _as_it_is(item: Any) -> Any:
    return item


def _begin_worker(_: int) -> None:
    # Ctrl-C and a scheduler's SIGTERM reach the whole process group; training stops first, then ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_with_parent()
    torch.set_num_threads(1)
