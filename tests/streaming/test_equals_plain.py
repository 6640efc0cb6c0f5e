"""Streamed equals plain: the untouched model with torch.optim and clip_grad_norm_, bit for bit where nothing is tied."""

from itertools import product

import pytest
import torch
from models import FAMILIES, TIED, batch, make
from torch import nn

import headrace
import headrace.training.streamed_model as sm
from headrace.models.segments import segments_of
from headrace.text.random import key

STEPS = 5
MAX_NORM = 0.5
TIED_TOLERANCE = 1e-5  # absolute, after 5 steps of 1e-3: a tied weight's two gradients add up in another order


class Plain:
    """The loop everybody writes, with dropout seeded where each segment begins, as ours is."""

    def __init__(self, family: str, dropout: float, microbatch: int):
        self.model = make(family, dropout).train()
        self.microbatch, self.now = microbatch, (0, 0)
        for i, segment in enumerate(segments_of(self.model)):
            for path in segment.modules:
                module = self.model.get_submodule(path)
                module.register_forward_pre_hook(
                    lambda *_, i=i: torch.manual_seed(key("dropout", 7, self.now[0], i, self.now[1])) and None
                )
        named = list(self.model.named_parameters())
        plain = [p for n, p in named if any(part in n for part in ("bias", "norm", "Norm", "ln_"))]
        decayed = [p for n, p in named if not any(part in n for part in ("bias", "norm", "Norm", "ln_"))]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}], lr=1e-3, fused=True
        )

    def seed(self, i: int) -> None:
        torch.manual_seed(key("dropout", 7, self.now[0], i, self.now[1]))

    def step(self, number: int, inputs: dict[str, torch.Tensor]) -> float:
        self.optimizer.zero_grad()
        total = None
        size = len(inputs["input_ids"])
        for j, a in enumerate(range(0, size, self.microbatch)):
            self.now = (number, j)
            part = {name: value[a : a + self.microbatch] for name, value in inputs.items()}
            loss = sm.model_loss(self.model, part) * (self.microbatch / size)
            loss.backward()
            total = loss.detach() if total is None else total + loss.detach()
        self.norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        self.gradients = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        self.optimizer.step()
        assert total is not None
        return total.item()


ADAMW = headrace.AdamW(lr=1e-3, max_norm=MAX_NORM)


def streamed(family, dropout, microbatch, folder, placement="disk", policy="keep", optimizer=ADAMW, **settings):
    def places(segments):
        tiers = {"mixed": ("device", "disk"), "three": ("ram", "disk", "device")}.get(placement, (placement,))
        return [tiers[i % len(tiers)] for i in range(len(segments))]

    return sm.build(
        make(family, dropout).train(),
        optimizer,
        folder=folder,
        placements=places,
        policies=policy,
        microbatch=microbatch,
        seed=7,
        **settings,
    )


def weights_of(made: sm.StreamedModel) -> dict[str, torch.Tensor]:
    made.streaming.fetcher.rest()
    made.store.flush()
    weights = {}
    for i in range(len(made.segments)):
        weights |= made.store.weights(i)
    return weights


