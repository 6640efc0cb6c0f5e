"""Documents one after the other, cut into windows of equal length: where each window's tokens lie.

    [E] document [E] document [E] ...     E ends a text and begins the next
    |-- window --|-- window --|--         input: the T tokens of a window; target: the token after each of them

So every token of every document is an input once and a target once, and so is every E. Only the last window of a plan is
shorter than T. A document's stretch inside a window is a piece; with its E in front it has n + 1 input positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from headrace.text.tokens import Shard


@dataclass(frozen=True)
class TokenWindows:
    """pieces: int32 (P, 5) = shard, first token of the document in it, tokens n of the document, first position a and
    position after the last b of the piece, 0 <= a < b <= n + 1. Window w has pieces[bounds[w] : bounds[w + 1]]."""

    pieces: np.ndarray
    bounds: np.ndarray
    num_tokens: int

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, window: int) -> np.ndarray:
        return self.pieces[self.bounds[window] : self.bounds[window + 1]]


def plan_token_windows(
    shards: Sequence[Shard], window: Sequence[int], sequence_length: int, source: np.random.Generator
) -> TokenWindows:
    """The documents of some shards in random order, cut every sequence_length positions."""
    firsts, lengths, numbers = [], [], []
    for shard in window:
        ends = shards[shard].sentence_ends[shards[shard].document_ends.astype(np.int64) - 1].astype(np.int64)
        firsts.append(np.concatenate([[0], ends[:-1]])[: len(ends)])
        lengths.append(ends - firsts[-1])
        numbers.append(np.full(len(ends), shard))
    first, length, number = (np.concatenate([[], *parts]).astype(np.int64) for parts in (firsts, lengths, numbers))
    order = source.permutation(len(first))
    first, length, number = first[order], length[order], number[order]
    after = np.cumsum(length + 1)
    begin = after - (length + 1)
    total = int(after[-1]) if len(after) else 0
    cuts = np.arange(0, total, sequence_length)
    starts = np.union1d(begin, cuts)
    stops = np.append(starts[1:], total)[: len(starts)]
    document = np.searchsorted(begin, starts, "right") - 1
    columns = (number[document], first[document], length[document], starts - begin[document], stops - begin[document])
    bounds = np.append(np.searchsorted(starts, cuts), len(starts))
    return TokenWindows(np.stack(columns, 1).astype(np.int32), bounds, int(length.sum()))


def piece_tokens(shards: Sequence[Shard], piece: Sequence[int], end_id: int) -> tuple[np.ndarray, np.ndarray]:
    """(inputs, targets) of a piece, int64 (b - a,) each."""
    shard, first, length, a, b = piece
    text = shards[shard].tokens[first + max(a - 1, 0) : first + min(b, length)].astype(np.int64)
    whole = np.concatenate([[end_id] if a == 0 else [], text, [end_id] if b == length + 1 else []]).astype(np.int64)
    return whole[:-1], whole[1:]
