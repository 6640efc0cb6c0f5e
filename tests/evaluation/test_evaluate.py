"""The figures of an evaluation against sums written by hand over the untouched model, one example at a time."""

import math
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F
from transformers import BertForPreTraining

from headrace.evaluation import evaluate as evaluate_module
from headrace.evaluation.evaluate import describe, evaluate
from headrace.evaluation.fill import fill_held_out
from headrace.evaluation.folder_model import blank_model, least_bytes, open_model, place
from headrace.models.segments import segments_of
from headrace.planning.device import Precision
from headrace.store.snapshot import write_snapshot
from headrace.tasks import masked_lm
from headrace.text.batches import make_batch
from headrace.text.examples import IS_NEXT, every_example
from headrace.text.tokens import ShardBuilder, TokenFolder
from headrace.training.setup import build_trainable

CPU = Precision(torch.device("cpu"), None)
LENGTH = 24
TOLERANCE = 1e-5  # relative: the order of sums in float32
KINDS = ["sentence_pairs", "documents", "sentences"]


@pytest.fixture
def setting(prepared, tiny_params):
    """setting(kind, ...): params, a model whose guesses are far from uniform, tokens and vocabulary."""

    def build(kind="sentence_pairs", evaluation=None, training=None, task=None):
        made = prepared()
        params = tiny_params(
            made.run.root,
            made.params.text.input[0],
            task={"examples": kind, **(task or {})},
            model={"initializer_range": 0.3, "hidden_dropout": 0.5},
            evaluation=evaluation or {},
            training=training or {},
        )
        return params, build_trainable(params, made.vocabulary, CPU), made.tokens, made.vocabulary

    return build


def figures(params, trainable, tokens, vocabulary, length=LENGTH):
    found = evaluate(params, trainable.model, tokens, vocabulary, CPU, sequence_length=length)
    assert found.pop("samples_per_s") > 0
    return found


