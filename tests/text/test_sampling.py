import random

from headrace.text.sampling import reservoir_sample

ITEMS = [(i, f"{i}:" + "あ" * (i % 37)) for i in range(2000)]


def test_order_does_not_matter_and_the_budget_holds():
    sample = reservoir_sample(ITEMS, 5000, seed=3)
    for shuffle_seed in range(5):
        shuffled = ITEMS[:]
        random.Random(shuffle_seed).shuffle(shuffled)
        assert reservoir_sample(shuffled, 5000, seed=3) == sample
    assert sum(map(len, sample.texts)) == sample.sampled_characters <= 5000
    assert sample.sampled_characters > 5000 - 50  # the next one would not have fitted
    assert sample.seen_texts == 2000
    assert sample.seen_characters == sum(len(text) for _, text in ITEMS)


def test_seeds_differ_and_draw_from_everywhere():
    first, second = (set(reservoir_sample(ITEMS, 5000, seed).texts) for seed in (1, 2))
    assert first != second
    positions = [int(text.split(":")[0]) for text in first]
    assert 700 < sum(positions) / len(positions) < 1300


def test_everything_when_it_fits():
    sample = reservoir_sample(ITEMS, 10**9, seed=1)
    assert sorted(sample.texts) == sorted(text for _, text in ITEMS)
    assert sample.sampled_characters == sample.seen_characters


def test_a_text_longer_than_the_sample_does_not_empty_it():
    sample = reservoir_sample([(0, "あ" * 100), (1, "いう"), (2, "え")], 10, seed=1)
    assert sorted(sample.texts) == ["いう", "え"]
    assert sample.oversized_texts == 1


def test_equal_texts_are_drawn_each_for_itself():
    sample = reservoir_sample(((i, "同じ") for i in range(100)), 60, seed=1)
    assert sample.texts == ["同じ"] * 30
