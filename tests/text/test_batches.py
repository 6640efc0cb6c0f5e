"""Batches: what is in them for any layout, the split into microbatches, and the same batches from any number of workers."""

from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest

from headrace.tasks import masked_lm
from headrace.text import examples as examples_module
from headrace.text.batches import MICROBATCH_COST_TOKENS, example_rows, make_batch, split_rows
from headrace.text.examples import IS_NEXT, IS_RANDOM, NO_LABEL, Cursor, ExampleRule, every_example
from headrace.training.input import TrainingInput
from headrace.training.text_source import TextBatches

LENGTH = 48
START = Cursor()


@pytest.fixture
def setting(prepared):
    """setting(kind): shards, spans, keys and the rule of 32 examples."""

    def build(kind="sentence_pairs"):
        made = prepared()
        shards = made.tokens.shards("train")
        found = list(every_example(shards, ExampleRule(kind, LENGTH, 0.5, 1, "x")))[::19][:32]
        return shards, *zip(*found, strict=True), masked_lm.batch_rule(made.params, made.vocabulary, LENGTH, 4096)

    return build


@pytest.mark.parametrize("kind", ["sentence_pairs", "documents"])
@pytest.mark.parametrize("packing", [False, True])
def test_a_row_is_cls_a_sep_b_sep_with_the_true_tokens_behind_the_masks(setting, kind, packing):
    shards, spans, keys, rule = setting(kind)
    rule = replace(rule, packing=packing, microbatch_tokens=300)
    batch = make_batch(shards, spans, keys, rule)
    expected = []
    for shard_a, start_a, stop_a, shard_b, start_b, stop_b, label in (span.tolist() for span in spans):
        ids = [rule.cls_id, *shards[shard_a].tokens[start_a:stop_a].tolist(), rule.sep_id]
        types = [0] * len(ids)
        if kind == "sentence_pairs":
            b = shards[shard_b].tokens[start_b:stop_b].tolist()
            ids, types = [*ids, *b, rule.sep_id], [*types, *[1] * (len(b) + 1)]
        expected.append((ids, types, label))

    found, labels = [], []
    for m in batch.microbatches:
        true_ids = m.input_ids.copy().ravel()
        true_ids[m.target_positions] = m.target_ids
        true_ids = true_ids.reshape(m.input_ids.shape)
        e = 0
        for row in range(len(true_ids)):
            for number in range(1, m.example_ids[row].max() + 1):
                slots = np.flatnonzero(m.example_ids[row] == number)
                assert (np.diff(slots) == 1).all(), "the slots of an example are together"
                assert m.first_positions[e] == row * true_ids.shape[1] + slots[0]
                assert m.position_ids[row, slots].tolist() == list(range(len(slots)))
                found.append((true_ids[row, slots].tolist(), m.token_type_ids[row, slots].tolist()))
                e += 1
        labels += m.labels.tolist()
        padding = m.example_ids == 0
        assert (m.input_ids[padding] == rule.pad_id).all() and not m.token_type_ids[padding].any()
        assert e == m.num_examples
        special = np.isin(true_ids.ravel()[m.target_positions], [rule.cls_id, rule.sep_id, rule.pad_id])
        assert not special.any()
    pairs = kind == "sentence_pairs"
    assert len(labels) == (32 if pairs else 0)
    labelled = [(*each, label) for each, label in zip(found, labels if pairs else [NO_LABEL] * 32, strict=True)]
    assert sorted(labelled) == sorted(expected)
    assert batch.num_examples == 32
    assert batch.num_targets == sum(len(m.target_ids) for m in batch.microbatches) > 32
    assert batch.num_tokens == sum(len(ids) for ids, _, _ in expected)
    assert batch.num_slots == sum(m.input_ids.size for m in batch.microbatches)
    assert batch.sum_squared_lengths == sum(len(ids) ** 2 for ids, _, _ in expected)
    assert batch.num_pairs == len(labels)
    assert set(labels) == ({IS_NEXT, IS_RANDOM} if pairs else set())


def test_the_digest_tells_batches_apart_but_not_layouts(setting):
    shards, spans, keys, rule = setting()
    digest = make_batch(shards, spans, keys, rule).digest
    for layout in ({"packing": True}, {"buckets": (LENGTH,)}, {"microbatch_tokens": 1}):
        assert make_batch(shards, spans, keys, replace(rule, **layout)).digest == digest
    assert make_batch(shards, spans, [key + 1 for key in keys], rule).digest != digest
    assert make_batch(shards, spans[::-1], keys[::-1], rule).digest != digest


def padded(length, rule):
    return next((b for b in rule.buckets or () if b >= length), rule.sequence_length if rule.buckets else length)


