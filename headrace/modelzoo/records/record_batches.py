"""From records to the arrays a training step reads.

    record numbers of a batch -> arrays of the files -> [masks, when the files hold none] -> rows by length -> microbatches

Masks of the files stay as they are. Every slot behind the last token of a row is left out, which changes no loss.
B records, S = max_sequence_length, P = max_predictions_per_seq.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.modelzoo.records.layouts import SEQUENCE_COLUMN
from headrace.modelzoo.records.order import record_keys, record_numbers
from headrace.modelzoo.records.record_set import RecordSet
from headrace.text.batches import Batch, Microbatch, padded_length, split_rows
from headrace.text.examples import NO_LABEL, Cursor
from headrace.text.masking import MaskRule, mask

READ_SLOTS = 1 << 17
"""How many token slots are read at once, for several batches if they are small: decoding has a fixed cost a call."""


@dataclass(frozen=True)
class RecordBatchRule:
    """How records become arrays. mask and unmasked_ids: for records that hold no masks."""

    sequence_length: int
    pad_id: int
    microbatch_tokens: int
    hidden_size: int = 256  # of the model: tells what attention costs beside the rest
    buckets: tuple[int, ...] | None = None
    use_pairs: bool = True  # False leaves the next-sentence labels out (disable_nsp)
    mask: MaskRule | None = None
    unmasked_ids: tuple[int, ...] = ()  # [CLS], [SEP], [PAD], [MASK]: never predicted
    loss_per_example: bool = False  # task.loss_per
    loss_weight: float = 1.0  # task.loss_weight


class _Rows(NamedTuple):
    """The examples of a batch, one a row; S slots each, of which the first lengths[b] are looked at."""

    input_ids: np.ndarray  # (B, S), masked
    seen: np.ndarray  # (B, S) bool: slots that attention looks at
    token_type_ids: np.ndarray  # (B, S)
    targets: np.ndarray  # (B, S) or (B, P) bool: which of the next two are targets
    target_positions: np.ndarray  # in the row
    target_ids: np.ndarray
    pair_labels: np.ndarray  # (B,), NO_LABEL = none


def batch_of_records(arrays: Mapping[str, np.ndarray], keys: np.ndarray, rule: RecordBatchRule) -> Batch:
    """One optimizer batch of B records.

    arrays: the columns of a `layouts.Layout`; keys: uint64 (B,), what the masks of token records depend on."""
    return _batch_in_order(arrays, keys, rule)[0]


def _batch_in_order(
    arrays: Mapping[str, np.ndarray], keys: np.ndarray, rule: RecordBatchRule
) -> tuple[Batch, np.ndarray]:
    """The batch, and which of the B records each of its rows holds (B,), microbatch after microbatch."""
    if "labels" in arrays:
        rows = _causal_rows(arrays)
    elif "starts_word" in arrays:
        rows = _newly_masked_rows(arrays, keys, rule)
    else:
        rows = _masked_rows(arrays)
    if not rule.use_pairs:
        rows = rows._replace(pair_labels=np.full(len(rows.input_ids), NO_LABEL))
    lengths = _lengths(rows)
    order = np.argsort(lengths, kind="stable")
    bounds, _ = split_rows(lengths[order], rule)
    target_ids = rows.target_ids[rows.targets]
    batch = Batch(
        [_microbatch(rows, order[start:stop], int(lengths[order[stop - 1]]), rule) for start, stop in bounds],
        num_examples=len(order),
        num_targets=len(target_ids),
        num_pairs=int((rows.pair_labels != NO_LABEL).sum()),
        sum_squared_lengths=int((lengths**2).sum()),
        digest=zlib.crc32(target_ids.tobytes(), zlib.crc32(rows.input_ids[rows.seen].tobytes())),
        loss_per_example=rule.loss_per_example,
        loss_weight=rule.loss_weight,
    )
    return batch, order


def _lengths(rows: _Rows) -> np.ndarray:
    """The slots of each row (B,) up to the last one that is seen or predicted, at least 1."""
    last_seen = _last(rows.seen)
    last_target = np.where(rows.targets, rows.target_positions + 1, 0).max(1)
    return np.maximum(np.maximum(last_seen, last_target), 1)


def _last(flags: np.ndarray) -> np.ndarray:
    """How many slots of each row (B, S) end with its last true one, (B,); 0 when none is."""
    return np.where(flags.any(1), flags.shape[1] - np.argmax(flags[:, ::-1], 1), 0)


def _pair_labels(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    labels = arrays.get("next_sentence_labels")
    return labels[:, 0] if labels is not None else np.full(len(arrays["input_ids"]), NO_LABEL)


def _masked_rows(arrays: Mapping[str, np.ndarray]) -> _Rows:
    """Static masks, as the files have them: a weight of 0 is padding."""
    ids = arrays["input_ids"]
    return _Rows(
        input_ids=ids,
        seen=arrays["input_mask"] != 0,
        token_type_ids=arrays.get("segment_ids", np.zeros_like(ids)),
        targets=arrays["masked_lm_weights"] != 0,
        target_positions=arrays["masked_lm_positions"],
        target_ids=arrays["masked_lm_ids"],
        pair_labels=_pair_labels(arrays),
    )


def _newly_masked_rows(arrays: Mapping[str, np.ndarray], keys: np.ndarray, rule: RecordBatchRule) -> _Rows:
    """Token records: masks are drawn here, and depend on a record's key only."""
    assert rule.mask is not None, "token records need a MaskRule"
    ids, seen = arrays["input_ids"], arrays["input_mask"] != 0
    flat = ids[seen]
    example = np.nonzero(seen)[0]
    may_mask = ~np.isin(flat, rule.unmasked_ids)
    drawn = mask(flat, example, may_mask, arrays["starts_word"][seen] != 0, keys, rule.mask)
    masked = ids.copy()
    masked[seen] = drawn.input_ids
    targets = np.zeros(len(flat), bool)
    targets[drawn.positions] = True
    is_target = np.zeros_like(seen)
    is_target[seen] = targets
    return _Rows(
        input_ids=masked,
        seen=seen,
        token_type_ids=arrays.get("segment_ids", np.zeros_like(ids)),
        targets=is_target,
        target_positions=np.broadcast_to(np.arange(ids.shape[1]), ids.shape),
        target_ids=ids,
        pair_labels=_pair_labels(arrays),
    )


