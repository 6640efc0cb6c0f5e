"""Dynamic masking: which tokens of each example are predicted, and what the model sees in their place.

Pure functions of the example's key: the same example at the same place of the same epoch always gets the same mask.
Of the chosen tokens 80 % become [MASK], 10 % a random normal token, 10 % stay (Devlin et al. 2018, section 3.1).

Overlapping k-mers (span = k): a base lies in k of them, so single masked tokens could be read off their neighbours. Masked
are runs of k neighbours (DNABERT, Ji et al. 2021), which hide the one base that all k of them share, and all of a run
becomes [MASK], or random tokens, or stays:
    k = 3   bases A C G T A C    k-mers ACG CGT GTA TAC    run CGT GTA TAC is masked: T is in no k-mer that is seen
At the ends of an example a base lies in fewer k-mers; runs are whole there too, and hide more than one.
"""

from dataclasses import dataclass

import numpy as np

from headrace.text.random import bits, uniform

_CHOOSE, _REPLACE, _RANDOM_TOKEN = (np.uint64(channel << 32) for channel in (1, 2, 3))


@dataclass(frozen=True)
class MaskRule:
    """How tokens are chosen. normal_ids: ids that may stand in as a random token (no special, unused or control id)."""

    mask_rate: float
    max_predictions: int
    whole_words: bool
    mask_id: int
    unk_id: int
    normal_ids: np.ndarray  # (K,)
    span: int = 1
    """Neighbours that are masked together: k for overlapping k-mers; then not with whole_words."""


@dataclass(frozen=True)
class Masked:
    input_ids: np.ndarray  # (N,) what the model sees
    positions: np.ndarray  # (M,) flat positions that are predicted, rising
    target_ids: np.ndarray  # (M,) the true tokens there


def mask(
    ids: np.ndarray,
    example: np.ndarray,
    may_mask: np.ndarray,
    starts_word: np.ndarray,
    keys: np.ndarray,
    rule: MaskRule,
) -> Masked:
    """Mask a batch of examples laid end to end.

    ids: (N,) token ids; example: (N,) number of the example each belongs to, rising; may_mask: (N,) bool, False for
    special tokens; starts_word: (N,) bool (whole words only); keys: (E,) uint64, one an example.
    An example with a maskable token has at least one prediction; [UNK] is never predicted.
    """
    candidate = np.flatnonzero(may_mask & (ids != rule.unk_id))  # (C,)
    of = example[candidate]
    num_candidates = np.bincount(of, minlength=len(keys))  # (E,)
    wanted = np.clip(np.rint(num_candidates * rule.mask_rate).astype(np.int64), 1, rule.max_predictions)
    # Each candidate's place inside its example is its random counter, so batch composition doesn't matter.
    place = np.arange(len(candidate)) - (np.cumsum(num_candidates) - num_candidates)[of]
    if rule.span > 1:
        return _mask_spans(ids, candidate, of, place, keys, wanted, rule)
    if rule.whole_words:
        chosen = _choose_words(candidate, of, place, starts_word, keys, wanted)
    else:
        score = bits(keys[of], _CHOOSE + place.astype(np.uint64))
        order = np.lexsort((score, of))  # by example, then by score; examples stay contiguous, so `place` is the rank
        chosen = np.sort(candidate[order[place < wanted[of]]])

    place_of = np.zeros(len(ids), np.uint64)
    place_of[candidate] = place
    chosen_keys, chosen_places = keys[example[chosen]], place_of[chosen]
    draw = uniform(chosen_keys, _REPLACE + chosen_places)
    random_token = rule.normal_ids[bits(chosen_keys, _RANDOM_TOKEN + chosen_places) % np.uint64(len(rule.normal_ids))]
    target_ids = ids[chosen]
    seen = ids.copy()
    seen[chosen] = np.where(draw < 0.8, rule.mask_id, np.where(draw < 0.9, random_token, target_ids))
    return Masked(seen, chosen, target_ids)


def _mask_spans(
    ids: np.ndarray,
    candidate: np.ndarray,
    of: np.ndarray,
    place: np.ndarray,
    keys: np.ndarray,
    wanted: np.ndarray,
    rule: MaskRule,
) -> Masked:
    """Runs of rule.span neighbours, in random order while they fit the budget of predicted tokens; at least one where there
    is one. Runs of one example do not touch, so that each keeps its own fate, and [UNK] is in none."""
    can_begin = np.zeros(len(candidate), bool)
    last = len(candidate) - rule.span + 1
    if last > 0:
        stop = candidate[rule.span - 1 :]
        can_begin[:last] = (stop - candidate[:last] == rule.span - 1) & (of[rule.span - 1 :] == of[:last])
    begins = np.flatnonzero(can_begin)  # (B,) places among the candidates
    order = np.lexsort((bits(keys[of[begins]], _CHOOSE + place[begins].astype(np.uint64)), of[begins]))
    bounds = np.searchsorted(of[begins][order], np.arange(len(keys) + 1))
    runs: list[int] = []
    for e in range(len(keys)):
        taken: list[int] = []
        most = max(int(wanted[e]) // rule.span, 1)
        for begin in begins[order[bounds[e] : bounds[e + 1]]].tolist():
            if len(taken) == most:
                break
            if all(abs(begin - other) > rule.span for other in taken):
                taken.append(begin)
        runs += sorted(taken)
    first = np.array(runs, np.int64)
    within = np.arange(rule.span)
    chosen = (candidate[first][:, None] + within).reshape(-1)  # (M,)
    run_keys = np.repeat(keys[of[first]], rule.span)
    draw = uniform(run_keys, _REPLACE + np.repeat(place[first], rule.span).astype(np.uint64))
    places = (place[first][:, None] + within).reshape(-1).astype(np.uint64)
    random_token = rule.normal_ids[bits(run_keys, _RANDOM_TOKEN + places) % np.uint64(len(rule.normal_ids))]
    target_ids = ids[chosen]
    seen = ids.copy()
    seen[chosen] = np.where(draw < 0.8, rule.mask_id, np.where(draw < 0.9, random_token, target_ids))
    return Masked(seen, chosen, target_ids)


def _choose_words(
    candidate: np.ndarray,
    of: np.ndarray,
    place: np.ndarray,
    starts_word: np.ndarray,
    keys: np.ndarray,
    wanted: np.ndarray,
) -> np.ndarray:
    """Whole words in random order while they fit the budget of predicted tokens; a word that doesn't fit is passed over.

    When no word fits, the shortest one is taken: an example is never without a target.
    """
    # A word also ends where a token may not be masked, so gaps between candidates start a new one.
    starts = starts_word[candidate] | (place == 0) | np.concatenate([[True], np.diff(candidate) > 1])
    word = np.cumsum(starts) - 1  # (C,) which word each candidate belongs to
    first = np.flatnonzero(starts)  # (W,)
    length = np.diff(np.append(first, len(candidate)))  # (W,)
    word_example = of[first]
    score = bits(keys[word_example], _CHOOSE + place[first].astype(np.uint64))
    taken = np.zeros(len(first), bool)
    order = np.lexsort((score, word_example))
    bounds = np.searchsorted(word_example[order], np.arange(len(keys) + 1))
    lengths = length.tolist()
    for e in range(len(keys)):
        words = order[bounds[e] : bounds[e + 1]].tolist()
        left = budget = int(wanted[e])
        for w in words:
            if lengths[w] <= left:
                taken[w] = True
                left -= lengths[w]
        if words and left == budget:
            taken[min(words, key=lambda w: lengths[w])] = True
    return candidate[taken[word]]
