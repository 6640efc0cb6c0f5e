"""Examples: every token once an epoch or dropped and counted, pairs by BERT's rule, and an order that can be resumed."""

from collections import Counter
from itertools import chain, islice

import numpy as np
import pytest

from headrace.errors import UserError
from headrace.text import examples as examples_module
from headrace.text.examples import (
    IS_NEXT,
    IS_RANDOM,
    NO_LABEL,
    Cursor,
    ExampleRule,
    check_enough_documents,
    every_example,
    examples_from,
    plan_window,
    windows_of,
)
from headrace.text.tokens import Shard, ShardBuilder

KINDS = ["sentence_pairs", "documents", "sentences"]


@pytest.fixture
def make_shards(tmp_path):
    """make_shards(documents a shard, ...): documents are lists of sentence lengths, or of token lists."""

    def make(*shards: list[list]) -> list[Shard]:
        made = []
        draw = np.random.default_rng(0)
        for number, documents in enumerate(shards):
            builder = ShardBuilder(1000)
            for d, document in enumerate(documents):
                sentences = [
                    np.array(each) if isinstance(each, list) else draw.integers(5, 1000, each) for each in document
                ]
                hashed = (
                    hash(tuple(map(tuple, document))) % 2**63 if isinstance(document[0], list) else 1000 * number + d
                )
                builder.add_document(sentences, [np.ones(len(s), bool) for s in sentences], hashed)
            info = builder.write(tmp_path / f"{number}.safetensors", tmp_path)
            assert info is not None
            made.append(Shard(tmp_path, info))
        return made

    return make


@pytest.fixture
def many(make_shards):
    """Nine shards of about 10 documents of 1 to 20 sentences of 1 to 60 tokens."""
    draw = np.random.default_rng(4)
    return make_shards(
        *(
            [draw.integers(1, 60, draw.choice([1, 2, 6, 20])).tolist() for _ in range(draw.integers(8, 12))]
            for _ in range(9)
        )
    )


def rule_of(kind, length=64, short=0.1, seed=1, phase="phase-0") -> ExampleRule:
    return ExampleRule(kind, length, short, seed, phase)


def one_epoch(shards, rule, epoch=0):
    """(span as a tuple, key) of an epoch, in order."""
    found = []
    for span, example_key, cursor in examples_from(shards, rule, Cursor(epoch)):
        if cursor.epoch > epoch:
            return found
        found.append((tuple(span.tolist()), example_key))


def uses(shards, spans) -> list[np.ndarray]:
    """How often each token of each shard is in A or in a true B."""
    counts = [np.zeros(shard.info.num_tokens, int) for shard in shards]
    for shard_a, start_a, stop_a, shard_b, start_b, stop_b, label in spans:
        counts[shard_a][start_a:stop_a] += 1
        if label == IS_NEXT:
            counts[shard_b][start_b:stop_b] += 1
    return counts


def document_of(shard: Shard, token: int) -> int:
    sentence = int(np.searchsorted(shard.sentence_ends, token, side="right"))
    return int(np.searchsorted(shard.document_ends, sentence, side="right"))


@pytest.mark.parametrize("small_windows", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [8, 64, 512])
def test_every_token_is_used_once_an_epoch_or_dropped_and_counted(many, kind, length, small_windows, monkeypatch):
    if small_windows:
        monkeypatch.setattr(examples_module, "WINDOW_SENTENCES", 100)
    rule = rule_of(kind, length)
    total = sum(shard.info.num_tokens for shard in many)
    for epoch in range(2):
        windows = windows_of(many, rule, epoch)
        assert (len(windows) > 3) == small_windows
        assert sorted(chain.from_iterable(windows)) == list(range(len(many)))
        plans = [plan_window(many, window, rule, epoch, i) for i, window in enumerate(windows)]
        dropped = sum((plan.dropped_tokens for plan in plans), Counter())
        counts = np.concatenate(uses(many, [span for span, _ in one_epoch(many, rule, epoch)]))
        assert counts.max() == 1
        assert counts.sum() == sum(plan.used_tokens for plan in plans)
        assert counts.sum() + sum(dropped.values()) == total
        if kind != "sentence_pairs":
            assert not +dropped
        else:
            assert (sum(dropped.values()) > 0) == (sum(counts) < total)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [8, 64])
