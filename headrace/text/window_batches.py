"""From token windows to the arrays a training step reads: one window a row, the next token as target everywhere."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.text.batches import Batch, Microbatch, split_rows
from headrace.text.token_windows import piece_tokens
from headrace.text.tokens import Shard


@dataclass(frozen=True)
class WindowBatchRule:
    """How windows become arrays."""

    sequence_length: int
    end_id: int  # ends a text and begins the next
    pad_id: int
    microbatch_tokens: int
    isolate_documents: bool  # number the documents of a row apart and restart positions in each
    hidden_size: int
    buckets: None = None
    loss_per_example: bool = False
    loss_weight: float = 1.0

    def batch(self, shards: Sequence[Shard], spans: Sequence[np.ndarray], keys: Sequence[int]) -> Batch:
        """One optimizer batch; spans: the pieces of each window, see `headrace.text.token_windows`."""
        windows = [_window(shards, pieces, self) for pieces in spans]
        windows.sort(key=lambda window: len(window.inputs))  # stable: only the rare short ones move
        lengths = np.array([len(window.inputs) for window in windows])
        bounds, _ = split_rows(lengths, self)
        digest = 0
        for window in windows:
            digest = zlib.crc32(window.targets.tobytes(), zlib.crc32(window.inputs.tobytes(), digest))
        seen = [n for window in windows for n in (window.piece_lengths if self.isolate_documents else [window.length])]
        return Batch(
            [_microbatch(windows[start:stop], self) for start, stop in bounds],
            num_examples=len(windows),
            num_targets=int(lengths.sum()),
            num_pairs=0,
            sum_squared_lengths=sum(n * n for n in seen),
            digest=digest,
            loss_per_example=self.loss_per_example,
            loss_weight=self.loss_weight,
        )


@dataclass(frozen=True)
class _Window:
    inputs: np.ndarray  # (N,)
    targets: np.ndarray  # (N,)
    piece_lengths: list[int]

    @property
    def length(self) -> int:
        return len(self.inputs)


def _window(shards: Sequence[Shard], pieces: np.ndarray, rule: WindowBatchRule) -> _Window:
    inputs, targets = zip(*(piece_tokens(shards, piece, rule.end_id) for piece in pieces.tolist()), strict=True)
    return _Window(np.concatenate(inputs), np.concatenate(targets), [len(part) for part in inputs])


def _microbatch(windows: list[_Window], rule: WindowBatchRule) -> Microbatch:
    shape = (len(windows), windows[-1].length)
    input_ids = np.full(shape, rule.pad_id, np.int64)
    example_ids = np.zeros(shape, np.int32)
    positions = np.tile(np.arange(shape[1]), (shape[0], 1))  # padding counts on: its rows end there
    for row, window in enumerate(windows):
        input_ids[row, : window.length] = window.inputs
        example_ids[row, : window.length] = 1
        if rule.isolate_documents:
            lengths = np.array(window.piece_lengths)
            example_ids[row, : window.length] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
            positions[row, : window.length] -= np.repeat(np.cumsum(lengths) - lengths, lengths)
            positions[row, window.length :] = 0
    return Microbatch(
        input_ids=input_ids,
        token_type_ids=np.zeros(shape, np.int64),
        position_ids=positions,
        example_ids=example_ids,
        target_positions=np.flatnonzero(example_ids),
        target_ids=np.concatenate([window.targets for window in windows]),
        first_positions=np.arange(shape[0]) * shape[1],
        labels=np.zeros(0, np.int64),
        packed=rule.isolate_documents,
    )
