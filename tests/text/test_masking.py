"""Which tokens are masked, and what is put in their place: shares, exclusions, and that only the example's key decides."""

from itertools import pairwise

import numpy as np
import pytest

from headrace.text.batches import BatchRule, example_rows, make_batch
from headrace.text.examples import Cursor, ExampleRule, every_example, examples_from
from headrace.text.masking import MaskRule, mask
from headrace.text.random import bits, key, uniform

PAD, UNK, CLS, SEP, MASK = range(5)
NORMAL = np.arange(5, 1000)
RULE = MaskRule(0.15, 20, False, MASK, UNK, NORMAL)


def made_batch(lengths, seed=0, unknown_rate=0.02):
    """(ids, example, may_mask) of examples [CLS] ... [SEP] of these lengths."""
    draw = np.random.default_rng(seed)
    ids, example = [], []
    for e, length in enumerate(lengths):
        inner = draw.integers(5, 1000, length - 2)
        inner[draw.random(length - 2) < unknown_rate] = UNK
        ids += [CLS, *inner, SEP]
        example += [e] * length
    ids = np.array(ids)
    return ids, np.array(example), (ids != CLS) & (ids != SEP)


def masked(lengths, keys=None, rule=RULE, seed=0, starts=None):
    ids, example, may_mask = made_batch(lengths, seed)
    keys = np.array([key("test", e) for e in range(len(lengths))] if keys is None else keys, np.uint64)
    starts = np.ones(len(ids), bool) if starts is None else starts
    return ids, example, mask(ids, example, may_mask, starts, keys, rule)


def test_15_percent_of_the_tokens_of_which_80_10_10():
    ids, _, out = masked([128] * 2000)
    maskable = np.isin(ids, NORMAL).sum()
    assert len(out.positions) / maskable == pytest.approx(0.15, abs=0.002)
    seen = out.input_ids[out.positions]
    as_mask, kept = seen == MASK, seen == out.target_ids
    n = len(seen)  # about 37,000: 4 standard errors are 0.008 and 0.006
    assert as_mask.sum() / n == pytest.approx(0.8, abs=0.008)
    assert kept.sum() / n == pytest.approx(0.1, abs=0.006)
    assert (~as_mask & ~kept).sum() / n == pytest.approx(0.1, abs=0.006)


def test_random_tokens_are_normal_ones_and_all_of_them():
    rule = MaskRule(0.15, 20, False, MASK, UNK, NORMAL[:40])
    _, _, out = masked([128] * 1000, rule=rule)
    seen = out.input_ids[out.positions]
    random = seen[(seen != MASK) & (seen != out.target_ids)]
    counts = np.bincount(random, minlength=45)
    assert (counts[:5] == 0).all() and len(counts) == 45
    expected = len(random) / 40
    assert ((counts[5:] - expected) ** 2 / expected).sum() < 80  # chi squared, 39 degrees of freedom: p = 1e-4


@pytest.mark.parametrize(
    "whole_words, positions, seen",
    [
        (False, [7, 8, 11, 12, 14, 16, 23, 24, 32, 35, 36, 40], [4, 107, 4, 4, 4, 4, 17, 4, 131, 4, 93, 4]),
        (True, [9, 10, 11, 12, 13, 14, 24, 25, 26, 36, 37, 38], [4, 4, 4, 4, 4, 4, 4, 4, 4, 93, 4, 4]),
    ],
)
def test_masks_are_pinned(whole_words, positions, seen):
    """A change of these lists changes every run: it needs a reason, and a line in the change log."""
    ids = np.concatenate([[CLS], np.arange(100, 140), [SEP]])
    rule = MaskRule(0.3, 20, whole_words, MASK, UNK, NORMAL)
    starts = np.arange(len(ids)) % 3 == 0
    out = mask(ids, np.zeros(len(ids), int), ids >= 5, starts, np.array([key("pinned")], np.uint64), rule)
    assert out.positions.tolist() == positions
    assert out.input_ids[out.positions].tolist() == seen


