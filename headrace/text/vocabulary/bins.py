"""Bins of numbers: each entry is a range of values and is written as the number in its middle, `nan` stands for a missing one.

    sample of values -> edges, centres -> "0.31 nan 97.2" -> ids -> "0.308 nan 12.5"      (beyond the ends: the last bin)
    ids: 5 special tokens, nan, then bins from the least on

Whoever opens the folder with `AutoTokenizer` gets the same ids for numbers written as bins are; ours reads any number.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

from headrace.errors import UserError

MISSING = "nan"
MISSING_ID = 5
FIRST_BIN_ID = 6


def values_of(text: str) -> np.ndarray:
    """The numbers of a text of words, float64 (N,)."""
    try:
        return np.array(text.split(), np.float64)
    except ValueError as error:
        raise UserError(
            f"a vocabulary of bins reads numbers, and {text[:40]!r} holds something else ({error})"
        ) from None


def learn_bins(lines: Iterable[str], size: int, binning: str) -> dict[str, list[float]]:
    """{"edges": (B - 1,), "centres": (B,)} of at most size - 6 bins; fewer where values repeat. Raises UserError."""
    num_bins = size - FIRST_BIN_ID
    if num_bins < 2:
        raise UserError(f"text.vocabulary.size = {size} leaves {num_bins} bins beside the special tokens; raise it")
    values = np.concatenate([values_of(line) for line in lines])
    values = np.sort(values[~np.isnan(values)])
    if not len(values):
        raise UserError("the series hold no value to make bins of")
    if values[0] == values[-1]:
        return {"edges": [], "centres": [float(values[0])]}
    if binning == "uniform":
        ends = np.linspace(values[0], values[-1], num_bins + 1)
        return {"edges": _distinct(ends[1:-1]), "centres": _distinct((ends[1:] + ends[:-1]) / 2)}
    edges = np.unique(np.quantile(values, np.linspace(0, 1, num_bins + 1)[1:-1]))
    parts = np.split(values, np.searchsorted(values, edges, "left"))
    held = [i for i, part in enumerate(parts) if len(part)]
    # A bin without a value of the sample (below an edge that is the least value itself) joins the next.
    edges = [float(edges[i]) for i in held[:-1]]
    return {"edges": edges, "centres": [float(parts[i].mean()) for i in held]}


def _distinct(numbers: np.ndarray) -> list[float]:
    return list(dict.fromkeys(numbers.tolist()))


def names_of(centres: list[float]) -> list[str]:
    """How bins are written: with as few digits, four or more, as keep them apart."""
    for digits in range(4, 18):
        names = [f"{centre:.{digits}g}" for centre in centres]
        if len(set(names)) == len(names):
            return names
    raise AssertionError("centres are distinct")


def bins_tokenizer(special_tokens: list[str], bins: dict[str, Any]) -> Tokenizer:
    """The tokenizer without post-processor."""
    entries = {text: i for i, text in enumerate([*special_tokens, MISSING, *names_of(bins["centres"])])}
    tokenizer = Tokenizer(models.WordLevel(entries, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def bin_ids(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The id of each value's bin; a value on an edge belongs to the bin above it."""
    return np.where(np.isnan(values), MISSING_ID, FIRST_BIN_ID + np.searchsorted(edges, values, "right"))