def test_examples_fit_the_sequence_length_and_are_never_empty(many, kind, length):
    rule = rule_of(kind, length)
    for (_, start_a, stop_a, shard_b, start_b, stop_b, label), _ in one_epoch(many, rule):
        size = stop_a - start_a + stop_b - start_b + (3 if kind == "sentence_pairs" else 2)
        assert stop_a > start_a and size <= length
        if kind == "sentence_pairs":
            assert stop_b > start_b and label in (IS_NEXT, IS_RANDOM)
        else:
            assert (shard_b, start_b, stop_b, label) == (0, 0, 0, NO_LABEL)


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_never_crosses_the_end_of_a_document(many, kind):
    for (shard_a, start_a, stop_a, shard_b, start_b, stop_b, label), _ in one_epoch(many, rule_of(kind)):
        assert document_of(many[shard_a], start_a) == document_of(many[shard_a], stop_a - 1)
        if label != NO_LABEL:
            assert document_of(many[shard_b], start_b) == document_of(many[shard_b], stop_b - 1)


def test_sentences_are_each_alone_and_long_ones_cut_into_nearly_equal_pieces(make_shards):
    shards = make_shards([[3, 61, 62, 63, 130], [1]])
    spans = sorted(span[1:3] for span, _ in one_epoch(shards, rule_of("sentences", 64)))
    assert [stop - start for start, stop in spans] == [3, 61, 62, 31, 32, 43, 43, 44, 1]


def test_documents_are_filled_with_whole_sentences(make_shards):
    shards = make_shards([[20, 20, 20, 20, 100], [5]], [[62, 1]])
    spans = [span for span, _ in every_example(shards, rule_of("documents", 64, short=0.0))]
    assert [(s[0], s[1], s[2]) for s in spans] == [
        (0, 0, 60),
        (0, 60, 80),
        (0, 80, 142),
        (0, 142, 180),
        (0, 180, 185),
        (1, 0, 62),
        (1, 62, 63),
    ]


def test_short_examples_come_as_often_as_asked(make_shards):
    shards = make_shards([[1] * 20_000, [1]])
    lengths = np.array([s[2] - s[1] for s, _ in every_example(shards, rule_of("documents", 64, short=0.3))])[:-2]
    assert len(lengths) > 300
    assert (lengths < 62).mean() == pytest.approx(0.3 * 60 / 61, abs=0.08)
    full = np.array([s[2] - s[1] for s, _ in every_example(shards, rule_of("documents", 64, short=0.0))])[:-2]
    assert (full == 62).all()


def test_half_of_the_pairs_are_true_neighbours_in_documents_of_many_sentences(make_shards):
    draw = np.random.default_rng(1)
    shards = make_shards([draw.integers(5, 30, 200).tolist() for _ in range(60)])
    labels = [span[6] for span, _ in one_epoch(shards, rule_of("sentence_pairs", 128))]
    assert len(labels) > 1500
    assert 0.45 < np.mean(np.array(labels) == IS_NEXT) < 0.55


