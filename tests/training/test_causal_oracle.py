"""Our step for GPTs against the untouched transformers model with a loop written by hand and torch.optim.AdamW.

One microbatch of full windows: weights and losses are equal bit for bit where nothing is tied. A tied weight's two gradients
add up in another order, and so do microbatches and chunks of the head: there, the tolerances below.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel

from headrace.optim import LossScale
from headrace.params import Params
from headrace.planning.device import Precision
from headrace.store.snapshot import write_snapshot
from headrace.tasks import causal_lm
from headrace.text.batches import Batch
from headrace.text.examples import every_example
from headrace.training.setup import Trainable, build_trainable
from headrace.training.step import StepResult, train_step

CPU = Precision(torch.device("cpu"), None)
STEPS, LENGTH, BATCH = 4, 32, 6
LR, MAX_NORM = 2e-3, 0.5
WEIGHT_TOLERANCE = 3e-6  # absolute after 4 steps of 2e-3, weights about 0.02 to 1
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 56}
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"preset": "gpt2-tiny"},
    "gptj": {"preset": "gpt-j-6b"},
    "gpt_neox": {"preset": "gpt-neox-20b"},
    "llama": {"config": {"model_type": "llama", **SMALL}},
}
TIED = {"gpt2"}
EMPTY = dict.fromkeys(("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                       "max_position_embeddings", "hidden_dropout", "attention_dropout", "preset"))  # fmt: skip


@pytest.fixture
def setting(prepared, tiny_params):
    """setting(family, isolate, microbatch_tokens, first window): params, a model and batches of windows."""

    def build(family, isolate=False, microbatch_tokens=4096, first=0) -> tuple[Params, Trainable, list[Batch]]:
        made = prepared()
        params = tiny_params(
            made.run.root,
            made.params.text.input[0],
            task={"kind": "causal_lm", "examples": "windows", "isolate_documents": isolate},
            model=MODELS[family] if "config" not in MODELS[family] else EMPTY | MODELS[family],
            training={
                "phases": [{"sequence_length": LENGTH, "batch_size": BATCH, "steps": STEPS}],
                "optimizer": {"no_decay": ["bias", "ln_", "norm"]},
            },
        )
        shards = made.tokens.shards("train")
        rule = causal_lm.batch_rule(params, made.vocabulary, LENGTH, microbatch_tokens)
        spans = [span for span, _ in every_example(shards, causal_lm.example_rule(params, LENGTH, "x", 1))][first:]
        batches = [
            rule.batch(shards, spans[i : i + BATCH], range(BATCH)) for i in range(0, STEPS * BATCH, BATCH) if spans[i:]
        ]
        return params, build_trainable(params, made.vocabulary, CPU), batches

    return build


def ours(trainable: Trainable, batch: Batch, number: int) -> StepResult:
    return train_step(
        batch,
        trainable.task,
        trainable.model.train(),
        trainable.store,
        trainable.streaming,
        CPU,
        step=number,
        updates=number,
        lr=LR,
        max_norm=MAX_NORM,
        loss_scale=LossScale.static(1.0),
    )


def weights_of(trainable: Trainable) -> dict[str, nn.Parameter]:
    return {name: p for segment in trainable.store.segments for name, p in segment.parameters.items()}


def untouched(trainable: Trainable) -> PreTrainedModel:
    oracle = AutoModelForCausalLM.from_config(trainable.config)
    weights = weights_of(trainable)
    assert weights.keys() == dict(oracle.named_parameters()).keys()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            parameter.copy_(weights[name])
    return oracle.train()


class Oracle:
    def __init__(self, trainable: Trainable, params: Params):
        self.model, settings = untouched(trainable), params.training.optimizer
        plain = [p for n, p in self.model.named_parameters() if any(part in n for part in settings.no_decay)]
        decayed = [p for n, p in self.model.named_parameters() if not any(part in n for part in settings.no_decay)]
        groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LR, betas=settings.betas, eps=settings.eps, fused=True)

    def step(self, batch: Batch) -> tuple[float, float]:
        self.optimizer.zero_grad()
        loss = dense_loss(self.model, batch)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.optimizer.step()
        return loss.item(), norm.item()


def dense_loss(model: PreTrainedModel, batch: Batch) -> Tensor:
    """transformers' own logits, next tokens as targets, summed over all windows and divided by the number of targets."""
    total = torch.zeros(())
    for m in batch.microbatches:
        labels = torch.full((m.num_slots,), -100)
        labels[torch.from_numpy(m.target_positions)] = torch.from_numpy(m.target_ids)
        logits = model(input_ids=torch.from_numpy(m.input_ids), use_cache=False).logits
        total = total + F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum")
    return total / batch.num_targets


