"""From example spans to the arrays a training step reads.

    spans of one optimizer batch -> tokens, masks -> rows (one example each, or several when packing) -> microbatches

The batch is what decides the numbers; rows, microbatches and padding only decide the speed.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from headrace.text.examples import NO_LABEL
from headrace.text.masking import MaskRule, mask
from headrace.text.tokens import Shard

# What one more microbatch costs, in token slots: lets the split weigh padding against the fixed cost of a pass.
MICROBATCH_COST_TOKENS = 128


@dataclass(frozen=True)
class Microbatch:
    """R rows of T token slots. Flat positions count through the rows: row * T + column."""

    input_ids: np.ndarray  # (R, T) int64, masked
    token_type_ids: np.ndarray  # (R, T) int64: 0 for A, 1 for B
    position_ids: np.ndarray  # (R, T) int64, restarting in each example
    example_ids: np.ndarray  # (R, T) int32: which example of the row a slot belongs to, from 1; 0 = padding
    target_positions: np.ndarray  # (M,) int64 flat
    target_ids: np.ndarray  # (M,) int64
    first_positions: np.ndarray  # (E,) int64 flat positions of each example's [CLS]
    labels: np.ndarray  # (E,) of whole examples: next-sentence labels as int64, or what the task learns; (0,) = none
    packed: bool  # a row may hold several examples

    @property
    def num_examples(self) -> int:
        return len(self.first_positions)

    @property
    def num_tokens(self) -> int:
        return int(np.count_nonzero(self.example_ids))

    @property
    def num_slots(self) -> int:
        return self.input_ids.size


@dataclass(frozen=True)
class Batch:
    """The examples of one optimizer step, split into microbatches."""

    microbatches: list[Microbatch]
    num_examples: int
    num_targets: int
    num_pairs: int
    sum_squared_lengths: int  # over examples: what attention costs
    digest: int  # CRC-32 of inputs and targets: equal digests = equal batches
    loss_per_example: bool = False  # task.loss_per
    loss_weight: float = 1.0  # task.loss_weight

    @property
    def target_divisor(self) -> float:
        """What the summed loss of predicted tokens is divided by: their number, or the examples', over the weight."""
        count = max(self.num_examples if self.loss_per_example else self.num_targets, 1)
        return count if self.loss_weight == 1.0 else count / self.loss_weight

    @property
    def num_tokens(self) -> int:
        return sum(m.num_tokens for m in self.microbatches)

    @property
    def num_slots(self) -> int:
        return sum(m.num_slots for m in self.microbatches)


@dataclass(frozen=True)
class BatchRule:
    """How spans become arrays."""

    sequence_length: int
    cls_id: int
    sep_id: int
    pad_id: int
    mask: MaskRule
    microbatch_tokens: int
    packing: bool | None  # None: per batch, whichever costs less
    buckets: tuple[int, ...] | None
    hidden_size: int = 256  # of the model: tells what attention costs beside the rest
    loss_per_example: bool = False
    loss_weight: float = 1.0

    def batch(self, shards: Sequence[Shard], spans: Sequence[np.ndarray], keys: Sequence[int]) -> Batch:
        return make_batch(shards, spans, keys, self)


class RowRule(Protocol):
    """What decides how many rows go through the model at once."""

    @property
    def sequence_length(self) -> int: ...
    @property
    def microbatch_tokens(self) -> int: ...
    @property
    def buckets(self) -> tuple[int, ...] | None: ...
    @property
    def hidden_size(self) -> int: ...


class MakesBatches(RowRule, Protocol):
    """A rule that makes an optimizer batch of example spans and their keys."""

    def batch(self, shards: Sequence[Shard], spans: Sequence[np.ndarray], keys: Sequence[int]) -> Batch: ...


