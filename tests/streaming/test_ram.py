"""The RAM tier and the way to a device apart, on the CPU's twin of a GPU: copies are real, and late."""

import time

import pytest
import torch
from models import batch, make

import headrace
import headrace.training.streamed_model as sm
from headrace.store.transfer import CopyThreads

MIX = ("ram", "disk", "device")


def run(folder, tiers, delay_s=0.0, steps=3, **settings):
    """Losses and weights after a few steps with an evaluation between them."""
    folder.mkdir()
    made = sm.build(
        make("gpt2", 0.1).train(),
        headrace.AdamW(lr=1e-3, max_norm=0.5),
        folder=folder,
        placements=lambda segments: [tiers[i % len(tiers)] for i in range(len(segments))],
        microbatch=2,
        seed=7,
        **settings,
    )
    if delay_s:
        assert isinstance(made.store.transfer, CopyThreads)
        made.store.transfer.delay_s = delay_s
    losses = []
    for step in range(steps):
        losses.append(made.step(batch("gpt2", step)))
        if step == 1:
            losses.append(made.evaluate(batch("gpt2", 9)))
    made.streaming.fetcher.rest()
    made.store.flush()
    weights = {name: t for i in range(len(made.segments)) for name, t in made.store.weights(i).items()}
    made.close()
    return losses, weights


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return run(tmp_path_factory.mktemp("plain") / "store", ("device",))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"pool_bytes": 1 << 24, "host_pool_bytes": 1 << 24, "held_gradient_bytes": 1 << 24},
        {"policies": "spill"},
        {"policies": "spill", "spill_host_bytes": 60_000, "stage_bytes": 1 << 24},
        {"policies": "recompute", "held_gradient_bytes": 1 << 24},
    ],
)
@pytest.mark.parametrize("tiers", [("ram",), MIX, ("disk", "ram")])
def test_whoever_needs_a_copy_waits_for_it(tmp_path, expected, settings, tiers):
    """Every copy begins late, so what is read before it was made would be what was there before."""
    losses, weights = run(tmp_path / "store", tiers, delay_s=0.004, **settings)
    assert losses == expected[0]
    assert all(torch.equal(weights[name], value) for name, value in expected[1].items())


def test_a_transfer_keeps_its_order_and_its_marks():
    transfer = CopyThreads(delay_s=0.02)
    host, device = transfer.host_memory(100), transfer.device_memory(100)
    assert len(host) == len(device) == 4096
    host.fill_(1)
    first = transfer.send(host, device)
    assert not transfer.passed(first)
    transfer.before_computing(first)
    assert transfer.passed(first) and device.eq(1).all() and transfer.computed() is None
    marks = [transfer.bring(device, host), transfer.send(host, device)]
    started_s = time.perf_counter()
    transfer.close()
    assert all(transfer.passed(mark) for mark in marks) and time.perf_counter() - started_s > 0.01


def test_in_ram_nothing_is_read_or_written(tmp_path):
    usual = {"optimizer": headrace.AdamW(lr=1e-3), "batch": (8, 12), "microbatch": 2}
    with headrace.stream(
        make("gpt_neox", 0.0).train(), placement="ram", ram="1GiB", activations="spill", **usual
    ) as model:
        for step in range(2):
            model.step(batch("gpt_neox", step))
        [work], traffic = model.plan.works, model.store.traffic
        assert not traffic.read and not traffic.written and not model.plan.needs_folder
        assert traffic.sent["weight"] == 2 * work.sent_bytes["weight"]
        assert traffic.brought["gradient"] == 2 * work.brought_bytes["gradient"]
        assert set(model.plan.needed_ram_bytes) >= {"weights", "gradients", "state"}
        assert model.evaluate(batch("gpt_neox", 1)) > 0