def test_b_follows_a_directly_or_comes_from_a_document_with_another_text(make_shards):
    """Sentences are short against the room, so that nothing is cut off and 'directly' can be seen."""
    draw = np.random.default_rng(2)
    texts = [draw.integers(5, 1000, (draw.choice([2, 5, 9]), 4)).tolist() for _ in range(40)]
    texts += texts[:20] + texts[:20]  # two of three are duplicates of another document
    order = draw.permutation(len(texts))
    shards = make_shards([texts[i] for i in order[:40]], [texts[i] for i in order[40:]])
    labels = Counter()
    for epoch in range(5):
        for (shard_a, start_a, stop_a, shard_b, start_b, _, label), _ in one_epoch(
            shards, rule_of("sentence_pairs", 64), epoch
        ):
            labels[label] += 1
            documents = [document_of(shards[s], t) for s, t in ((shard_a, start_a), (shard_b, start_b))]
            if label == IS_NEXT:
                assert (shard_b, start_b) == (shard_a, stop_a)
                assert documents[0] == documents[1]
            else:
                a, b = (shards[s].document_hashes[d] for s, d in zip((shard_a, shard_b), documents, strict=True))
                assert a != b
                assert start_b % 4 == 0  # B begins with a sentence
    assert min(labels[IS_NEXT], labels[IS_RANDOM]) > 100


def test_random_neighbours_come_from_all_documents(make_shards):
    shards = make_shards([[4] * 6 for _ in range(30)], [[4] * 6 for _ in range(30)])
    chosen = Counter()
    for epoch in range(20):
        for span, _ in one_epoch(shards, rule_of("sentence_pairs", 16), epoch):
            if span[6] == IS_RANDOM:
                chosen[span[3], document_of(shards[span[3]], span[4])] += 1
    assert len(chosen) == 60
    expected = sum(chosen.values()) / 60
    assert sum((n - expected) ** 2 / expected for n in chosen.values()) < 115  # chi squared, 59 degrees: p = 1e-5


def test_a_pair_too_long_loses_tokens_of_the_longer_part_from_both_ends(make_shards):
    shards = make_shards([[50, 30], [50, 30], [50, 30], [60, 50]])
    sizes, fronts = set(), []
    for epoch in range(60):
        for (_, start_a, stop_a, _, start_b, stop_b, label), _ in one_epoch(
            shards, rule_of("sentence_pairs", 64, short=0.0), epoch
        ):
            if label == IS_NEXT:
                sizes.add((stop_a - start_a, stop_b - start_b))
                if stop_b - start_b == 30 and stop_a <= 240:
                    fronts.append(start_a % 80)
    assert sizes == {(31, 30)}
    assert len(fronts) > 60
    assert np.mean(fronts) == pytest.approx(9.5, abs=1.2)  # 19 tokens, each from the front or the back by a fair coin
    assert np.std(fronts) == pytest.approx(19**0.5 / 2, abs=0.6)


@pytest.mark.parametrize(
    "documents, found", [([[5, 6]], "a single document"), ([[[7, 8], [9]]] * 3, "the same document 3 times")]
)
def test_pairs_of_one_text_only_are_refused(make_shards, documents, found):
    """One document, or three times the same: no random next sentence can be drawn."""
    shards = make_shards(documents)
    with pytest.raises(UserError, match=rf"needs at least two documents.*the training text is {found}; separate"):
        check_enough_documents(shards, "sentence_pairs")
    with pytest.raises(UserError, match="at least two different documents"):
        next(examples_from(shards, rule_of("sentence_pairs"), Cursor()))
    check_enough_documents(shards, "documents")
    assert next(examples_from(shards, rule_of("documents"), Cursor()))
    check_enough_documents(make_shards(documents, [[5, 7]]), "sentence_pairs")


def test_no_document_at_all_is_refused():
    with pytest.raises(UserError, match="no training document"):
        check_enough_documents([], "sentences")


