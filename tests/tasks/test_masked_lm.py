"""The head on predicted positions, packing, padding, buckets and microbatches decide the speed and not the numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from headrace.planning.device import Precision
from headrace.tasks import masked_lm
from headrace.text.batches import Batch, BatchRule, example_rows, make_batch
from headrace.text.examples import every_example
from headrace.training.setup import build_trainable

CPU = Precision(torch.device("cpu"), None)
LENGTH = 64
LOGIT_TOLERANCE = 1e-5  # absolute; logits are about 0.1 to 1
GRADIENT_TOLERANCE = 1e-5  # of the largest element of that gradient
NOISE = 1e-7  # see test_oracle


def _length(example) -> int:
    span, _ = example
    return int(span[2] - span[1] + span[5] - span[4])


class Setting:
    """A model with weights large enough for attention to matter, and about 20 examples of different lengths."""

    def __init__(self, made, tiny_params, kind):
        self.params = tiny_params(
            made.run.root,
            made.params.text.input[0],
            task={"examples": kind},
            model={"initializer_range": 0.2},
        )
        self.shards = made.tokens.shards("train")
        rule = masked_lm.example_rule(self.params, LENGTH, "x", 1)
        found = sorted(every_example(self.shards, replace(rule, short_example_rate=0.9)), key=_length)
        lengths = [_length(each) for each in found]
        spread = np.searchsorted(lengths, np.geomspace(lengths[0], lengths[-1], 24))
        self.spans, self.keys = zip(*(found[i] for i in np.unique(spread)), strict=True)
        self.rule = replace(masked_lm.batch_rule(self.params, made.vocabulary, LENGTH, 4096), packing=False)
        trainable = build_trainable(self.params, made.vocabulary, CPU)
        self.model, self.store = trainable.model.eval(), trainable.store

    def batch(self, chosen=slice(None), **changes) -> Batch:
        return make_batch(self.shards, self.spans[chosen], self.keys[chosen], replace(self.rule, **changes))

    def logits(self, batch: Batch) -> dict[bytes, tuple[torch.Tensor, torch.Tensor]]:
        """example -> its masked-LM logits (m, V) and next-sentence logits (2,)."""
        found = {}
        for microbatch in batch.microbatches:
            with torch.no_grad():
                outputs = masked_lm.forward(self.model, microbatch, CPU.device)
            rows = microbatch.target_positions // microbatch.input_ids.shape[1]
            numbers = microbatch.example_ids.ravel()[microbatch.target_positions]
            e = 0
            for row, ids in enumerate(microbatch.input_ids):
                for number in range(1, microbatch.example_ids[row].max() + 1):
                    slots = microbatch.example_ids[row] == number
                    name = ids[slots].tobytes() + microbatch.token_type_ids[row][slots].tobytes()
                    pair = outputs.pair_logits[e] if outputs.pair_logits is not None else torch.zeros(2)
                    found[name] = (outputs.masked_logits[(rows == row) & (numbers == number)], pair)
                    e += 1
        return found

    def gradients(self, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
        self.store.gradients.zero()
        total = 0.0
        for microbatch in batch.microbatches:
            sums = masked_lm.sums(masked_lm.forward(self.model, microbatch, CPU.device))
            loss = masked_lm.loss(sums, batch.num_targets, batch.num_pairs)
            loss.backward()
            total += loss.item()
        named = {n: p for segment in self.store.segments for n, p in segment.parameters.items() if p.requires_grad}
        return total, {name: parameter.grad.clone() for name, parameter in named.items()}


@pytest.fixture(params=["sentence_pairs", "documents"])
def setting(request, prepared, tiny_params):
    return Setting(prepared(), tiny_params, request.param)


def same_logits(ours, theirs, tolerance=LOGIT_TOLERANCE):
    assert ours.keys() == theirs.keys()
    for name, (masked, pair) in ours.items():
        assert (masked - theirs[name][0]).abs().max() <= tolerance
        assert (pair - theirs[name][1]).abs().max() <= tolerance


def test_the_head_on_predicted_positions_gives_the_dense_heads_loss(setting):
    for microbatch in setting.batch().microbatches:
        sums = masked_lm.sums(masked_lm.forward(setting.model, microbatch, CPU.device))
        hidden = setting.model.bert(
            input_ids=torch.from_numpy(microbatch.input_ids),
            attention_mask=torch.from_numpy(microbatch.example_ids > 0),
            token_type_ids=torch.from_numpy(microbatch.token_type_ids),
        ).last_hidden_state
        labels = torch.full((microbatch.num_slots,), -100)
        labels[torch.from_numpy(microbatch.target_positions)] = torch.from_numpy(microbatch.target_ids)
        dense = F.cross_entropy(setting.model.cls.predictions(hidden).flatten(0, 1), labels, reduction="sum")
        assert sums.masked_nll.item() == pytest.approx(dense.item(), rel=1e-6)
        assert sums.num_targets == (labels >= 0).sum()


LAYOUTS = {
    "one microbatch": {"microbatch_tokens": 1 << 20},
    "small microbatches": {"microbatch_tokens": 130},
    "buckets": {"buckets": (16, 40, LENGTH)},
    "one bucket": {"buckets": (LENGTH,)},
    "packed": {"packing": True},
    "packed, bucket": {"packing": True, "buckets": (LENGTH,), "microbatch_tokens": 200},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_changes_neither_logits_nor_gradients(setting, layout):
    alone = {}
    for e in range(len(setting.spans)):
        alone |= setting.logits(setting.batch(slice(e, e + 1)))  # one row, no padding
    plain = setting.batch(microbatch_tokens=1)
    assert all(m.num_slots == m.num_tokens for m in plain.microbatches) and len(plain.microbatches) == len(
        setting.spans
    )
    loss, gradients = setting.gradients(plain)

    batch = setting.batch(**LAYOUTS[layout])
    assert batch.num_slots > batch.num_tokens, "no padding was tried"
    assert batch.digest == plain.digest
    same_logits(setting.logits(batch), alone)
    other_loss, others = setting.gradients(batch)
    assert other_loss == pytest.approx(loss, rel=1e-6)
    for name, gradient in gradients.items():
        scale = max(gradient.abs().max().item(), NOISE / GRADIENT_TOLERANCE)
        assert (others[name] - gradient).abs().max() <= GRADIENT_TOLERANCE * scale, name


def test_packed_rows_hold_several_examples_and_no_more_than_fits(setting):
    batch = setting.batch(packing=True)
    examples_a_row = [m.example_ids.max(1) for m in batch.microbatches]
    assert max(map(np.max, examples_a_row)) >= 3
    assert sum(map(np.sum, examples_a_row)) == len(setting.spans) == batch.num_examples
    assert all(m.input_ids.shape[1] <= LENGTH for m in batch.microbatches)
    plain = {ids.tobytes() + types.tobytes() for ids, types in example_rows(setting.batch())}
    assert {ids.tobytes() + types.tobytes() for ids, types in example_rows(batch)} == plain


def test_an_example_does_not_see_what_else_is_in_its_row(setting):
    """Bit for bit: the other examples' tokens change, the shapes do not."""
    batch = setting.batch(packing=True)
    microbatch = next(m for m in batch.microbatches if m.example_ids.max() >= 3)
    row = int(np.argmax(microbatch.example_ids.max(1)))
    mine = microbatch.example_ids[row] == 2
    ids = microbatch.input_ids.copy()
    others = ~mine & (microbatch.example_ids[row] > 0)
    ids[row, others] = (ids[row, others] + 17) % 200
    changed = replace(microbatch, input_ids=ids)
    with torch.no_grad():
        before, after = (masked_lm.forward(setting.model, m, CPU.device) for m in (microbatch, changed))
    slots = microbatch.target_positions - row * ids.shape[1]
    in_row = (slots >= 0) & (slots < ids.shape[1])
    of_mine = np.zeros(len(slots), bool)
    of_mine[in_row] = mine[slots[in_row]]
    assert of_mine.any()
    assert torch.equal(before.masked_logits[of_mine], after.masked_logits[of_mine])
    assert not torch.equal(before.masked_logits[in_row & ~of_mine], after.masked_logits[in_row & ~of_mine])


