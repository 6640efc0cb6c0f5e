"""Windows hold every token of every document once as input and once as target, in an order that (seed, phase, epoch) fix."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from headrace.tasks import causal_lm
from headrace.text.batches import Batch
from headrace.text.examples import Cursor, ExampleRule, account, every_example, examples_from
from headrace.text.token_windows import piece_tokens
from headrace.text.window_batches import WindowBatchRule
from headrace.training.input import TrainingInput
from headrace.training.text_source import TextBatches

END, PAD = 999, 0
PHASES = [{"sequence_length": 48, "batch_size": 8, "steps": 5}]
LENGTHS = [8, 31, 64, 100_000]


def rule(length: int, seed: int = 7, phase: str = "p") -> ExampleRule:
    return ExampleRule("windows", length, 0.0, seed, phase)


def documents_of(shards) -> list[tuple[int, ...]]:
    found = []
    for shard in shards:
        stops = shard.sentence_ends[shard.document_ends - 1].tolist()
        found += [tuple(shard.tokens[a:b].tolist()) for a, b in zip([0, *stops[:-1]], stops, strict=True)]
    return found


def one_epoch(shards, length: int, epoch: int = 0) -> list[np.ndarray]:
    found = []
    for span, _, cursor in examples_from(shards, rule(length), Cursor(epoch)):
        if cursor.epoch != epoch:
            return found
        found.append(span)
    raise AssertionError


def tokens_of(shards, pieces: np.ndarray) -> tuple[list[int], list[int]]:
    inputs, targets = zip(*(piece_tokens(shards, piece, END) for piece in pieces.tolist()), strict=True)
    return np.concatenate(inputs).tolist(), np.concatenate(targets).tolist()


@pytest.fixture
def shards(prepared):
    return prepared().tokens.shards("train")


@pytest.mark.parametrize("length", LENGTHS)
def test_every_token_is_once_an_input_and_once_a_target(shards, length):
    documents = documents_of(shards)
    windows = [tokens_of(shards, pieces) for pieces, _ in every_example(shards, rule(length))]
    assert all(len(inputs) == len(targets) == length for inputs, targets in windows[:-1])
    assert 0 < len(windows[-1][0]) <= length
    inputs = [token for window, _ in windows for token in window]
    targets = [token for _, window in windows for token in window]
    assert targets[:-1] == inputs[1:] and inputs[0] == targets[-1] == END
    parts, part = [], []
    for token in targets:
        if token == END:
            parts.append(tuple(part))
            part = []
        else:
            part.append(token)
    assert not part
    assert Counter(parts) == Counter(documents)
    assert parts != documents, "documents are shuffled"


@pytest.mark.parametrize("length", LENGTHS)
def test_the_account_says_that_all_is_used(shards, length):
    figures = account(shards, rule(length))
    documents = documents_of(shards)
    assert figures["tokens"] == figures["tokens_used"] == sum(map(len, documents))
    assert figures["examples"] == -(-(figures["tokens"] + len(documents)) // length)
    assert not figures["dropped"] and figures["random_next_share"] is None


def test_epochs_differ_in_order_and_neighbours_and_the_same_epoch_is_the_same(shards):
    first, again, second = (one_epoch(shards, 32, epoch) for epoch in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert len(first) == len(second)
    contents = [{tuple(tokens_of(shards, window)[0]) for window in epoch} for epoch in (first, second)]
    assert len(contents[0] & contents[1]) < len(first) // 10
    other = next(iter(examples_from(shards, rule(32, seed=8), Cursor())))[0]
    assert not np.array_equal(first[0], other)


def test_the_order_is_pinned(shards):
    """Another order would make old runs go on differently."""
    spans = [span for span, _, _ in islice(examples_from(shards, rule(16), Cursor()), 3)]
    assert [span.tolist() for span in spans] == PINNED


@pytest.mark.parametrize("stop", [0, 1, 17, 200])
def test_any_cursor_goes_on_with_the_same_examples(shards, stop):
    examples = list(islice(examples_from(shards, rule(1000), Cursor()), stop + 250))
    cursor = Cursor.from_state((examples[stop - 1][2] if stop else Cursor()).state())
    for (span, key, after), (other, other_key, other_after) in zip(
        examples[stop:], islice(examples_from(shards, rule(1000), cursor), 250), strict=True
    ):
        assert np.array_equal(span, other) and (key, after) == (other_key, other_after)
    assert examples[-1][2].epoch > 0, "an end of an epoch should lie between"


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_batches_are_the_same_for_any_number_of_workers(prepared, num_workers):
    def digests(workers: int, cursor: Cursor, count: int) -> list[tuple[int, Cursor]]:
        stream = TrainingInput(
            TextBatches(
                prepared().tokens,
                rule(64),
                batch_rule(isolate=False, microbatch_tokens=300),
                batch_size=5,
                cursor=cursor,
                num_batches=count,
            ),
            num_workers=workers,
        )
        return [(batch.digest, after) for batch, after in stream]

    whole = digests(0, Cursor(), 8)
    assert digests(num_workers, Cursor(), 8) == whole
    assert digests(num_workers, whole[2][1], 5) == whole[3:]


def batch_rule(isolate: bool, microbatch_tokens: int = 1000, length: int = 64) -> WindowBatchRule:
    return WindowBatchRule(length, END, PAD, microbatch_tokens, isolate, hidden_size=64)


def batch_of(shards, isolate: bool, num_windows: int = 6, length: int = 64) -> tuple[Batch, list[np.ndarray]]:
    """The last windows of an epoch, a short one among them."""
    spans = [span for span, _ in every_example(shards, rule(length))][-num_windows:]
    return batch_rule(isolate, 3 * length, length).batch(shards, spans, range(num_windows)), spans


@pytest.mark.parametrize("isolate", [False, True])
def test_a_batch_holds_its_windows_and_the_next_token_everywhere(shards, isolate):
    batch, spans = batch_of(shards, isolate)
    assert len(batch.microbatches) > 1 and batch.num_examples == 6 and batch.num_pairs == 0
    rows = []
    for m in batch.microbatches:
        assert m.packed is isolate and m.num_examples == len(m.input_ids)
        targets = np.full(m.input_ids.size, -1)
        targets[m.target_positions] = m.target_ids
        for ids, numbers, wanted in zip(m.input_ids, m.example_ids, targets.reshape(m.input_ids.shape), strict=True):
            real = numbers > 0
            assert (ids[~real] == PAD).all() and (wanted[~real] == -1).all() and real[: real.sum()].all()
            rows.append((ids[real].tolist(), wanted[real].tolist()))
    assert sorted(rows) == sorted(tokens_of(shards, span) for span in spans)
    assert batch.num_targets == batch.num_tokens == sum(len(ids) for ids, _ in rows)
    assert batch.num_slots > batch.num_tokens, "no padding was tried"


def test_positions_and_documents_restart_only_when_isolated(shards):
    (plain, _), (isolated, spans) = batch_of(shards, False), batch_of(shards, True)
    assert plain.digest == isolated.digest
    for a, b in zip(plain.microbatches, isolated.microbatches, strict=True):
        assert (a.position_ids == np.arange(a.input_ids.shape[1])).all() and a.example_ids.max() == 1
        begins = (b.input_ids == END) | (np.arange(b.input_ids.shape[1]) == 0)
        real = b.example_ids > 0
        assert np.array_equal((b.position_ids == 0) & real, begins & real)
        assert np.array_equal(b.example_ids[real], np.cumsum(begins, 1)[real])
    assert plain.sum_squared_lengths == sum(len(tokens_of(shards, span)[0]) ** 2 for span in spans)
    assert isolated.sum_squared_lengths == sum(((span[:, 4] - span[:, 3]) ** 2).sum() for span in spans)


def test_the_tasks_rules_are_these(prepared, tiny_params):
    made = prepared()
    params = tiny_params(
        made.run.root, made.params.text.input[0], model={"preset": "gpt2-tiny"},
        task={"kind": "causal_lm", "examples": "windows", "isolate_documents": True}, training={"phases": PHASES},
    )  # fmt: skip
    assert causal_lm.example_rule(params, 48, "phase-0", 3) == ExampleRule("windows", 48, 0.0, 3, "phase-0")
    made_rule = causal_lm.batch_rule(params, made.vocabulary, 48, 100)
    assert made_rule == WindowBatchRule(48, made.vocabulary.sep_id, made.vocabulary.pad_id, 100, True, hidden_size=32)


PINNED = [[[2, 4061, 350, 208, 224]], [[4, 1818, 191, 131, 147]], [[1, 57, 287, 278, 288], [5, 1053, 203, 0, 6]]]
