"""The order in which rows train: a pure function of (seed, phase, epoch), each row once an epoch.

epoch e: a permutation of the features, cut into batches; the last batch of an epoch may be smaller
"""

from collections.abc import Iterator
from math import ceil

import numpy as np

from headrace.text.examples import Cursor
from headrace.text.random import generator


def batches_from(
    num_features: int, batch_size: int, cursor: Cursor, seed: int, phase: str, shuffle: bool = True
) -> Iterator[tuple[np.ndarray, Cursor]]:
    """The features of each batch from the cursor on, without end, and the cursor after it. shuffle False: as they
    stand, in every epoch."""
    epoch, start = cursor.epoch, cursor.offset
    while True:
        order = np.arange(num_features)
        if shuffle:
            order = generator("rows", seed, phase, epoch).permutation(num_features)
        while start < num_features:
            stop = min(start + batch_size, num_features)
            after = Cursor(epoch, 0, stop) if stop < num_features else Cursor(epoch + 1, 0, 0)
            yield order[start:stop], after
            start = stop
        epoch, start = epoch + 1, 0


def steps_of(epochs: float, num_features: int, batch_size: int) -> int:
    """Optimizer steps of so many epochs, rounded up to whole steps."""
    return max(1, ceil(epochs * ceil(num_features / batch_size)))