def make_batch(shards: Sequence[Shard], spans: Sequence[np.ndarray], keys: Sequence[int], rule: BatchRule) -> Batch:
    """Build one optimizer batch. spans: E times (7,), see examples.Plan; keys: E example keys."""
    cls, sep = np.array([rule.cls_id]), np.array([rule.sep_id])
    pieces: list[np.ndarray] = []
    lengths = np.empty(len(spans), np.int64)
    length_a = np.empty(len(spans), np.int64)  # [CLS] A [SEP]
    for e, (shard_a, start_a, stop_a, shard_b, start_b, stop_b, label) in enumerate(map(np.ndarray.tolist, spans)):
        pieces += (cls, shards[shard_a].tokens[start_a:stop_a], sep)
        lengths[e] = length_a[e] = stop_a - start_a + 2
        if label != NO_LABEL:
            pieces += (shards[shard_b].tokens[start_b:stop_b], sep)
            lengths[e] += stop_b - start_b + 1
    ids = np.concatenate(pieces).astype(np.int64)  # (N,)
    example = np.repeat(np.arange(len(spans)), lengths)
    first = np.cumsum(lengths) - lengths
    place = np.arange(len(ids)) - first[example]
    is_b = place >= length_a[example]
    special = (place == 0) | (place == length_a[example] - 1) | (place == lengths[example] - 1)
    starts_word = _word_starts(shards, spans, len(ids)) if rule.mask.whole_words else special
    masked = mask(ids, example, ~special, starts_word, np.array(keys, np.uint64), rule.mask)

    flat = _Flat(masked.input_ids, is_b, place, lengths, first, masked.positions, masked.target_ids)
    labels = np.array([span[6] for span in spans], np.int64)
    choices = (False, True) if rule.packing is None else (rule.packing,)
    layout = min((_lay_out(lengths, packed, rule) for packed in choices), key=lambda layout: layout.cost)
    microbatches = [_microbatch(flat, labels, layout, start, stop, rule) for start, stop in layout.bounds]
    return Batch(
        microbatches,
        num_examples=len(spans),
        num_targets=len(masked.positions),
        num_pairs=int((labels != NO_LABEL).sum()),
        sum_squared_lengths=int((lengths**2).sum()),
        digest=zlib.crc32(masked.target_ids.tobytes(), zlib.crc32(masked.input_ids.tobytes())),
        loss_per_example=rule.loss_per_example,
        loss_weight=rule.loss_weight,
    )


@dataclass(frozen=True)
class _Layout:
    """The rows of a batch, shortest first, and where microbatches begin and end among them."""

    rows: list[list[int]]  # the examples of each row
    row_lengths: np.ndarray
    bounds: list[tuple[int, int]]
    cost: float
    packed: bool


def _lay_out(lengths: np.ndarray, packed: bool, rule: BatchRule) -> _Layout:
    by_length = np.argsort(lengths, kind="stable").tolist()
    rows = _pack(lengths, rule.sequence_length) if packed else [[e] for e in by_length]
    rows.sort(key=lambda row: sum(lengths[row]))
    row_lengths = np.array([lengths[row].sum() for row in rows])
    bounds, cost = split_rows(row_lengths, rule)
    return _Layout(rows, row_lengths, bounds, cost, packed)