@pytest.mark.parametrize("family", MODELS)
def test_steps_equal_the_oracles(setting, family):
    params, trainable, batches = setting(family)
    oracle = Oracle(trainable, params)
    for number, batch in enumerate(batches):
        assert len(batch.microbatches) == 1 and batch.num_tokens == batch.num_slots == BATCH * LENGTH
        loss, norm = oracle.step(batch)
        result = ours(trainable, batch, number)
        if family in TIED:
            assert (result.loss, result.gradient_norm) == pytest.approx((loss, norm), rel=1e-6)
        else:
            assert result.gradient_norm == norm
            assert result.losses == {"next_token_loss": pytest.approx(loss, rel=2e-7)}, "a sum in double, divided"
    for name, weight in oracle.model.named_parameters():
        if family in TIED:
            assert (weights_of(trainable)[name] - weight).abs().max() <= WEIGHT_TOLERANCE, name
        else:
            assert torch.equal(weights_of(trainable)[name], weight), name


@pytest.mark.parametrize("family", MODELS)
def test_microbatches_padding_and_chunks_of_the_head_do_not_change_the_step(setting, family, monkeypatch):
    """The last windows of an epoch, one of them short; two windows a microbatch, five rows of logits a chunk."""
    params, trainable, batches = setting(family, microbatch_tokens=2 * LENGTH, first=-BATCH)
    oracle = Oracle(trainable, params)
    monkeypatch.setattr(causal_lm, "CHUNK_BYTES", 5 * 4 * trainable.config.vocab_size)
    [batch] = batches
    assert len(batch.microbatches) >= 3 and batch.num_tokens < batch.num_slots
    for number in range(STEPS):
        loss, norm = oracle.step(batch)
        result = ours(trainable, batch, number)
        assert (result.loss, result.gradient_norm) == pytest.approx((loss, norm), rel=2e-6)
    for name, weight in oracle.model.named_parameters():
        assert (weights_of(trainable)[name] - weight).abs().max() <= WEIGHT_TOLERANCE, name


@pytest.mark.parametrize("family", MODELS)
def test_isolated_documents_are_as_if_each_were_alone(setting, family):
    """Every piece of a document through the untouched model in a row of its own."""
    _, trainable, batches = setting(family, isolate=True, microbatch_tokens=2 * LENGTH, first=-BATCH)
    oracle = untouched(trainable).eval()
    [batch] = batches
    assert sum(m.example_ids.max(1).sum() for m in batch.microbatches) > batch.num_examples, (
        "no row holds two documents"
    )
    alone = torch.zeros(())
    for m in batch.microbatches:
        wanted = torch.full((m.num_slots,), -100)
        wanted[torch.from_numpy(m.target_positions)] = torch.from_numpy(m.target_ids)
        for row, labels in enumerate(wanted.reshape(m.input_ids.shape)):
            for number in range(1, m.example_ids[row].max() + 1):
                mine = torch.from_numpy(m.example_ids[row] == number)
                logits = oracle(torch.from_numpy(m.input_ids[row])[mine][None]).logits[0]
                alone = alone + F.cross_entropy(logits, labels[mine], reduction="sum")
    (alone / batch.num_targets).backward()
    result = ours(trainable, batch, 0)
    assert result.loss == pytest.approx((alone / batch.num_targets).item(), rel=1e-5)
    norm = torch.stack([p.grad.norm() for p in oracle.parameters() if p.grad is not None]).norm().item()
    assert result.gradient_norm == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize("family", MODELS)
def test_a_snapshot_is_a_folder_transformers_reads(setting, family, tmp_path):
    _, trainable, batches = setting(family)
    ours(trainable, batches[0], 0)
    trainable.config.save_pretrained(tmp_path)
    write_snapshot(trainable.store, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    for name, weight in loaded.named_parameters():
        assert torch.equal(weight, weights_of(trainable)[name]), name


def test_logits_are_never_whole(setting, monkeypatch):
    """The head sees as many rows as CHUNK_BYTES allows, forward and backward."""
    _, trainable, batches = setting("gpt_neox")
    monkeypatch.setattr(causal_lm, "CHUNK_BYTES", 50 * 4 * trainable.config.vocab_size)
    rows: list[int] = []
    head = trainable.model.get_output_embeddings()
    assert isinstance(head, nn.Module)
    head.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    ours(trainable, batches[0], 0)
    assert sorted(rows) == sorted(2 * [50, 50, 50, 42])


def test_the_first_loss_is_that_of_guessing(setting):
    _, trainable, batches = setting("gpt2")
    uniform = torch.tensor(float(trainable.config.vocab_size)).log().item()
    assert ours(trainable, batches[0], 0).loss == pytest.approx(uniform, rel=0.02)