def _causal_rows(arrays: Mapping[str, np.ndarray]) -> _Rows:
    """input_mask says which labels count, not what is seen: every slot up to the last of them is. Later ones can't matter."""
    ids, targets = arrays["input_ids"], arrays["input_mask"] != 0
    slots = np.arange(ids.shape[1])
    return _Rows(
        input_ids=ids,
        seen=slots < np.maximum(_last(targets), 1)[:, None],
        token_type_ids=np.zeros_like(ids),
        targets=targets,
        target_positions=np.broadcast_to(slots, ids.shape),
        target_ids=arrays["labels"],
        pair_labels=np.full(len(ids), NO_LABEL),
    )


def _microbatch(rows: _Rows, chosen: np.ndarray, longest: int, rule: RecordBatchRule) -> Microbatch:
    length = padded_length(longest, rule)
    seen = rows.seen[chosen, :length]
    targets = rows.targets[chosen]
    first_slots = np.arange(len(chosen)) * length
    labels = rows.pair_labels[chosen]
    return Microbatch(
        input_ids=np.where(seen, rows.input_ids[chosen, :length], rule.pad_id),
        token_type_ids=np.where(seen, rows.token_type_ids[chosen, :length], 0),
        position_ids=np.tile(np.arange(length), (len(chosen), 1)),
        example_ids=seen.astype(np.int32),
        target_positions=(rows.target_positions[chosen] + first_slots[:, None])[targets],
        target_ids=rows.target_ids[chosen][targets],
        first_positions=first_slots,
        labels=labels[labels != NO_LABEL],
        packed=False,
    )


def batches_from(
    records: RecordSet,
    rule: RecordBatchRule,
    *,
    batch_size: int,
    cursor: Cursor,
    num_batches: int,
    seed: int,
    phase: str,
    shuffle: bool = True,
    worker: int = 0,
    num_workers: int = 1,
) -> Iterator[tuple[Batch, Cursor]]:
    """The batches that this worker makes of the `num_batches` from the cursor on, each with the cursor after it.

    The order is endless: batch k is the places [k B, (k + 1) B) of it, epoch after epoch, and worker k mod num_workers
    makes it. Place p of epoch e is the same record with the same masks for any number of workers. Raises InputError."""
    size, mine = len(records), range(worker, num_batches, num_workers)
    group = max(1, READ_SLOTS // (batch_size * records.columns[SEQUENCE_COLUMN].length))
    for first in range(0, len(mine), group):
        chosen = mine[first : first + group]
        starts = cursor.offset + batch_size * np.array(chosen)
        places = (starts[:, None] + np.arange(batch_size)).ravel()
        numbers, keys = np.empty(len(places), np.int64), np.empty(len(places), np.uint64)
        for epoch in np.unique(places // size).tolist():
            now = places // size == epoch
            which = {"seed": seed, "phase": phase, "epoch": cursor.epoch + epoch}
            numbers[now] = record_numbers(places[now] % size, size, shuffle=shuffle, **which)
            keys[now] = record_keys(places[now] % size, **which)
        arrays = records.read(numbers)
        for k, start in enumerate(starts.tolist()):
            rows = slice(k * batch_size, (k + 1) * batch_size)
            batch = batch_of_records({name: values[rows] for name, values in arrays.items()}, keys[rows], rule)
            after = start + batch_size
            yield batch, Cursor(cursor.epoch + after // size, 0, after % size)


def every_batch(records: RecordSet, rule: RecordBatchRule, batch_size: int) -> Iterator[Batch]:
    """One pass in file order, the last batch as large as what is left. For evaluation."""
    return (batch for batch, _ in numbered_batches(records, rule, batch_size, len(records)))


def numbered_batches(
    records: RecordSet, rule: RecordBatchRule, batch_size: int, count: int
) -> Iterator[tuple[Batch, np.ndarray]]:
    """The batches of `every_batch` of the first `count` records, each with the numbers of its rows (B,), microbatch after
    microbatch."""
    for start in range(0, count, batch_size):
        numbers = np.arange(start, min(start + batch_size, count))
        keys = record_keys(numbers, seed=0, phase="eval", epoch=0)
        batch, order = _batch_in_order(records.read(numbers), keys, rule)
        yield batch, numbers[order]