def test_special_and_unknown_tokens_are_never_predicted_and_nothing_else_changes():
    ids, _, out = masked([10, 30, 128, 9] * 200)
    assert np.isin(out.target_ids, NORMAL).all()
    assert (out.target_ids == ids[out.positions]).all()
    assert (np.diff(out.positions) > 0).all()
    untouched = np.ones(len(ids), bool)
    untouched[out.positions] = False
    assert (out.input_ids[untouched] == ids[untouched]).all()


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("most", [1, 3, 20])
def test_at_least_one_prediction_and_at_most_max_predictions(whole_words, most):
    rule = MaskRule(0.15, most, whole_words, MASK, UNK, NORMAL)
    lengths = [3, 4, 5, 8, 20, 40, 128, 512] * 20
    ids, example, out = masked(lengths, rule=rule)
    per_example = np.bincount(example[out.positions], minlength=len(lengths))
    maskable = np.bincount(example[np.isin(ids, NORMAL)], minlength=len(lengths))
    wanted = np.clip(np.rint(0.15 * maskable), 1, most)
    assert (per_example == np.where(maskable > 0, wanted, 0)).all()
    assert per_example.max() == most
    assert per_example[maskable > 0].min() == 1


def test_an_example_without_a_maskable_token_has_no_prediction():
    ids = np.array([CLS, UNK, SEP, CLS, 7, SEP, CLS, SEP])
    example = np.array([0, 0, 0, 1, 1, 1, 2, 2])
    for whole_words in (False, True):
        rule = MaskRule(0.15, 20, whole_words, MASK, UNK, NORMAL)
        out = mask(ids, example, (ids != CLS) & (ids != SEP), np.ones(8, bool), np.arange(3, dtype=np.uint64), rule)
        assert out.positions.tolist() == [4]


@pytest.mark.parametrize("whole_words", [False, True])
def test_a_mask_depends_on_the_example_and_its_key_alone(whole_words):
    rule = MaskRule(0.15, 20, whole_words, MASK, UNK, NORMAL)
    draw = np.random.default_rng(1)
    examples = []
    for e in range(30):
        ids, _, may_mask = made_batch([int(draw.integers(3, 90))], seed=e)
        examples.append((ids, may_mask, draw.random(len(ids)) < 0.5, key("k", e)))

    def run(chosen):
        ids, may_mask, starts = (np.concatenate([examples[e][i] for e in chosen]) for i in range(3))
        example = np.repeat(np.arange(len(chosen)), [len(examples[e][0]) for e in chosen])
        out = mask(ids, example, may_mask, starts, np.array([examples[e][3] for e in chosen], np.uint64), rule)
        return {e: out.input_ids[example == i].tolist() for i, e in enumerate(chosen)}

    together = run(range(30))
    assert together == run([*range(29, -1, -1)])
    for e in range(30):
        assert run([e])[e] == together[e]
        assert run([(e + 7) % 30, e])[e] == together[e]


def test_other_keys_give_other_masks():
    _, _, first = masked([64] * 50, keys=range(50))
    _, _, again = masked([64] * 50, keys=range(50))
    _, _, other = masked([64] * 50, keys=range(50, 100))
    assert (first.input_ids == again.input_ids).all()
    shared = len(np.intersect1d(first.positions, other.positions)) / len(first.positions)
    assert shared == pytest.approx(0.15, abs=0.06)  # as often as chance has it
    # Neighbouring keys, which neighbouring examples have, are as unrelated as any.
    ids, example, may_mask = made_batch([64], seed=0)
    chosen = [set(mask(ids, example, may_mask, may_mask, np.array([k], np.uint64), RULE).positions) for k in range(200)]
    overlap = np.mean([len(a & b) / len(a) for a, b in pairwise(chosen)])
    assert overlap == pytest.approx(0.15, abs=0.03)


def test_every_place_of_an_example_is_chosen_equally_often():
    ids, example, may_mask = made_batch([42] * 4000, unknown_rate=0)
    out = mask(ids, example, may_mask, may_mask, np.array([key(e) for e in range(4000)], np.uint64), RULE)
    counts = np.bincount(out.positions % 42, minlength=42)[1:-1]
    expected = len(out.positions) / 40
    assert ((counts - expected) ** 2 / expected).sum() < 80


