"""The sets of columns that the Model Zoo's records have, and the arrays they become.

B records, S = max_sequence_length, P = max_predictions_per_seq. All int64 but the weights, which are float32:

    static pairs    input_ids, input_mask, segment_ids (B, S); masked_lm_positions, masked_lm_ids, masked_lm_weights (B, P);
                    next_sentence_labels (B, 1): create_tfrecords.py, create_csv_static_masking.py, Google's
                    create_pretraining_data.py
    static MLM      the same without segment_ids and next_sentence_labels: create_tfrecords_mlm_only.py,
                    create_csv_mlm_only_static_masking.py
    causal          input_ids, input_mask, labels (B, S): GPT TFRecords and HDF5
    token pairs     input_ids, input_mask, segment_ids, starts_word (B, S); next_sentence_labels, unknown_tokens (B, 1):
                    create_csv.py; not masked yet
    token MLM       the same without segment_ids and next_sentence_labels: create_csv_mlm_only.py,
                    create_tfrecords_mlm_only.py --disable_masking

input_mask: 1 = token, 0 = padding (causal: 1 = its label counts in the loss). next_sentence_labels: 1 = a random next text,
0 = the true one. masked_lm_weights: 1.0 = predicted, 0.0 = padding. starts_word: 1 = no `##` piece. These are the meanings
of the files; readers of the Model Zoo turn some of them round.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.errors import InputError
from headrace.modelzoo.records.decode import Column

SEQUENCE_COLUMN, PREDICTION_COLUMN = "input_ids", "masked_lm_ids"  # whose lengths are S and P


@dataclass(frozen=True)
class Layout:
    """One of the sets above."""

    name: str
    columns: tuple[str, ...]
    is_tokens: bool = False  # holds token strings: a vocabulary turns them into ids, masks are drawn at load


_MLM = ("input_ids", "input_mask", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
STATIC_PAIRS = Layout("masked sentence pairs", (*_MLM, "segment_ids", "next_sentence_labels"))
STATIC_MLM = Layout("MLM-only", _MLM)
CAUSAL = Layout("GPT", ("input_ids", "input_mask", "labels"))
TOKEN_PAIRS = Layout(
    "tokens of sentence pairs",
    ("input_ids", "input_mask", "segment_ids", "starts_word", "next_sentence_labels", "unknown_tokens"),
    is_tokens=True,
)
TOKEN_MLM = Layout("MLM-only tokens", ("input_ids", "input_mask", "starts_word", "unknown_tokens"), is_tokens=True)


def layout_of(names: Collection[str]) -> Layout | None:
    """The layout with the most columns that features of these names make up, or None."""
    return next((layout for layout in (STATIC_PAIRS, STATIC_MLM, CAUSAL) if set(layout.columns) <= set(names)), None)


def check_layout(where: str, found: Layout | None, names: Collection[str], wanted: Layout | None) -> Layout:
    """The layout to read records of these feature names as; raises InputError when they are not what is wanted."""
    if wanted is not None and not wanted.is_tokens and set(wanted.columns) <= set(names):
        return wanted
    if wanted is None and found is not None:
        return found
    if wanted is not None and found is not None and found.is_tokens and set(wanted.columns) <= set(found.columns):
        return wanted
    if wanted is None:
        raise InputError(
            f"{where}: has the columns {_listed(names)}; allowed are {'; or '.join(map(_listed, _ALLOWED))}; make the "
            f"records with create_tfrecords.py or one of its relatives"
        )
    missing = [name for name in wanted.columns if name not in names]
    what = f"these are {found.name} records ({_listed(names)})" if found else f"it has {_listed(names)}"
    raise InputError(
        f"{where}: lacks {_listed(missing) or 'token strings'} for {wanted.name} records; {what}; choose the data processor "
        f"that reads them, or name the right data_dir"
    )


_ALLOWED = (
    STATIC_PAIRS.columns,
    STATIC_MLM.columns,
    CAUSAL.columns,
    ("tokens", "segment_ids", "is_random_next"),
    ("tokens",),
)


def _listed(names: Collection[str]) -> str:
    return ", ".join(sorted(names))


def columns_of(layout: Layout, lengths: Mapping[str, int]) -> dict[str, Column]:
    """The columns of a layout with the lengths given by name."""
    return {
        name: Column(np.float32 if name == "masked_lm_weights" else np.int64, lengths[name]) for name in layout.columns
    }


def check_lengths(path: Path, columns: Mapping[str, Column], sequence: int | None, predictions: int | None) -> None:
    """Compare the lengths of a file's records with max_sequence_length and max_predictions_per_seq; raises InputError
    naming both numbers of each. None = not asked for."""
    wrong = []
    for key, asked, column in (
        ("max_sequence_length", sequence, SEQUENCE_COLUMN),
        ("max_predictions_per_seq", predictions, PREDICTION_COLUMN),
    ):
        if asked is not None and column in columns and (length := columns[column].length) != asked:
            wrong.append((key, length, asked))
    if wrong:
        has = " and ".join(f"{key} {length} against {asked} in the params" for key, length, asked in wrong)
        remedy = ", ".join(f"{key}: {length}" for key, length, _ in wrong)
        raise InputError(f"{path}: its records were made with {has}; set {remedy}, or make the records anew")


def check_same(path: Path, columns: Mapping[str, Column], first: Path, firsts: Mapping[str, Column]) -> None:
    """All files of a set have records of one shape; raises InputError naming the one that differs."""
    for name, column in columns.items():
        if column.length != firsts[name].length:
            raise InputError(
                f"{path}: {name} has {column.length} values a record, and {firsts[name].length} in {first}; keep records "
                f"of different lengths in folders apart"
            )
