"""Static masks as the script draws them: which tokens are predicted and what stands in their place.

Of a sequence of n tokens, special ones included, min(P, max(1, round(n * --masked_lm_prob))) are chosen among those
that are not special. 80 % become [MASK]; of the others one half stay and one half become any entry of the
vocabulary, special ones too (create_pretraining_data.py of google-research/bert; Devlin et al. 2018, section 3.1).
"""

from typing import NamedTuple

import numpy as np

from headrace.text.random import bits, uniform

_CHOOSE, _HIDE, _KEEP, _RANDOM = (np.uint64(channel << 32) for channel in (1, 2, 3, 4))
_PLACE_BITS = np.uint64(16)
_NEVER = np.uint64(2**64 - 1)


class Masked(NamedTuple):
    """Of N examples, padded with 0: what the model sees and what it has to find."""

    input_ids: np.ndarray  # (N, L)
    positions: np.ndarray  # (N, P) rising
    ids: np.ndarray  # (N, P)
    count: np.ndarray  # (N,)


def mask(
    ids: np.ndarray,
    lengths: np.ndarray,
    may_mask: np.ndarray,
    starts_word: np.ndarray | None,
    keys: np.ndarray,
    *,
    rate: float,
    max_predictions: int,
    mask_id: int,
    vocabulary_size: int,
) -> Masked:
    """ids: (N, L); lengths: (N,) tokens with special ones; may_mask: (N, L); starts_word: (N, L), None = by tokens;
    keys: (N,) one an example, all its draws come from it."""
    num_examples, length = ids.shape
    wanted = np.clip(np.rint(lengths * rate).astype(np.int64), 1, max_predictions)
    places = np.arange(length, dtype=np.uint64)
    scores = bits(keys[:, None], _CHOOSE + places)
    if starts_word is None:
        columns = min(max_predictions, length)
        scores = np.where(may_mask, scores >> _PLACE_BITS << _PLACE_BITS | places, _NEVER)
        scores.sort(axis=1)
        chosen = scores[:, :columns]
        count = np.minimum(wanted, may_mask.sum(axis=1))
        taken = np.arange(columns) < count[:, None]
        positions = np.where(taken, chosen & np.uint64(0xFFFF), np.uint64(length)).astype(np.int64)
        positions.sort(axis=1)
    else:
        found = [_choose_words(*row) for row in zip(may_mask, starts_word, scores, wanted.tolist(), strict=True)]
        count = np.array([len(each) for each in found], np.int64)
        positions = np.full((num_examples, max_predictions), length, np.int64)
        for row, each in zip(positions, found, strict=True):
            row[: len(each)] = each
    padded = np.zeros((num_examples, max_predictions), np.int64)
    padded[:, : positions.shape[1]] = positions
    taken = np.arange(max_predictions) < count[:, None]
    positions = np.where(taken, padded, 0)
    targets = np.where(taken, np.take_along_axis(ids, positions, axis=1), 0)

    example, slot = np.nonzero(taken)
    at, true = positions[example, slot], targets[example, slot]
    of, place = keys[example], at.astype(np.uint64)
    any_id = (bits(of, _RANDOM + place) % np.uint64(vocabulary_size)).astype(ids.dtype)
    shown = np.where(uniform(of, _KEEP + place) < 0.5, true, any_id)
    seen = ids.copy()
    seen[example, at] = np.where(uniform(of, _HIDE + place) < 0.8, mask_id, shown)
    return Masked(seen, positions, targets, count)


def _choose_words(may_mask: np.ndarray, starts_word: np.ndarray, scores: np.ndarray, wanted: int) -> list[int]:
    """Whole words in random order; one that would exceed `wanted` is passed over, so there may be fewer, even none.

    As in the script, a token that goes on with a word belongs to the last word before it, special tokens between or not."""
    candidates = np.flatnonzero(may_mask).tolist()
    words: list[list[int]] = []
    for place, starts in zip(candidates, starts_word[candidates].tolist(), strict=True):
        if starts or not words:
            words.append([place])
        else:
            words[-1].append(place)
    chosen: list[int] = []
    for word in sorted(words, key=lambda word: scores[word[0]]):
        if len(chosen) + len(word) <= wanted:
            chosen += word
            if len(chosen) >= wanted:
                break
    return sorted(chosen)
