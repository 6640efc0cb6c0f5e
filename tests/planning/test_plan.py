"""What is planned is what happens: bytes a step, exactly; and choices fit their budget."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

import headrace.training.optimizers as optimizers
import headrace.training.streamed_model as sm
from headrace.errors import UserError
from headrace.models.segments import segments_of
from headrace.planning import footprint as footprint_module
from headrace.planning.choose import Wish
from headrace.planning.footprint import measure
from headrace.planning.machine import Machine
from headrace.planning.measured import Measured
from headrace.planning.plan import Plan, make_plan
from headrace.planning.sizes import Choice, Sizes, Work
from headrace.planning.traffic import bytes_moved, bytes_moved_by_segment
from headrace.store.placement import Placement
from headrace.streaming import activations as activations_module

sys.path.insert(0, str(Path(__file__).parents[1] / "streaming"))
from models import batch, make

LENGTH, EXAMPLES = 12, 8
MACHINE = Machine(flops=1e9, read_bytes_per_s=1e9, write_bytes_per_s=0.5e9, update_parameters_per_s=1e8, cores=2)
LAZY = optimizers.AdamW(lr=1e-3)
MIXES: dict[str, tuple[Placement, ...]] = {"mixed": ("device", "disk"), "three": ("ram", "disk", "device")}


def sizes_of(
    family: str,
    head_at_once: bool = False,
    optimizer: optimizers.Optimizer = LAZY,
    model: nn.Module | None = None,
) -> Sizes:
    model = model or make(family, 0.1).train()

    def microbatch(examples: int, length: int):
        inputs = batch(family, 0, examples, length)

        def run(model: nn.Module, run_head) -> Tensor:
            given = {name: torch.zeros_like(value) for name, value in inputs.items()}
            if not head_at_once:
                return sm.model_loss(model, given)
            hidden = model.base_model(input_ids=given["input_ids"]).last_hidden_state  # pyright: ignore

            def head(hidden: Tensor, labels: Tensor) -> Tensor:
                logits = model.lm_head.block(hidden)  # pyright: ignore
                return model.loss_function(logits=logits, labels=labels, vocab_size=logits.shape[-1])  # pyright: ignore

            return run_head(head, hidden, given["labels"])

        return run

    footprints = cache(lambda examples, length: measure(model, microbatch(examples, length), nullcontext))
    return Sizes(segments_of(model), optimizer.rule, footprints, eager=optimizer.eager)


def measured_step(made: sm.StreamedModel, family: str) -> dict[str, Any]:
    """The third step; its figures and what the store counted altogether add up."""
    measured = Measured(made.store, made.streaming)
    for number in range(3):
        before = made.store.traffic.read, made.store.traffic.written
        with measured.step(f"step {number}"):
            made.step(batch(family, number, EXAMPLES, LENGTH))
    found = measured.record()[-1]
    for kinds, now, then in zip(
        (found["read_bytes"], found["written_bytes"]),
        (made.store.traffic.read, made.store.traffic.written),
        before,
        strict=True,
    ):
        assert {kind: size + then.get(kind, 0) for kind, size in kinds.items()} == now
    return found


@pytest.mark.parametrize(
    ("family", "placement", "policy", "held_bytes", "optimizer"),
    [
        ("bert", "disk", "keep", 0, LAZY),
        ("bert", "mixed", "recompute", 10**9, LAZY),
        ("gpt2", "disk", "spill", 60_000, LAZY),
        ("gpt2", "disk", "recompute", 10**9, LAZY),
        ("gpt_neox", "mixed", "keep", 0, LAZY),
        ("gpt_neox", "disk", "spill", 0, LAZY),
        ("t5", "disk", "keep", 60_000, LAZY),
        ("hand_written", "disk", "spill", 60_000, LAZY),
        ("gpt2", "mixed", "keep", 0, optimizers.AdamW(lr=1e-3, max_norm=None)),
        ("t5", "disk", "recompute", 0, optimizers.Adafactor(lr=1e-3)),
        ("llama", "disk", "spill", 60_000, optimizers.AdamW8bit(lr=1e-3)),
        ("gpt_neox", "ram", "spill", 0, LAZY),
        ("bert", "three", "spill", 60_000, LAZY),
        ("t5", "three", "keep", 0, optimizers.AdamW(lr=1e-3, max_norm=None)),
        ("gpt2", "three", "recompute", 0, optimizers.AdamW(lr=1e-3, weights="split_bf16")),
        ("gpt2_lora", "disk", "keep", 0, LAZY),
        ("gpt2_lora", "disk", "recompute", 0, optimizers.AdamW(lr=1e-3, weights="split_bf16")),
        ("bert_lora", "three", "spill", 10_000, LAZY),
        ("bert_lora", "mixed", "recompute", 0, LAZY),
        ("gpt2_lora", "three", "keep", 0, optimizers.AdamW(lr=1e-3, max_norm=None)),
    ],
)
def test_bytes_a_step(tmp_path, monkeypatch, family, placement, policy, held_bytes, optimizer):
    """Of the whole and of every segment."""
    if family.endswith("_lora"):
        pytest.importorskip("peft")
    for module in (activations_module, footprint_module):
        monkeypatch.setattr(module, "SMALL_BYTES", 1 << 10)
    segments = segments_of(make(family, 0.1))
    tiers: tuple[Placement, ...] = MIXES.get(placement, (placement,))
    places = [tiers[i % len(tiers)] for i in range(len(segments))]
    spill_host_bytes = 100_000 if "ram" in places else 0  # some records stay in host memory, some go on to disk
    made = sm.build(
        make(family, 0.1).train(),
        optimizer,
        folder=tmp_path,
        placements=places,
        policies=policy,
        microbatch=3,
        held_gradient_bytes=held_bytes,
        spill_host_bytes=spill_host_bytes,
    )
    found = measured_step(made, family)
    sizes = sizes_of(family, head_at_once="at_once" in made.streaming.policies, optimizer=optimizer)
    choice = Choice(
        tuple(made.store.placements),
        tuple(made.streaming.policies),
        microbatch_tokens=3 * LENGTH,
        held_gradient_bytes=held_bytes,
        spill_host_bytes=spill_host_bytes,
    )
    assert sizes.needs(choice.placements) == made.streaming.needs
    moved = bytes_moved(sizes, choice, Work("", EXAMPLES, LENGTH))
    assert (moved.read, moved.written) == (found["read_bytes"], found["written_bytes"])
    assert (moved.sent, moved.brought) == (found["sent_bytes"], found["brought_bytes"])
    assert bool(moved.link_bytes) == ("ram" in places)
    for own, segment in zip(
        bytes_moved_by_segment(sizes, choice, Work("", EXAMPLES, LENGTH)), found["segments"], strict=True
    ):
        assert (own.read, own.written) == (segment["read_bytes"], segment["written_bytes"])
        assert (own.sent, own.brought) == (segment["sent_bytes"], segment["brought_bytes"])
    assert ("gradient" in moved.read) == ("disk" in places and held_bytes < 10**9 and not optimizer.eager)
    assert ("activation" in moved.read) == (policy == "spill")
    made.close()


def plan_beside_a_gpu(memory_bytes: int | None, ram_bytes: int | None, **wish: Any) -> Plan:
    """A plan needs no GPU."""
    config = GPTNeoXConfig(
        vocab_size=311, hidden_size=48, num_hidden_layers=24, num_attention_heads=2, intermediate_size=96
    )
    sizes = sizes_of("gpt_neox", model=GPTNeoXForCausalLM(config).train())
    sizes.device = torch.device("cuda")
    return make_plan(
        sizes,
        [Work("phase 0", EXAMPLES, LENGTH)],
        memory_bytes=memory_bytes,
        ram_bytes=ram_bytes,
        disk_free_bytes=None,
        machine=MACHINE,
        wish=Wish(**wish),
        device="cuda",
    )


def test_beside_a_gpu_segments_go_to_the_device_then_to_ram_then_to_disk():
    whole = sum(plan_beside_a_gpu(None, None, placement="device").needed_bytes.values())
    all_in_ram = plan_beside_a_gpu(None, None, placement="ram")
    assert set(all_in_ram.placements) == {"ram"} and not all_in_ram.needs_folder
    assert not all_in_ram.works[0].read_bytes and all_in_ram.works[0].sent_bytes["weight"] > 0
    moved = []
    for share in (1.2, 0.6, 0.5, 0.3):
        most = int(share * sum(all_in_ram.needed_ram_bytes.values()))
        plan = plan_beside_a_gpu(int(0.4 * whole), most)
        assert sum(plan.needed_bytes.values()) <= 0.4 * whole and sum(plan.needed_ram_bytes.values()) <= most
        tiers = [tier for tier, _ in groupby(plan.placements)]  # a pass turns around at both ends
        assert tiers == ["device", "ram", *(["disk", "ram"] if share < 1 else []), "device"]
        moved.append(sum(plan.works[0].read_bytes.values()) + sum(plan.works[0].written_bytes.values()))
    assert moved[0] == 0 and moved == sorted(moved) and len(set(moved)) == 4
    with pytest.raises(UserError, match=r"at least .* of host memory with device.placement = ram, and device.ram is"):
        plan_beside_a_gpu(None, 1000, placement="ram")


def test_an_eager_rule_holds_no_gradients():
    sizes = sizes_of("gpt_neox")
    choice = Choice(("disk",) * len(sizes.sizes), ("recompute",) * len(sizes.sizes), 3 * LENGTH)
    lazy = bytes_moved(sizes, choice, Work("", EXAMPLES, LENGTH))
    sizes.eager = True
    eager = bytes_moved(sizes, choice, Work("", EXAMPLES, LENGTH))
    assert "gradient" in lazy.read and "gradient" not in eager.read
    assert eager.read["weight"] == lazy.read["weight"]


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_a_footprint_does_not_depend_on_where_the_model_is(family):
    """Of a model on another device, as one that will run on a GPU: it is measured on the CPU."""
    model, inputs = make(family, 0.1).train(), batch(family, 0)

    def run(model: nn.Module, _: Any) -> Tensor:
        return sm.model_loss(model, {name: torch.zeros_like(value) for name, value in inputs.items()})

    expected = measure(model, run, nullcontext)
    assert measure(model.to("meta"), run, nullcontext) == expected


@pytest.mark.parametrize("family", ["gpt_neox", "bert", "hand_written"])
def test_a_footprint_is_what_really_happens(family):
    """Fake tensors against real ones: bytes that autograd saves."""
    model = make(family, 0.1).train()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = sm.model_loss(model, batch(family, 0, 3, 64))
    assert loss.requires_grad
    found = sizes_of(family).footprints(3, 64)
    total = sum(visit.saved_bytes for visit in found.visits) + found.between_saved_bytes
    # Masks that segments share and hand on, and inputs that nothing saves, are counted once more.
    assert sum(saved.values()) * 0.98 <= total <= sum(saved.values()) * 1.1


def plan_of(memory_bytes: int | None, **wish):
    sizes = sizes_of("gpt_neox", head_at_once=True)
    head = len(sizes.sizes) - 1
    works = [Work("phase 0", EXAMPLES, LENGTH, steps=10), Work("phase 1", 2, 64, steps=5)]
    plan = make_plan(
        sizes,
        works,
        memory_bytes=memory_bytes,
        disk_free_bytes=None,
        machine=MACHINE,
        wish=Wish(most_microbatch_tokens=64, **wish),
        head=head,
    )
    if memory_bytes is not None:
        assert sum(plan.needed_bytes.values()) <= memory_bytes
    return plan


def test_everything_on_the_device_where_it_fits():
    plan = plan_of(None)
    assert not plan.streams and set(plan.policies) == {"keep"}
    assert plan.works[0].read_bytes == plan.works[0].written_bytes == {}
    need = sum(plan.needed_bytes.values())
    assert not plan_of(need).streams
    assert plan_of(need).microbatch_tokens == 64


def test_less_and_less_memory():
    """Every budget is used, never exceeded, and less of it never moves fewer bytes."""
    whole = sum(plan_of(None, placement="device").needed_bytes.values())
    moved = []
    for share in (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5, 0.4):
        try:
            plan = plan_of(int(share * whole))
        except UserError as error:
            assert "at least" in str(error)
            break
        moved.append(sum(plan.works[0].read_bytes.values()) + sum(plan.works[0].written_bytes.values()))
    assert moved[0] == 0


def test_the_named_memory_suffices():
    import re

    for wish in ({}, {"placement": "device"}, {"placement": "disk", "activations": "keep"}):
        with pytest.raises(UserError, match="at least") as caught:
            plan_of(1000, **wish)
        found = re.search(r"at least ([\d.,]+) (KiB|MiB)", str(caught.value))
        assert found
        named = float(found[1].replace(",", "")) * {"KiB": 1 << 10, "MiB": 1 << 20}[found[2]]
        plan_of(int(named), **wish)
        with pytest.raises(UserError):
            plan_of(int(0.98 * named), **wish)


def test_wishes_are_kept():
    plan = plan_of(None, placement="disk", activations="recompute", microbatch_tokens=24)
    assert plan.placements == ["disk"] * len(plan.segments)
    assert set(plan.policies) == {"recompute", "at_once"}
    assert plan.microbatch_tokens == 24
    assert plan.works[0].microbatches == 4


def test_a_disk_too_small():
    sizes = sizes_of("gpt_neox")
    need = 12 * sum(size.num_parameters for size in sizes.sizes)
    works = [Work("phase 0", EXAMPLES, LENGTH)]
    settings = {"memory_bytes": None, "machine": MACHINE, "wish": Wish(snapshots=2)}
    plan = make_plan(sizes, works, disk_free_bytes=3 * need, **settings)
    assert sum(plan.disk_bytes.values()) == 3 * need
    with pytest.raises(UserError, match="of disk"):
        make_plan(sizes, works, disk_free_bytes=3 * need - 1, **settings)


def test_times():
    plan = plan_of(None, placement="disk")
    for work in plan.works:
        assert work.step_s >= max(work.bounds_s["compute"], work.bounds_s["read"] + work.bounds_s["write"])
        assert work.bounds_s["compute"] == pytest.approx(work.flops / MACHINE.flops)
    assert plan.total_s == pytest.approx(10 * plan.works[0].step_s + 5 * plan.works[1].step_s)
    record = plan.record()
    assert record["works"][0]["read_bytes"] == plan.works[0].read_bytes


def test_recomputing_costs_a_forward():
    sizes = sizes_of("gpt_neox")
    work, all_here = Work("", 8, 12), ("device",) * len(sizes.sizes)
    keep = Choice(all_here, ("keep",) * len(sizes.sizes), 48)
    again = replace(keep, policies=("recompute",) * len(sizes.sizes))
    forward = sum(v.forward_flops for v in sizes.footprints(4, 12).visits)
    assert sizes.flops(again, work) - sizes.flops(keep, work) == 2 * forward