@pytest.mark.parametrize(("family", "dropout", "pieces"), list(product(FAMILIES, [0.0, 0.1], [1, 2, 4])))
def test_streamed_equals_plain(tmp_path, family, dropout, pieces):
    plain, ours = Plain(family, dropout, 8 // pieces), streamed(family, dropout, 8 // pieces, tmp_path)
    for number in range(STEPS):
        inputs = batch(family, number)
        expected, found = plain.step(number, inputs), ours.step(inputs)
        if family not in TIED:
            assert found == expected
            assert ours.gradient_norm == plain.norm.item()
        else:
            assert found == pytest.approx(expected, rel=1e-6)
    weights = weights_of(ours)
    for name, parameter in plain.model.named_parameters():
        if family not in TIED:
            assert torch.equal(weights[name], parameter), name
        else:
            assert (weights[name] - parameter).abs().max() <= TIED_TOLERANCE, name
    ours.close()


SETTINGS = [
    {"placement": "device"},
    {"placement": "device", "policy": "recompute"},
    {"placement": "disk", "policy": "recompute"},
    {"placement": "disk", "policy": "spill"},
    {"placement": "mixed", "policy": "spill"},
    {"placement": "mixed", "pool_bytes": 1 << 24},
    {"placement": "disk", "stage_bytes": 1 << 24},
    {"placement": "disk", "policy": "spill", "stage_bytes": 150_000},
    {"placement": "mixed", "pool_bytes": 1 << 24, "stage_bytes": 1 << 24},
    {"placement": "disk", "held_gradient_bytes": 1 << 30},
    {"placement": "disk", "held_gradient_bytes": 50_000, "pool_bytes": 1 << 24, "stage_bytes": 1 << 24},
    {"placement": "ram"},
    {"placement": "ram", "policy": "spill", "spill_host_bytes": 50_000},
    {"placement": "three", "policy": "spill", "spill_host_bytes": 1 << 24, "pool_bytes": 1 << 24},
    {"placement": "three", "policy": "recompute", "held_gradient_bytes": 1 << 24, "stage_bytes": 1 << 24},
]


@pytest.mark.parametrize("family", FAMILIES)
def test_placement_policy_prefetch_and_budget_change_no_bit(tmp_path, family):
    def result(number, settings):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = streamed(family, 0.1, 2, folder, **settings)
        losses = [made.step(batch(family, step)) for step in range(3)]
        found = losses, made.gradient_norm, weights_of(made)
        made.close()
        return found

    expected = result(0, {"placement": "disk"})
    for number, settings in enumerate(SETTINGS, 1):
        losses, norm, weights = result(number, settings)
        assert (losses, norm) == expected[:2], settings
        assert all(torch.equal(weights[name], value) for name, value in expected[2].items()), settings


OPTIMIZERS = {
    "adamw_8bit": headrace.AdamW8bit(lr=1e-3),
    "adamw_eager": headrace.AdamW(lr=1e-3, max_norm=None),
    "adamw_split": headrace.AdamW(lr=1e-3, weights="split_bf16"),
    "adamw_split_eager": headrace.AdamW(lr=1e-3, weights="split_bf16", max_norm=None),
    "adafactor": headrace.Adafactor(lr=1e-3),
    "adafactor_fp32": headrace.Adafactor(lr=1e-3, weight_dtype=torch.float32),
    "sgd": headrace.SGD(lr=1e-2, momentum=0.9),
    "sgd_plain": headrace.SGD(lr=1e-2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_every_state_format_gives_the_same_bits_wherever_it_lies(tmp_path, family, name):
    found = []
    for number, placement in enumerate(["device", "disk", "mixed", "ram", "three"]):
        (tmp_path / str(number)).mkdir()
        made = streamed(family, 0.1, 2, tmp_path / str(number), placement, optimizer=OPTIMIZERS[name])
        losses = [made.step(batch(family, step)) for step in range(4)]
        found.append((losses, weights_of(made)))
        made.close()
    assert len(set(found[0][0])) == 4
    for losses, weights in found[1:]:
        assert losses == found[0][0]
        assert all(torch.equal(weights[key], value) for key, value in found[0][1].items())


def test_state_is_read_ahead_and_what_comes_between_two_steps_may_discard_it(tmp_path):
    """The next step's first segments are staged while a step ends; evaluation and snapshots take them back unharmed."""

    def result(number, stage_bytes):
        folder = tmp_path / str(number)
        folder.mkdir()
        made = streamed("gpt_neox", 0.0, 2, folder, placement="disk", stage_bytes=stage_bytes)
        losses = []
        for step in range(4):
            losses.append(made.step(batch("gpt_neox", step)))
            assert bool(made.streaming.fetcher.staged) == (stage_bytes > 0)
            if step == 1:
                losses.append(made.evaluate(batch("gpt_neox", 9)))
            if step == 2:
                made.snapshot(folder / "snapshot")
                assert not made.streaming.fetcher.staged
        found = losses, weights_of(made)
        made.close()
        return found

    losses, weights = result(0, 0)
    for number, stage_bytes in enumerate((150_000, 1 << 24), 1):
        found, theirs = result(number, stage_bytes)
        assert found == losses
        assert all(torch.equal(theirs[name], value) for name, value in weights.items())