def by_hand(params, trainable, tokens, vocabulary):
    """Pooled sums over the held-out examples, dense logits of the untouched model, one example at a time."""
    model = BertForPreTraining(trainable.config).eval()
    ours = {name: p for segment in trainable.store.segments for name, p in segment.parameters.items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(ours[name])
    shards = tokens.shards("held_out")
    rule = masked_lm.example_rule(params, LENGTH, "evaluation", params.evaluation.mask_seed)
    layout = masked_lm.batch_rule(params, vocabulary, LENGTH, 1)
    nll, correct, targets, pair_nll, pair_correct, pairs, true_next, examples = 0.0, 0, 0, 0.0, 0, 0, 0, 0
    for span, key in every_example(shards, rule):
        [m] = make_batch(shards, [span], [key], layout).microbatches
        with torch.no_grad():
            outputs = model(torch.from_numpy(m.input_ids), token_type_ids=torch.from_numpy(m.token_type_ids))
        examples += 1
        for position, target in zip(m.target_positions.tolist(), m.target_ids.tolist(), strict=True):
            scores = outputs.prediction_logits[0, position]
            nll += F.cross_entropy(scores, torch.tensor(target)).item()
            correct += scores.argmax().item() == target
            targets += 1
        for label in m.labels.tolist():
            scores = outputs.seq_relationship_logits[0]
            pair_nll += F.cross_entropy(scores, torch.tensor(label)).item()
            pair_correct += scores.argmax().item() == label
            true_next += label == IS_NEXT
            pairs += 1
    return {
        "eval/accuracy_masked_lm": correct / targets,
        "eval/mlm_perplexity": math.exp(nll / targets),
        "eval/accuracy_cls": pair_correct / pairs if pairs else None,
        "eval/loss": nll / targets + (pair_nll / pairs if pairs else 0.0),
        "n_examples": examples,
        "n_predicted_tokens": targets,
        "n_pairs": pairs,
        "is_next_share": true_next / pairs if pairs else None,
        "sequence_length": LENGTH,
    }


@pytest.mark.parametrize("kind", KINDS)
def test_figures_are_pooled_over_the_whole_held_out_set(setting, kind):
    made = setting(kind)
    found, expected = figures(*made), by_hand(*made)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == (value if value is None else pytest.approx(value, rel=TOLERANCE)), name
    for exact in ("eval/accuracy_masked_lm", "eval/accuracy_cls", "n_examples", "n_predicted_tokens", "n_pairs"):
        assert found[exact] == expected[exact]
    assert found["n_examples"] > 256, "more than one batch, or pooling is not tested"
    assert 0 < found["eval/accuracy_masked_lm"] < 1
    if kind == "sentence_pairs":
        assert 0 < found["is_next_share"] < 0.6


@pytest.mark.parametrize("microbatch_tokens", [1, 150, 100_000])
def test_microbatches_do_not_change_the_figures(setting, microbatch_tokens):
    expected = figures(*setting())
    found = figures(*setting(training={"microbatch_tokens": microbatch_tokens}))
    assert found == pytest.approx(expected, rel=TOLERANCE)
    assert found["eval/accuracy_masked_lm"] == expected["eval/accuracy_masked_lm"]


def test_batches_do_not_change_the_figures(setting, monkeypatch):
    expected = figures(*setting())
    monkeypatch.setattr(evaluate_module, "BATCH_EXAMPLES", 7)
    assert figures(*setting()) == pytest.approx(expected, rel=TOLERANCE)


def test_masks_are_the_same_every_time_and_other_with_another_seed(setting):
    made = setting()
    first = figures(*made)
    torch.manual_seed(77)
    assert figures(*made) == first
    params, *rest = made
    reseeded = params.model_copy(update={"run": params.run.model_copy(update={"seed": 99})})
    assert figures(reseeded, *rest) == first, "masks depend on evaluation.mask_seed, not on run.seed"
    other = figures(*setting(evaluation={"mask_seed": 5}))
    assert other["eval/loss"] != first["eval/loss"]


def test_the_first_examples_alone(setting):
    every = figures(*setting())["n_examples"]
    assert figures(*setting(evaluation={"examples": 10}))["n_examples"] == 10
    assert figures(*setting(evaluation={"examples": 270}))["n_examples"] == 270
    assert figures(*setting(evaluation={"examples": 10**9}))["n_examples"] == every


def test_dropout_is_off(setting):
    params, trainable, tokens, vocabulary = setting()
    trainable.model.train()
    assert figures(params, trainable, tokens, vocabulary) == figures(params, trainable, tokens, vocabulary)
    assert not trainable.model.training


def folder_of(tmp_path, documents) -> TokenFolder:
    """Held-out documents made by hand: (hash, sentence lengths)."""
    (tmp_path / "held_out").mkdir()
    builder = ShardBuilder(200)
    for hashed, lengths in documents:
        sentences = [torch.arange(5, 5 + length).numpy() for length in lengths]
        builder.add_document(sentences, [sentence > 0 for sentence in sentences], hashed)
    info = builder.write(tmp_path / "held_out" / "00000.safetensors", tmp_path)
    shards = [] if info is None else [{name: getattr(info, name) for name in info.__slots__}]
    return TokenFolder(tmp_path, {"vocabulary_size": 200, "shards": {"train": [], "held_out": shards}, "report": {}})


@pytest.mark.parametrize("documents", [[], [(1, [9, 9])], [(1, [9, 9]), (1, [9, 9])]], ids=["none", "one", "one twice"])
def test_too_few_held_out_documents_give_no_figures_and_no_error(setting, tmp_path, documents):
    """A random next sentence needs a document with another text; a copy is none."""
    params, trainable, _, vocabulary = setting()
    tokens = folder_of(tmp_path, documents)
    assert evaluate(params, trainable.model, tokens, vocabulary, CPU, sequence_length=LENGTH) == {}


def test_one_held_out_document_is_enough_without_pairs(setting, tmp_path):
    params, trainable, _, vocabulary = setting("sentences")
    found = figures(params, trainable, folder_of(tmp_path, [(1, [9, 20])]), vocabulary)
    assert (found["n_examples"], found["n_pairs"], found["eval/accuracy_cls"]) == (2, 0, None)


def test_perplexity_of_a_hopeless_model_is_capped_and_not_infinite(setting):
    params, trainable, tokens, vocabulary = setting("sentences")
    with torch.no_grad():
        weights = {name: p for segment in trainable.store.segments for name, p in segment.parameters.items()}
        weights["cls.predictions.bias"][vocabulary.pad_id] = 1e4
    found = figures(params, trainable, tokens, vocabulary)
    assert found["eval/mlm_perplexity"] == math.exp(100)
    assert found["eval/loss"] > 1000


def test_held_out_shards_are_what_is_evaluated(setting):
    params, trainable, tokens, vocabulary = setting("sentences")
    found = figures(params, trainable, tokens, vocabulary, length=64)
    sentences = 0
    for shard in tokens.shards("held_out"):
        ends = [0, *shard.sentence_ends.tolist()]
        sentences += sum(-(-(b - a) // 62) for a, b in pairwise(ends))
    assert found["n_examples"] == sentences


def test_one_line_of_figures():
    line = describe(
        {"eval/accuracy_masked_lm": 0.25, "eval/accuracy_cls": None, "n_examples": 12_345, "n_pairs": 0, "x": 2.0}
    )
    assert line == "eval/accuracy_masked_lm 0.2500, n_examples 12,345, x 2.0000"


def test_blanks_are_filled_the_same_from_fetched_segments(setting, tmp_path):
    """Embeddings, blocks and head read from the folder for every sentence."""
    _, trainable, tokens, vocabulary = setting()
    write_snapshot(trainable.store, tmp_path, optimizer=False)
    found = []
    for all_fetched in (False, True):
        model = blank_model(lambda: BertForPreTraining(trainable.config), CPU.device)
        segments = segments_of(model)
        placing = place(segments, least_bytes(segments) if all_fetched else None, all_fetched)
        opened = open_model(tmp_path, model, placing, CPU.device)
        with opened.running() as running:
            found.append(fill_held_out(running, vocabulary, tokens, 5, seed=3))
        assert (placing.fetched_bytes > 0) == all_fetched
        assert opened.store.read_bytes >= 5 * placing.fetched_bytes
        opened.close()
    assert len(found[0]) == 5 and found[0] == found[1]
