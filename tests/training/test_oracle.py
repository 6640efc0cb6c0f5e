"""Our step against the untouched transformers model with a loop written by hand and torch.optim.AdamW.

Where both sides do the same sums in the same order (one microbatch, no padding, the oracle's head on the same
positions), every gradient and weight is equal bit for bit. The oracle as transformers ships it computes its head for
all positions, and a split batch adds up in another order: there, the tolerances below.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from transformers import BertForPreTraining

from headrace.optim import LossScale, learning_rate
from headrace.params import Params
from headrace.planning.device import Precision
from headrace.schedule_params import LinearSchedule
from headrace.streaming.segment import StreamedSegment
from headrace.tasks import masked_lm
from headrace.text.batches import Batch, make_batch
from headrace.text.examples import IS_NEXT, IS_RANDOM, NO_LABEL, every_example
from headrace.training.setup import Trainable, build_trainable
from headrace.training.step import NonFiniteError, StepResult, train_step

CPU = Precision(torch.device("cpu"), None)
STEPS = 5
SCHEDULE = LinearSchedule(start=1e-3, end=2e-3, steps=STEPS)
LOSS_TOLERANCE = 1e-6  # relative
GRADIENT_TOLERANCE = 5e-6  # largest difference over the largest element of that gradient, see `close`
NOISE = 1e-7  # gradients below this are rounding: those of the attention's key bias are 0 in exact arithmetic
WEIGHT_TOLERANCE = 3e-6  # absolute after 5 steps of 1e-3 to 2e-3, weights about 0.02 to 1


def step(trainable: Trainable, params: Params, batch: Batch, number: int) -> StepResult:
    return train_step(
        batch,
        trainable.task,
        trainable.model.train(),
        trainable.store,
        trainable.streaming,
        CPU,
        step=number,
        updates=number,
        lr=learning_rate(SCHEDULE, number),
        max_norm=params.training.optimizer.max_gradient_norm,
        loss_scale=LossScale.static(1.0),
    )


def weights_of(trainable: Trainable) -> dict[str, nn.Parameter]:
    """By the names of the untouched model."""
    return {name: parameter for segment in trainable.store.segments for name, parameter in segment.parameters.items()}


def untouched(trainable: Trainable) -> BertForPreTraining:
    """transformers' own model with a copy of the weights."""
    oracle = BertForPreTraining(trainable.config)
    ours = weights_of(trainable)
    assert ours.keys() == dict(oracle.named_parameters()).keys()
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            parameter.copy_(ours[name])
    return oracle.train()


def optimizer_of(oracle: BertForPreTraining, params: Params) -> torch.optim.AdamW:
    """Two groups, as everybody writes them for BERT."""
    settings = params.training.optimizer
    named = list(oracle.named_parameters())
    plain = [p for name, p in named if "bias" in name or "LayerNorm" in name]
    decayed = [p for name, p in named if not ("bias" in name or "LayerNorm" in name)]
    groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=settings.betas, eps=settings.eps, fused=True)


def dense_loss(oracle: BertForPreTraining, batch: Batch, pairs: bool) -> torch.Tensor:
    """The loss transformers computes itself, over one padded batch with labels of -100 where nothing is predicted."""
    width = max(m.input_ids.shape[1] for m in batch.microbatches)
    rows = [[], [], [], []]
    for m in batch.microbatches:
        labels = np.full(m.input_ids.size, -100)
        labels[m.target_positions] = m.target_ids
        arrays = (
            m.input_ids,
            m.token_type_ids,
            (m.example_ids > 0).astype(np.int64),
            labels.reshape(m.input_ids.shape),
        )
        for part, array, fill in zip(rows, arrays, (0, 0, 0, -100), strict=True):
            part.append(np.pad(array, ((0, 0), (0, width - array.shape[1])), constant_values=fill))
    input_ids, types, attention, labels = (torch.from_numpy(np.concatenate(part)) for part in rows)
    next_labels = torch.from_numpy(np.concatenate([m.labels for m in batch.microbatches]))
    outputs = oracle(
        input_ids=input_ids,
        attention_mask=attention,
        token_type_ids=types,
        labels=labels if pairs else None,
        next_sentence_label=next_labels if pairs else None,
    )
    if pairs:
        return outputs.loss
    return F.cross_entropy(outputs.prediction_logits.flatten(0, 1), labels.flatten())