def cost_of(lengths, cuts, rule) -> float:
    """Slots plus the fixed cost of each microbatch; infinite where one is too large."""
    bounds = [0, *cuts, len(lengths)]
    total = 0.0
    for start, stop in pairwise(bounds):
        slots = (stop - start) * padded(int(lengths[stop - 1]), rule)
        if slots > rule.microbatch_tokens and stop - start > 1:
            return float("inf")
        total += slots * (1 + slots // (stop - start) / (2 * rule.hidden_size)) + MICROBATCH_COST_TOKENS
    return total


@pytest.mark.parametrize("buckets", [None, (16, 64, 512)])
def test_the_split_into_microbatches_is_the_cheapest_of_all(setting, buckets):
    *_, rule = setting()
    draw = np.random.default_rng(0)
    for _ in range(60):
        n = int(draw.integers(1, 10))
        lengths = np.sort(draw.integers(3, 512, n))
        limit = int(draw.choice([1, 300, 1000, 4096]))
        each = replace(rule, microbatch_tokens=limit, buckets=buckets, sequence_length=512)
        bounds, cost = split_rows(lengths, each)
        assert bounds[0][0] == 0 and bounds[-1][1] == n
        assert all(a[1] == b[0] for a, b in pairwise(bounds))
        best = min(cost_of(lengths, cuts, each) for k in range(n) for cuts in combinations(range(1, n), k))
        assert cost == pytest.approx(best)
        assert cost_of(lengths, [start for start, _ in bounds[1:]], each) == pytest.approx(best) and best < float("inf")


def test_microbatches_keep_to_microbatch_tokens_and_buckets(setting):
    shards, spans, keys, rule = setting()
    for layout in ({}, {"packing": True}, {"buckets": (16, LENGTH)}, {"packing": True, "buckets": (16, 32, LENGTH)}):
        batch = make_batch(shards, spans, keys, replace(rule, microbatch_tokens=200, **layout))
        assert len(batch.microbatches) > 3
        for m in batch.microbatches:
            assert m.num_slots <= 200
            width = m.input_ids.shape[1]
            assert width in layout["buckets"] if "buckets" in layout else width == (m.example_ids > 0).sum(1).max()


def test_a_batch_is_packed_where_that_costs_less(setting):
    """Attention makes long rows dear in a narrow model and cheap in a wide one; the examples are the same."""
    shards, spans, keys, rule = setting("sentences")
    packed, digests = {}, set()
    for hidden_size in (1, 4096):
        batch = make_batch(shards, spans, keys, replace(rule, packing=None, hidden_size=hidden_size))
        packed[hidden_size] = [m.packed for m in batch.microbatches]
        digests.add(batch.digest)
    assert not any(packed[1]) and all(packed[4096])
    assert len(digests) == 1


def test_packing_fills_rows(setting):
    """Best fit leaves little room: fewer rows than examples, and no two rows that fit into one."""
    shards, spans, keys, rule = setting("documents")
    used = []
    for m in make_batch(shards, spans, keys, replace(rule, packing=True)).microbatches:
        used += (m.example_ids > 0).sum(1).tolist()
    assert sum(used) == sum(len(ids) for ids, _ in example_rows(make_batch(shards, spans, keys, rule)))
    assert max(used) <= LENGTH and len(used) < len(spans)
    assert sum(sorted(used)[:2]) > LENGTH


# --- from token folder to batches, in worker processes


@pytest.fixture
def stream(prepared, monkeypatch):
    """stream(workers, cursor, batches, kind): [(digest, cursor after it)]."""
    monkeypatch.setattr(examples_module, "WINDOW_SENTENCES", 400)
    made = prepared()

    def run(num_workers, cursor=START, num_batches=8, kind="sentence_pairs"):
        rule = ExampleRule(kind, LENGTH, 0.1, 1, "phase-0")
        layout = masked_lm.batch_rule(made.params, made.vocabulary, LENGTH, 1000)
        made_input = TrainingInput(
            TextBatches(
                made.tokens,
                rule,
                layout,
                batch_size=150,
                cursor=cursor,
                num_batches=num_batches,
            ),
            num_workers=num_workers,
        )
        batches = [(batch.digest, after) for batch, after in made_input]
        assert made_input.waited_s > 0
        return batches

    return run


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than this machine has cores
@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_any_number_of_workers_gives_the_same_batches(stream, num_workers):
    expected = stream(0, num_batches=11)
    assert len({digest for digest, _ in expected}) == 11
    assert expected[-1][1].epoch >= 1 and max(cursor.window for _, cursor in expected) >= 2
    assert stream(num_workers, num_batches=11) == expected


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_resuming_in_the_middle_gives_the_rest(stream):
    whole = stream(0, num_batches=11)
    for done, num_workers in ((1, 0), (4, 2), (7, 1), (10, 2)):
        assert stream(num_workers, whole[done - 1][1], 11 - done) == whole[done:]
