"""Batches for training, made in worker processes ahead of the step that needs them: worker k mod W makes batch k."""

import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from headrace.text.batches import Batch
from headrace.text.examples import Cursor
from headrace.text.workers import end_with_parent
from headrace.training.source import BatchesOfWorker


@dataclass
class _BatchStream(IterableDataset):
    batches: BatchesOfWorker

    def __iter__(self) -> Iterator[tuple[Batch, Cursor]]:
        info = get_worker_info()
        return self.batches(*((info.id, info.num_workers) if info else (0, 1)))


class TrainingInput:
    """Iterates over (batch, cursor after it) and measures how long training waited for them."""

    def __init__(self, batches: BatchesOfWorker, num_workers: int):
        self._loader: DataLoader[Any] = DataLoader(
            _BatchStream(batches),
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