def test_whole_words_are_masked_whole_within_a_budget_of_pieces():
    rule = MaskRule(0.15, 20, True, MASK, UNK, NORMAL)
    draw = np.random.default_rng(3)
    lengths = [int(draw.integers(20, 120)) for _ in range(300)]
    ids, example, may_mask = made_batch(lengths, seed=3)
    starts = draw.random(len(ids)) < 0.4
    out = mask(ids, example, may_mask, starts, np.array([key(e) for e in range(300)], np.uint64), rule)
    chosen = np.zeros(len(ids), bool)
    chosen[out.positions] = True
    predicted = total = 0
    for e in range(300):
        inside = np.flatnonzero((example == e) & may_mask)
        words, previous = [], -2
        for t in inside[ids[inside] != UNK]:
            if starts[t] or t != previous + 1:
                words.append([])
            words[-1].append(t)
            previous = t
        whole = [w for w in words if chosen[w].any()]
        assert all(chosen[w].all() for w in whole)
        pieces = sum(map(len, words))
        budget = min(max(round(0.15 * pieces), 1), 20)
        taken = sum(map(len, whole))
        if taken > budget:  # no word fits: the shortest one alone
            assert len(whole) == 1 and len(whole[0]) == min(map(len, words)) == taken
        else:
            left_out = [len(w) for w in words if not chosen[w].any()]
            assert not left_out or budget - taken < min(left_out), "a word more would have fitted"
        predicted, total = predicted + taken, total + pieces
    assert predicted / total == pytest.approx(0.15, abs=0.01)


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece_mecab", "wordpiece", "character", "byte"])
def test_whole_words_of_every_vocabulary_kind(prepared, kind):
    """From tokens on disk to masked rows: the masked pieces of an example are exactly whole words by the marks on disk."""
    made = prepared(kind, whole_words=True)
    vocabulary, shards = made.vocabulary, made.tokens.shards("train")
    rule = BatchRule(
        512,
        vocabulary.cls_id,
        vocabulary.sep_id,
        vocabulary.pad_id,
        MaskRule(0.15, 77, True, vocabulary.mask_id, vocabulary.unk_id, vocabulary.normal_ids),
        1 << 20,
        packing=False,
        buckets=None,
    )
    spans, keys = zip(*every_example(shards, ExampleRule("sentences", 512, 0.0, 1, "x")), strict=True)
    spans, keys = spans[:200], keys[:200]
    multi_piece_words = predicted = total = 0
    for span, example_key in zip(spans, keys, strict=True):
        [microbatch] = make_batch(shards, [span], [example_key], rule).microbatches
        ids = shards[span[0]].tokens[span[1] : span[2]].astype(np.int64)
        word = np.cumsum(shards[span[0]].starts_word(span[1], span[2]))
        # [UNK] is never predicted and ends a word.
        word = word * 1000 + np.cumsum(ids == vocabulary.unk_id)
        chosen = np.zeros(len(ids), bool)
        chosen[microbatch.target_positions - 1] = True
        maskable = ids != vocabulary.unk_id
        touched = np.isin(word, word[chosen]) & maskable
        assert (touched == chosen).all()
        multi_piece_words += sum((word[chosen] == w).sum() > 1 for w in set(word[chosen]))
        predicted, total = predicted + chosen.sum(), total + maskable.sum()
    assert multi_piece_words > 20
    assert predicted / total == pytest.approx(0.15, abs=0.015)


def test_masks_of_another_epoch_differ(prepared):
    made = prepared()
    shards, vocabulary = made.tokens.shards("train"), made.vocabulary
    example_rule = ExampleRule("sentences", 64, 0.0, 1, "phase-0")
    mask_rule = MaskRule(0.15, 20, False, vocabulary.mask_id, vocabulary.unk_id, vocabulary.normal_ids)
    rule = BatchRule(64, vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id, mask_rule, 4096, False, None)

    def epoch(number):
        rows = {}
        for span, example_key, cursor in examples_from(shards, example_rule, Cursor(number)):
            if cursor.epoch > number:
                return rows
            batch = make_batch(shards, [span], [example_key], rule)
            rows[tuple(span.tolist())] = next(example_rows(batch))[0].tolist()
            if len(rows) == 1200:
                return rows

    first, second = epoch(0), epoch(1)
    both = first.keys() & second.keys()
    long = [span for span in both if span[2] - span[1] >= 20]
    assert len(long) > 300
    assert np.mean([first[span] != second[span] for span in long]) > 0.97
    assert first == epoch(0)


def test_draws_are_uniform_and_independent_of_order():
    counters = np.arange(100_000)
    draws = uniform(key("a"), counters)
    assert draws.min() >= 0.0 and draws.max() < 1.0
    assert np.histogram(draws, 20, (0, 1))[0] == pytest.approx(5000, abs=300)
    assert np.corrcoef(draws[:-1], draws[1:])[0, 1] == pytest.approx(0, abs=0.02)
    assert (uniform(key("a"), counters[::-1]) == draws[::-1]).all()
    assert len({key("a", 1), key("a", 2), key("a", "1"), key("b", 1), key("a"), key("a", 1, 1)}) == 6
    assert bits(0, np.arange(3)).tolist() == [
        16294208416658607535,
        7960286522194355700,
        487617019471545679,
    ]  # SplitMix64