def test_without_pairs_the_pooler_is_not_computed_and_the_loss_is_the_masked_loss_alone(setting):
    batch = setting.batch()
    outputs = masked_lm.forward(setting.model, batch.microbatches[0], CPU.device)
    pairs = setting.params.task.examples == "sentence_pairs"
    assert (outputs.pair_logits is not None) == pairs
    sums = masked_lm.sums(outputs)
    assert sums.num_pairs == (batch.microbatches[0].num_examples if pairs else 0)
    assert (sums.pair_nll.item() > 0) == pairs
    assert setting.model.bert.pooler.dense.weight.requires_grad == pairs


def test_max_predictions_default_is_the_mask_rate_rounded_up(setting, prepared):
    phase = setting.params.training.phases[0]
    rules: list[BatchRule] = [
        masked_lm.batch_rule(setting.params, prepared().vocabulary, length, 1, given)
        for length, given in ((128, None), (512, phase), (128, phase.model_copy(update={"max_predictions": 5})))
    ]
    assert [rule.mask.max_predictions for rule in rules] == [20, 77, 5]


def test_loss_weights_scale_the_losses_and_their_gradients(setting):
    """loss_per and loss_weight are a factor of the masked loss alone; the default divides by targets."""
    plain = setting.batch()
    other = setting.batch(loss_per_example=True, loss_weight=0.25)
    factor = plain.num_targets / plain.num_examples * 0.25
    assert other.target_divisor == plain.num_examples / 0.25 and plain.target_divisor == plain.num_targets
    for batch, weight in ((plain, 1.0), (other, factor)):
        found = masked_lm.losses([12.0, 6.0], batch)
        assert found["masked_lm_loss"] == pytest.approx(12.0 / plain.num_targets * weight, rel=1e-12)
        assert found["next_sentence_loss"] == (6.0 / batch.num_pairs if batch.num_pairs else None)
    losses = []
    for batch in (plain, other):
        total = [masked_lm.training_loss(setting.model, m, CPU.device, batch) for m in batch.microbatches]
        nlls = torch.stack([each for _, each in total]).double().sum(0).tolist()
        share = sum(loss.item() for loss, _ in total)
        assert share == pytest.approx(sum(v for v in masked_lm.losses(nlls, batch).values() if v is not None), rel=1e-5)
        losses.append(share)
    assert losses[0] != losses[1]