def split_rows(row_lengths: np.ndarray, rule: RowRule) -> tuple[list[tuple[int, int]], float]:
    """Cut rows sorted by length into microbatches: [start, stop) each, and what they cost in token slots.

    Least total cost, none above rule.microbatch_tokens (one row may be), found exactly by dynamic programming over the
    number of rows. A slot costs 1 plus what attention adds: s / 6h of a block's FLOPs for s slots a row and width h,
    taken three times because its products are small and its softmax is not counted.
    """
    n = len(row_lengths)
    best = np.zeros(n + 1)  # best[k]: cost of the first k rows
    cut = [0] * (n + 1)
    counts = np.arange(n, 0, -1)  # rows of the last microbatch, by where it may begin
    lengths = row_lengths.tolist()
    for stop in range(1, n + 1):
        padded = padded_length(lengths[stop - 1], rule)
        first = max(0, stop - max(1, rule.microbatch_tokens // padded))
        slot_cost = 1 + padded / (2 * rule.hidden_size)
        cost = best[first:stop] + counts[n - stop + first :] * (padded * slot_cost)
        choice = int(cost.argmin())
        best[stop], cut[stop] = cost[choice] + MICROBATCH_COST_TOKENS, first + choice
    bounds = []
    stop = n
    while stop:
        bounds.append((cut[stop], stop))
        stop = cut[stop]
    return bounds[::-1], float(best[n])


@dataclass(frozen=True)
class _Flat:
    """All examples of a batch end to end; N tokens, E examples, M targets."""

    ids: np.ndarray  # (N,)
    is_b: np.ndarray  # (N,)
    place: np.ndarray  # (N,) position inside the example
    lengths: np.ndarray  # (E,)
    first: np.ndarray  # (E,)
    target_positions: np.ndarray  # (M,)
    target_ids: np.ndarray  # (M,)


def _microbatch(flat: _Flat, labels: np.ndarray, layout: _Layout, start: int, stop: int, rule: BatchRule) -> Microbatch:
    rows, length = layout.rows[start:stop], padded_length(int(layout.row_lengths[stop - 1]), rule)
    examples = np.array([e for row in rows for e in row])
    row_of = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    number = np.concatenate([np.arange(1, len(row) + 1) for row in rows])
    lengths = flat.lengths[examples]
    before_row = np.zeros(len(rows), np.int64)
    before_row[1:] = np.cumsum(np.bincount(row_of, weights=lengths, minlength=len(rows)).astype(np.int64))[:-1]
    column = np.cumsum(lengths) - lengths - before_row[row_of]  # where in its row each example begins
    first_slot = row_of * length + column  # (E,)

    within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    source = np.repeat(flat.first[examples], lengths) + within  # flat token -> ...
    slot = np.repeat(first_slot, lengths) + within  # ... row slot
    shape = (len(rows), length)

    def laid(values: np.ndarray, fill: int, dtype: type) -> np.ndarray:
        out = np.full(len(rows) * length, fill, dtype)
        out[slot] = values
        return out.reshape(shape)

    first_target = np.searchsorted(flat.target_positions, flat.first[examples])
    last_target = np.searchsorted(flat.target_positions, flat.first[examples] + lengths)
    targets = np.concatenate([np.arange(a, b) for a, b in zip(first_target, last_target, strict=True)])
    shift = np.repeat(first_slot - flat.first[examples], last_target - first_target)
    pair_labels = labels[examples]
    return Microbatch(
        input_ids=laid(flat.ids[source], rule.pad_id, np.int64),
        token_type_ids=laid(flat.is_b[source], 0, np.int64),
        position_ids=laid(flat.place[source], 0, np.int64),
        example_ids=laid(np.repeat(number, lengths), 0, np.int32),
        target_positions=flat.target_positions[targets] + shift,
        target_ids=flat.target_ids[targets],
        first_positions=first_slot,
        labels=pair_labels[pair_labels != NO_LABEL],
        packed=layout.packed,
    )


def padded_length(longest: int, rule: RowRule) -> int:
    """The slots of the rows of a microbatch whose longest row has so many tokens."""
    if not rule.buckets:
        return longest
    return next((bucket for bucket in rule.buckets if bucket >= longest), rule.sequence_length)


def _pack(lengths: np.ndarray, room: int) -> list[list[int]]:
    """Best-fit decreasing: each example, longest first, goes where the least room is left over."""
    open_rows: list[list[list[int]]] = [[] for _ in range(room + 1)]  # by room left
    for e in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[e])
        left = next((left for left in range(length, room) if open_rows[left]), room)
        row = open_rows[left].pop() if left < room else []
        row.append(e)
        open_rows[left - length].append(row)
    return [row for rows in open_rows for row in rows]


def _word_starts(shards: Sequence[Shard], spans: Sequence[np.ndarray], num_tokens: int) -> np.ndarray:
    """Whether each token of the batch starts a word, (N,); special tokens do."""
    out = np.ones(num_tokens, bool)
    at = 0
    for shard_a, start_a, stop_a, shard_b, start_b, stop_b, label in map(np.ndarray.tolist, spans):
        at += 1
        out[at : at + stop_a - start_a] = shards[shard_a].starts_word(start_a, stop_a)
        at += stop_a - start_a + 1
        if label != NO_LABEL:
            out[at : at + stop_b - start_b] = shards[shard_b].starts_word(start_b, stop_b)
            at += stop_b - start_b + 1
    return out


def example_rows(batch: Batch) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(token ids as the model sees them, token types) of each example, for display and tests."""
    for microbatch in batch.microbatches:
        for row in range(len(microbatch.input_ids)):
            for number in range(1, int(microbatch.example_ids[row].max()) + 1):
                slots = microbatch.example_ids[row] == number
                yield microbatch.input_ids[row][slots], microbatch.token_type_ids[row][slots]
