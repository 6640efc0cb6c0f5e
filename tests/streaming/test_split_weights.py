"""AdamW on split weights: torch's AdamW on an fp32 master whose bf16 copy the model computes with."""

from pathlib import Path

import pytest
import torch
from models import VOCABULARY, batch, make
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, LlamaConfig

import headrace
import headrace.training.streamed_model as sm
from headrace.optim import join

STEPS, MAX_NORM, FAMILY = 5, 0.5, "llama"
SPLIT = headrace.AdamW(lr=1e-3, max_norm=MAX_NORM, weights="split_bf16")
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=3, num_attention_heads=2, intermediate_size=96
)


def nearest(master: Tensor) -> Tensor:
    """The nearest bfloat16, ties away from zero, in fp32."""
    return ((master.view(torch.int32) + 0x8000) & -0x10000).view(torch.float32)


class Plain:
    """fp32 masters, an untouched model that holds their bf16 copies, and the loop everybody writes."""

    def __init__(self, microbatch: int):
        self.model, self.microbatch = make(FAMILY, 0.0).train(), microbatch
        self.masters = {name: nn.Parameter(p.detach().clone()) for name, p in self.model.named_parameters()}
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        for name, master in self.masters.items():
            groups[not any(part in name for part in ("bias", "norm", "Norm", "ln_"))].append(master)
        self.optimizer = torch.optim.AdamW(
            [{"params": groups[True], "weight_decay": 0.01}, {"params": groups[False], "weight_decay": 0.0}],
            lr=1e-3,
            fused=True,
        )
        self.copy()

    @torch.no_grad()
    def copy(self) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.copy_(nearest(self.masters[name].detach()))

    def step(self, inputs: dict[str, Tensor]) -> tuple[float, float]:
        self.model.zero_grad()
        total, size = torch.zeros(()), len(inputs["input_ids"])
        for a in range(0, size, self.microbatch):
            part = {name: value[a : a + self.microbatch] for name, value in inputs.items()}
            loss = sm.model_loss(self.model, part) * (self.microbatch / size)
            loss.backward()
            total = total + loss.detach()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), MAX_NORM)
        for name, parameter in self.model.named_parameters():
            self.masters[name].grad = parameter.grad
        self.optimizer.step()
        self.copy()
        return total.item(), norm.item()


def masters_of(snapshot: Path) -> dict[str, Tensor]:
    """Weights and lower halves of a snapshot, joined."""
    weights, lower = {}, {}
    for path in snapshot.glob("*.safetensors"):
        weights |= load_file(path)
    for path in snapshot.glob("optimizer/*.lower_half.safetensors"):
        lower |= load_file(path)
    masters = {name: torch.empty(weight.shape) for name, weight in weights.items()}
    for name, master in masters.items():
        assert weights[name].dtype is torch.bfloat16
        join(weights[name], lower[f"{name}.lower_half"], master)
    return masters


@pytest.mark.parametrize("placement", ["device", "disk", "mixed"])
def test_masters_have_the_bits_of_torchs_adamw(tmp_path, placement):
    ours = sm.build(
        make(FAMILY, 0.0).train(),
        SPLIT,
        folder=tmp_path / "store",
        placements=lambda segments: [
            placement if placement != "mixed" else ("device", "disk")[i % 2] for i in range(len(segments))
        ],
        microbatch=4,
    )
    plain = Plain(4)
    for number in range(STEPS):
        inputs = batch(FAMILY, number)
        assert (ours.step(inputs), ours.gradient_norm) == plain.step(inputs)
    assert ours.gradient_norm > MAX_NORM
    ours.snapshot(tmp_path / "snapshot")
    masters = masters_of(tmp_path / "snapshot")
    assert masters.keys() == plain.masters.keys()
    for name, master in plain.masters.items():
        assert torch.equal(masters[name], master), name
    moved = [(masters[name] != nearest(master.detach())).double().mean() for name, master in plain.masters.items()]
    assert sum(moved) / len(moved) > 0.9  # the lower halves are in use
    ours.close()


@pytest.mark.parametrize("placement", ["device", "disk"])
def test_first_weights_are_kept_whole(tmp_path, placement):
    for kind, model in (("config", CONFIG), ("folder", tmp_path / "plain"), ("module", make(FAMILY, 0.0))):
        if kind == "folder":
            make(FAMILY, 0.0).save_pretrained(tmp_path / "plain")
        made = {}
        for name, optimizer in (("split", SPLIT), ("fp32", headrace.AdamW(lr=1e-3))):
            source = make(FAMILY, 0.0) if kind == "module" else model
            streamed = headrace.stream(
                source, optimizer=optimizer, store=tmp_path / f"{kind}-{name}", placement=placement, batch=(8, 12)
            )
            streamed.snapshot(tmp_path / f"{kind}-{name}-0")
            streamed.close()
        made = masters_of(tmp_path / f"{kind}-split-0")
        expected: dict[str, Tensor] = {}
        for path in (tmp_path / f"{kind}-fp32-0").glob("*.safetensors"):
            expected |= load_file(path)
        assert made.keys() == expected.keys()
        assert all(torch.equal(made[name], weight) for name, weight in expected.items()), kind


def test_a_snapshot_goes_on_on_another_placement_and_is_a_bf16_model(tmp_path):
    def begin(place: str) -> headrace.StreamedModel:
        return headrace.stream(CONFIG, optimizer=SPLIT, store=tmp_path / place, placement=place, batch=(8, 12))

    model, other = begin("disk"), begin("device")
    for number in range(2):
        model.step(batch(FAMILY, number))
    model.snapshot(tmp_path / "snapshot")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "snapshot", dtype="auto")
    masters = masters_of(tmp_path / "snapshot")
    for name, parameter in plain.named_parameters():
        assert parameter.dtype is torch.bfloat16 and torch.equal(parameter.float(), nearest(masters[name])), name
    other.resume(tmp_path / "snapshot")
    for number in range(2, 5):
        assert model.step(batch(FAMILY, number)) == other.step(batch(FAMILY, number))
    model.snapshot(tmp_path / "one")
    other.snapshot(tmp_path / "two")
    one, two = masters_of(tmp_path / "one"), masters_of(tmp_path / "two")
    assert all(torch.equal(one[name], two[name]) for name in one)
