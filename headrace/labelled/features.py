"""From encoded rows to the arrays a training step reads.

    a labelled row -> Feature: one or more rows of token ids, and what is to be learnt of them
    features of one optimizer batch -> Batch: microbatches of rows of about the same length

A feature is one example, one window of a long context, or one question with all its choices.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from headrace.labelled.spans import Encoded
from headrace.labelled.windows import Window
from headrace.text.batches import Batch, Microbatch, split_rows


def no_targets() -> np.ndarray:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Feature:
    """What the model reads of an example. L = tokens of a row, special tokens included."""

    rows: tuple[np.ndarray, ...]  # token ids (L,) of each row; several are choices, of which one is right
    types: tuple[np.ndarray, ...]  # (L,) of each row: 0 for the first text, 1 for the second
    example: int  # which example it belongs to
    label: int | float | tuple[int, int] | None = None  # of the whole; None: not known
    target_positions: np.ndarray = field(
        default_factory=no_targets
    )  # (M,) places in the first row where a token, or the tag of one, is predicted
    target_ids: np.ndarray = field(default_factory=no_targets)  # (M,)
    encoded: Encoded | None = None  # the text that predictions are places in
    window: Window | None = None  # where its tokens stand in the first row

    @property
    def length(self) -> int:
        return max(len(row) for row in self.rows)


@dataclass(frozen=True)
class FeatureRule:
    """How features become arrays."""

    sequence_length: int
    pad_id: int
    microbatch_tokens: int
    hidden_size: int
    buckets: tuple[int, ...] | None = None
    pad_type: int = 0
    loss_per_example: bool = False  # task.loss_per
    loss_weight: float = 1.0  # task.loss_weight


def by_length(features: Sequence[Feature]) -> list[int]:
    """The order of features in a batch: shortest first."""
    return sorted(range(len(features)), key=lambda k: features[k].length)


def make_batch(features: Sequence[Feature], rule: FeatureRule) -> Batch:
    """One optimizer batch; its features lie in the order of `by_length`, all rows of one together."""
    ordered = [features[k] for k in by_length(features)]
    rows_each = len(ordered[0].rows)
    lengths = np.array([feature.length for feature in ordered])
    at_once = FeatureRule(**{**vars(rule), "microbatch_tokens": max(1, rule.microbatch_tokens // rows_each)})
    bounds, _ = split_rows(lengths, at_once)
    microbatches = [_microbatch(ordered[start:stop], rule) for start, stop in bounds]
    digest = 0
    for feature in features:
        for array in (*feature.rows, feature.target_ids, np.array(feature.label or 0)):
            digest = zlib.crc32(np.ascontiguousarray(array).tobytes(), digest)
    return Batch(
        microbatches,
        num_examples=len(features),
        num_targets=sum(len(feature.target_ids) for feature in features),
        num_pairs=0,
        sum_squared_lengths=sum(len(row) ** 2 for feature in features for row in feature.rows),
        digest=digest,
        loss_per_example=rule.loss_per_example,
        loss_weight=rule.loss_weight,
    )


def _microbatch(features: Sequence[Feature], rule: FeatureRule) -> Microbatch:
    rows = [row for feature in features for row in feature.rows]
    types = [row for feature in features for row in feature.types]
    longest = max(len(row) for row in rows)
    width = next((bucket for bucket in rule.buckets or () if bucket >= longest), longest)
    shape = (len(rows), width)
    input_ids = np.full(shape, rule.pad_id, np.int64)
    token_types = np.full(shape, rule.pad_type, np.int64)
    example_ids = np.zeros(shape, np.int32)
    for r, (ids, kinds) in enumerate(zip(rows, types, strict=True)):
        input_ids[r, : len(ids)], token_types[r, : len(ids)], example_ids[r, : len(ids)] = ids, kinds, 1
    each = len(features[0].rows)
    targets = [feature.target_positions + k * each * width for k, feature in enumerate(features)]
    labels = [feature.label for feature in features]
    return Microbatch(
        input_ids=input_ids,
        token_type_ids=token_types,
        position_ids=np.tile(np.arange(width), (len(rows), 1)),
        example_ids=example_ids,
        target_positions=np.concatenate(targets),
        target_ids=np.concatenate([feature.target_ids for feature in features]),
        first_positions=np.arange(len(rows)) * width,
        labels=np.array([] if labels[0] is None else labels),
        packed=False,
    )