def test_no_window_holds_fewer_than_two_documents(make_shards, monkeypatch):
    monkeypatch.setattr(examples_module, "WINDOW_SENTENCES", 1)
    shards = make_shards(*[[[3, 3]] for _ in range(7)])  # one document a shard
    for epoch in range(20):
        windows = windows_of(shards, rule_of("sentence_pairs"), epoch)
        assert all(len(window) >= 2 for window in windows)
        assert sorted(chain.from_iterable(windows)) == list(range(7))


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_from_any_cursor_gives_the_same_stream(many, kind, monkeypatch):
    monkeypatch.setattr(examples_module, "WINDOW_SENTENCES", 200)
    rule = rule_of(kind)
    per_epoch = len(one_epoch(many, rule))
    whole = [
        (span.tolist(), example_key, cursor)
        for span, example_key, cursor in islice(examples_from(many, rule, Cursor()), 2 * per_epoch + 50)
    ]
    assert whole[-1][2].epoch == 2 and max(cursor.window for _, _, cursor in whole) >= 2
    ends = [i for i, (_, _, cursor) in enumerate(whole[:-1]) if whole[i + 1][2].window != cursor.window]  # window ends
    for i in [0, *ends, *range(3, len(whole) - 1, 97)]:
        cursor = Cursor.from_state(whole[i][2].state())
        again = [(s.tolist(), k, c) for s, k, c in islice(examples_from(many, rule, cursor), 20)]
        assert again == whole[i + 1 : i + 21]


def test_keys_are_never_used_twice(many, monkeypatch):
    monkeypatch.setattr(examples_module, "WINDOW_SENTENCES", 200)
    keys = [k for epoch in range(3) for _, k in one_epoch(many, rule_of("sentences"), epoch)]
    keys += [k for _, k in one_epoch(many, rule_of("sentences", phase="phase-1"))]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("num_shards", [1, 9])
def test_order_depends_on_seed_phase_and_epoch(many, num_shards):
    many = many[:num_shards]

    def order(**changes):
        epoch = changes.pop("epoch", 0)
        return [span for span, _ in one_epoch(many, rule_of("sentences", **changes), epoch)]

    orders = [order(), order(seed=2), order(phase="phase-1"), order(epoch=1)]
    assert order() == orders[0]
    for other in orders[1:]:
        assert other != orders[0] and sorted(other) == sorted(orders[0])
        same_place = np.mean([a == b for a, b in zip(orders[0], other, strict=True)])
        assert same_place < 0.05


def test_evaluation_goes_through_the_documents_in_order(many):
    spans = [tuple(span[:3].tolist()) for span, _ in every_example(many, rule_of("documents"))]
    assert spans == sorted(spans)
    keys = [k for _, k in every_example(many, rule_of("documents"))]
    assert len(set(keys)) == len(keys)
    assert keys == [k for _, k in every_example(many, rule_of("documents"))]


PINNED = {
    "sentence_pairs": [
        (1, 20, 21, 1, 3, 12, 1),
        (0, 13, 20, 0, 23, 29, 0),
        (1, 13, 20, 0, 32, 38, 1),
        (0, 30, 37, 1, 14, 20, 1),
        (0, 0, 7, 0, 7, 12, 0),
        (1, 9, 12, 0, 7, 12, 1),
    ],
    "documents": [
        (0, 12, 22, 0, 0, 0, -1),
        (0, 0, 12, 0, 0, 0, -1),
        (0, 29, 38, 0, 0, 0, -1),
        (0, 22, 29, 0, 0, 0, -1),
        (1, 12, 21, 0, 0, 0, -1),
        (1, 0, 12, 0, 0, 0, -1),
    ],
    "sentences": [
        (0, 29, 38, 0, 0, 0, -1),
        (0, 7, 12, 0, 0, 0, -1),
        (0, 22, 29, 0, 0, 0, -1),
        (1, 6, 9, 0, 0, 0, -1),
        (1, 3, 6, 0, 0, 0, -1),
        (0, 18, 20, 0, 0, 0, -1),
    ],
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_is_pinned(make_shards, kind):
    """A change of these lists changes every run: it needs a reason, and a line in the change log."""
    shards = make_shards([[4, 3, 5], [6, 2, 2, 7], [9]], [[3, 3, 3, 3], [8, 1]])
    found = [
        (*span[:6].tolist(), int(span[6]))
        for span, _, _ in islice(examples_from(shards, rule_of(kind, 16), Cursor()), 6)
    ]
    assert found == PINNED[kind]
