"""The figures of causal language models against sums written by hand over the untouched model, and the same figures when the
model's segments are fetched from disk."""

import math

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from headrace.evaluation.evaluate import evaluate
from headrace.models.blank import fill_blanks
from headrace.models.segments import segments_of
from headrace.optim import AdamW
from headrace.planning.device import Precision
from headrace.store.store import Store
from headrace.streaming.activations import Saved
from headrace.streaming.segment import Pass, Streaming, install_segments
from headrace.tasks import causal_lm
from headrace.text.examples import every_example
from headrace.training.setup import Trainable, build_trainable

CPU = Precision(torch.device("cpu"), None)
LENGTH = 40


@pytest.fixture
def setting(prepared, tiny_params):
    """setting(isolate, **evaluation): params, a model whose guesses are far from uniform, tokens and vocabulary."""

    def build(isolate=False, **evaluation):
        made = prepared()
        params = tiny_params(
            made.run.root,
            made.params.text.input[0],
            task={"kind": "causal_lm", "examples": "windows", "isolate_documents": isolate},
            model={"preset": "gpt2-tiny", "initializer_range": 0.3, "hidden_dropout": 0.5},
            training={"phases": [{"sequence_length": 32, "batch_size": 8, "steps": 5}], "microbatch_tokens": 300},
            evaluation=evaluation,
        )
        return params, build_trainable(params, made.vocabulary, CPU), made.tokens, made.vocabulary

    return build


def figures(params, trainable, tokens, vocabulary, **more):
    found = evaluate(params, trainable.model, tokens, vocabulary, CPU, sequence_length=LENGTH, **more)
    assert found.pop("samples_per_s") > 0
    return found


def weights_of(trainable: Trainable) -> dict[str, torch.Tensor]:
    return {n: p.detach() for segment in trainable.store.segments for n, p in segment.parameters.items()}


@pytest.mark.parametrize("isolate", [False, True])
def test_figures_are_pooled_over_all_held_out_tokens(setting, isolate):
    """Without isolation over whole windows; with it, each piece of a document alone."""
    params, trainable, tokens, vocabulary = made = setting(isolate)
    model = AutoModelForCausalLM.from_config(trainable.config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights_of(trainable)[name])
    nll, correct, num_targets, num_windows = 0.0, 0, 0, 0
    shards = tokens.shards("held_out")
    rule = causal_lm.batch_rule(params, vocabulary, LENGTH, 1)
    for span, _ in every_example(shards, causal_lm.example_rule(params, LENGTH, "evaluation", 12345)):
        [m] = rule.batch(shards, [span], [0]).microbatches
        num_windows += 1
        for number in range(1, m.example_ids.max() + 1):
            mine = m.example_ids[0] == number
            with torch.no_grad():
                logits = model(torch.from_numpy(m.input_ids[0][mine])[None]).logits[0]
            targets = torch.from_numpy(m.target_ids[mine])
            nll += F.cross_entropy(logits, targets, reduction="sum").item()
            correct += int((logits.argmax(-1) == targets).sum())
            num_targets += len(targets)
    found = figures(*made)
    assert found == {
        "eval/accuracy": pytest.approx(correct / num_targets, abs=2 / num_targets),
        "eval/perplexity": pytest.approx(math.exp(nll / num_targets), rel=1e-4),
        "eval/loss": pytest.approx(nll / num_targets, rel=1e-5),
        "n_examples": num_windows,
        "n_predicted_tokens": num_targets,
        "sequence_length": LENGTH,
    }
    held_out = [shard.info for shard in shards]
    assert num_targets == sum(info.num_tokens + info.num_documents for info in held_out)
    assert 0 < found["eval/accuracy"] < 1


def test_the_same_windows_every_time_and_others_with_another_seed(setting):
    assert figures(*setting(examples=9)) == figures(*setting(examples=9))
    assert figures(*setting(examples=9))["n_examples"] == 9
    assert figures(*setting(examples=9, mask_seed=5)) != figures(*setting(examples=9))


def test_chunks_of_the_head_do_not_change_the_figures(setting, monkeypatch):
    whole = figures(*setting())
    monkeypatch.setattr(causal_lm, "CHUNK_BYTES", 7 * 4 * 203)
    assert figures(*setting()) == pytest.approx(whole, rel=1e-6)


def test_streamed_segments_give_the_same_figures(setting, tmp_path):
    """All weights on disk, the head's too; what training expected to fetch next is as before."""
    params, trainable, tokens, vocabulary = setting()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(trainable.config)
    fill_blanks(model, CPU.device)
    segments = segments_of(model)
    store = Store(segments, AdamW(), [], CPU.device, ["disk"] * len(segments), tmp_path)
    for i in range(len(segments)):
        store.fill(i, weights_of(trainable))
    pool_bytes = sum(4 * layout.size + 4096 for layout in store.layouts)
    head = [segment.name for segment in segments].index(causal_lm.HEAD)
    streaming = Streaming(segments, store, Pass(1), Saved(), ["keep"] * len(segments), pool_bytes, head=head)
    install_segments(model, segments, streaming, run_by_task=[causal_lm.HEAD])
    streaming.order = [1, 2]
    streamed = Trainable(causal_lm, model, trainable.config, store, streaming)  # pyright: ignore[reportArgumentType]
    assert figures(params, streamed, tokens, vocabulary, streaming=streaming) == figures(
        params, trainable, tokens, vocabulary, streaming=trainable.streaming
    )
    assert (streaming.order, streaming.training) == ([1, 2], True)
    streaming.fetcher.close()
    store.close()