def gathered_loss(oracle: BertForPreTraining, batch: Batch, pairs: bool) -> torch.Tensor:
    """The same loss with the oracle's own head applied to predicted positions only. One unpadded microbatch."""
    [m] = batch.microbatches
    assert m.num_tokens == m.num_slots
    outputs = oracle.bert(
        input_ids=torch.from_numpy(m.input_ids),
        attention_mask=torch.ones(m.input_ids.shape, dtype=torch.int64),
        token_type_ids=torch.from_numpy(m.token_type_ids),
    )
    hidden = outputs.last_hidden_state.flatten(0, 1)[torch.from_numpy(m.target_positions)]
    loss = F.cross_entropy(oracle.cls.predictions(hidden), torch.from_numpy(m.target_ids))
    if pairs:
        scores = oracle.cls.seq_relationship(outputs.pooler_output)
        loss = loss + F.cross_entropy(scores, torch.from_numpy(m.labels))
    return loss


@dataclass
class Setting:
    params: Params
    trainable: Trainable
    batches: list[Batch]
    pairs: bool


@pytest.fixture
def setting(prepared, tiny_params):
    """setting(pairs, equal_lengths, microbatch_tokens, optimizer, model): a model and 5 batches of 8 examples."""

    def build(pairs=True, equal_lengths=False, microbatch_tokens=4096, optimizer=None, model=None) -> Setting:
        made = prepared()
        params = tiny_params(
            made.params.run.folder,
            made.params.text.input[0],
            task={"examples": "sentence_pairs" if pairs else "documents"},
            training={"optimizer": {"max_gradient_norm": 0.5, **(optimizer or {})}},
            model=model or {},
        )
        shards = made.tokens.shards("train")
        if equal_lengths:
            spans = [equal_span(i, pairs) for i in range(STEPS * 8)]
        else:
            spans = [span for span, _ in every_example(shards, masked_lm.example_rule(params, 32, "x", 1))]
            lengths = [int(s[2] - s[1] + s[5] - s[4]) for s in spans]
            shortest = sorted(range(len(spans)), key=lambda i: lengths[i])[:600]
            spans = [spans[shortest[(157 * i) % 600]] for i in range(STEPS * 8)]  # every batch has several lengths
        rule = masked_lm.batch_rule(params, made.vocabulary, 32, microbatch_tokens, params.training.phases[0])
        batches = [make_batch(shards, spans[i : i + 8], range(i, i + 8), rule) for i in range(0, len(spans), 8)]
        return Setting(params, build_trainable(params, made.vocabulary, CPU), batches, pairs)

    return build


def equal_span(i: int, pairs: bool) -> np.ndarray:
    """32 tokens with the special ones."""
    if pairs:
        return np.array(
            [i % 5, 40 * i, 40 * i + 9 + i % 3, i % 5, 40 * i + 20, 40 * i + 40 - i % 3, (IS_NEXT, IS_RANDOM)[i % 2]]
        )
    return np.array([i % 5, 40 * i, 40 * i + 30, 0, 0, 0, NO_LABEL])


def close(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    scale = max(theirs.abs().max().item(), NOISE / GRADIENT_TOLERANCE)
    difference = (ours - theirs).abs().max().item()
    assert difference <= GRADIENT_TOLERANCE * scale, f"{name}: {difference} of {scale}"


@pytest.mark.parametrize("pairs", [True, False])
def test_equal_bit_for_bit_with_the_oracles_head_on_the_same_positions(setting, pairs):
    made = setting(pairs, equal_lengths=True)
    ours, oracle = weights_of(made.trainable), untouched(made.trainable)
    optimizer = optimizer_of(oracle, made.params)
    clipped = 0
    for number, batch in enumerate(made.batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(SCHEDULE, number)
        optimizer.zero_grad()
        loss = gathered_loss(oracle, batch, pairs)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(oracle.parameters(), 0.5)
        clipped += norm.item() > 0.5
        optimizer.step()

        result = step(made.trainable, made.params, batch, number)
        assert result.loss == pytest.approx(loss.item(), rel=1e-7)  # ours is the float64 sum of two float32 parts
        assert result.gradient_norm == norm.item()
        for name, theirs in oracle.named_parameters():
            assert torch.equal(ours[name], theirs), f"weight {name} after step {number}"
            if theirs.grad is not None:  # both clipped by now
                assert torch.equal(ours[name].grad, theirs.grad), f"gradient {name} in step {number}"
    assert clipped, "clipping was not tried"


@pytest.mark.parametrize("microbatch_tokens", [4096, 40], ids=["one microbatch", "split"])
@pytest.mark.parametrize("pairs", [True, False])
def test_equal_to_the_untouched_model_on_padded_batches(setting, pairs, microbatch_tokens):
    made = setting(pairs, microbatch_tokens=microbatch_tokens)
    if microbatch_tokens == 4096:
        assert all(len(b.microbatches) < 3 for b in made.batches) and any(
            b.num_tokens < b.num_slots for b in made.batches
        )
    else:
        assert all(len(b.microbatches) > 2 for b in made.batches)
    ours, oracle = weights_of(made.trainable), untouched(made.trainable)
    initial = {name: weight.detach().clone() for name, weight in ours.items()}
    optimizer = optimizer_of(oracle, made.params)
    for number, batch in enumerate(made.batches):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(SCHEDULE, number)
        optimizer.zero_grad()
        loss = dense_loss(oracle, batch, pairs)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(oracle.parameters(), 0.5)
        optimizer.step()

        result = step(made.trainable, made.params, batch, number)
        assert result.loss == pytest.approx(loss.item(), rel=LOSS_TOLERANCE)
        assert result.gradient_norm == pytest.approx(norm.item(), rel=GRADIENT_TOLERANCE)
        for name, theirs in oracle.named_parameters():
            assert (ours[name] - theirs).abs().max() <= WEIGHT_TOLERANCE, f"weight {name} after step {number}"
            if theirs.grad is not None:
                close(name, ours[name].grad, theirs.grad)
    unchanged = {name for name, weight in ours.items() if torch.equal(weight, initial[name])}
    unused = {name for name in ours if name.startswith(("bert.pooler", "cls.seq_relationship"))}
    assert unchanged == (set() if pairs else unused)
    assert len(unused) == 4


def test_without_bias_correction_equal_to_berts_formula(setting):
    """Google's AdamWeightDecayOptimizer written out; torch.optim has no such switch."""
    made = setting(optimizer={"bias_correction": False})
    ours, oracle = weights_of(made.trainable), untouched(made.trainable)
    moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in oracle.named_parameters()}
    for number, batch in enumerate(made.batches):
        oracle.zero_grad()
        dense_loss(oracle, batch, True).backward()
        torch.nn.utils.clip_grad_norm_(oracle.parameters(), 0.5)
        with torch.no_grad():
            for name, p in oracle.named_parameters():
                m, v = moments[name]
                m.mul_(0.9).add_(p.grad, alpha=0.1)
                v.mul_(0.999).add_(p.grad**2, alpha=0.001)
                update = m / (v.sqrt() + 1e-6)
                if "bias" not in name and "LayerNorm" not in name:
                    update += 0.01 * p
                p -= learning_rate(SCHEDULE, number) * update
        step(made.trainable, made.params, batch, number)
    for name, theirs in oracle.named_parameters():
        assert (ours[name] - theirs).abs().max() <= WEIGHT_TOLERANCE, name


def test_no_clipping_when_there_is_no_limit(setting):
    results = []
    for limit in (None, 1e6, 0.5):
        made = setting(optimizer={"max_gradient_norm": limit})
        step(made.trainable, made.params, made.batches[0], 0)
        results.append([state.gradient.clone() for state in made.trainable.store.states])
    assert all(torch.equal(a, b) for a, b in zip(results[0], results[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(results[0], results[2], strict=True))


def gradients(made: Setting, batch: Batch, number: int = 0) -> tuple[StepResult, dict[str, torch.Tensor]]:
    """Loss and gradients of one step with fresh weights and no clipping."""
    result = step(made.trainable, made.params, batch, number)
    return result, {n: p.grad.clone() for n, p in weights_of(made.trainable).items() if p.grad is not None}


def test_splitting_a_batch_does_not_change_loss_or_gradients(setting):
    runs = []
    for microbatch_tokens in (4096, 100, 1):
        made = setting(microbatch_tokens=microbatch_tokens, optimizer={"max_gradient_norm": None})
        runs.append((len(made.batches[0].microbatches), *gradients(made, made.batches[0])))
    assert runs[0][0] < runs[1][0] < runs[2][0] == 8
    for _, result, ours in runs[1:]:
        assert result.loss == pytest.approx(runs[0][1].loss, rel=LOSS_TOLERANCE)
        for name, gradient in runs[0][2].items():
            close(name, ours[name], gradient)


DROPOUT = {"hidden_dropout": 0.3, "attention_dropout": 0.3}


def test_dropout_is_a_function_of_seed_and_step_not_of_torchs_generator(setting):
    def loss(torch_seed, number, seed=3):
        made = setting(model=DROPOUT)
        made.trainable.streaming.running.seed = seed
        torch.manual_seed(torch_seed)
        torch.rand(torch_seed)
        return step(made.trainable, made.params, made.batches[0], number).loss

    assert loss(1, 0) == loss(99, 0)
    assert len({loss(1, 0), loss(1, 1), loss(1, 2), loss(1, 0, seed=4)}) == 4


def test_every_microbatch_has_dropout_masks_of_its_own(setting):
    made = setting(equal_lengths=True, model=DROPOUT)
    [microbatch] = made.batches[0].microbatches
    model, running = made.trainable.model.train(), made.trainable.streaming.running

    def nll(step_number, number):
        running.step, running.microbatch = step_number, number
        with torch.no_grad():
            return masked_lm.sums(masked_lm.forward(model, microbatch, CPU.device)).masked_nll.item()

    assert nll(0, 0) == nll(0, 0)
    assert len({nll(0, 0), nll(0, 1), nll(1, 0), nll(1, 1)}) == 4
    twice = replace(made.batches[0], microbatches=[microbatch] * 2, num_targets=2 * made.batches[0].num_targets)
    result = step(made.trainable, made.params, twice, 7)
    made = setting(equal_lengths=True, model=DROPOUT)
    model, running = made.trainable.model.train(), made.trainable.streaming.running
    assert result.losses["masked_lm_loss"] == pytest.approx((nll(7, 0) + nll(7, 1)) / twice.num_targets, rel=1e-6)


def test_every_segment_has_dropout_masks_of_its_own(setting):
    made = setting()
    made.trainable.streaming.running.seed = 1
    ones = torch.ones(1000)
    outputs = [StreamedSegment(nn.Dropout(0.5), index, made.trainable.streaming)(ones) for index in (0, 1, 0)]
    assert torch.equal(outputs[0], outputs[2])
    assert 0.4 < (outputs[0] == outputs[1]).float().mean() < 0.6  # independent masks agree half of the time


def test_evaluating_draws_nothing(setting):
    made = setting(model=DROPOUT)
    model = made.trainable.model.eval()
    torch.manual_seed(8)
    state = torch.get_rng_state()
    with torch.no_grad():
        logits = [masked_lm.forward(model, made.batches[0].microbatches[0], CPU.device).masked_logits for _ in range(2)]
    assert torch.equal(*logits)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_loss_that_is_not_finite_stops_before_the_update(setting):
    made = setting()
    with torch.no_grad():
        weights_of(made.trainable)["cls.predictions.bias"][7] = math.nan
    before = {name: weight.detach().clone() for name, weight in weights_of(made.trainable).items()}
    with pytest.raises(NonFiniteError, match=rf"step 4: loss nan, .*{made.batches[0].digest:08x}"):
        step(made.trainable, made.params, made.batches[0], 3)
    for name, weight in weights_of(made.trainable).items():
        assert torch.equal(weight.nan_to_num(5), before[name].nan_to_num(5))
