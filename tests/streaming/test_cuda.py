"""On a GPU, for whoever has one: `pytest -m cuda`. Never run by us; `test_ram.py` tests the same code on the CPU's twin."""

from contextlib import nullcontext

import pytest
import torch
from models import batch, make

import headrace
import headrace.training.streamed_model as sm
from headrace.planning.probe import link_rate

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here: this path has not been run"),
]

UPDATE_TOLERANCE = 2e-5  # absolute, after 3 steps of 1e-3: what is not on the GPU is updated by the host's AdamW


def run(folder, placement, policy, dtype, optimizer):
    folder.mkdir()
    tiers = {"mixed": ("ram", "disk", "device")}.get(placement, (placement,))
    autocast = (lambda: torch.autocast("cuda", dtype)) if dtype is not None else nullcontext
    made = sm.build(
        make("gpt_neox", 0.1).train(),
        optimizer,
        folder=folder,
        placements=lambda segments: [tiers[i % len(tiers)] for i in range(len(segments))],
        policies=policy,
        microbatch=2,
        seed=7,
        device=torch.device("cuda"),
        autocast=autocast,
        spill_host_bytes=1 << 20,
    )
    losses, norms = [], []
    for step in range(3):
        losses.append(made.step(batch("gpt_neox", step)))
        norms.append(made.gradient_norm)
    made.streaming.fetcher.rest()
    made.store.flush()
    weights = {name: t.cpu() for i in range(len(made.segments)) for name, t in made.store.weights(i).items()}
    made.close()
    return losses, norms, weights


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("policy", ["keep", "spill", "recompute"])
def test_streamed_equals_resident(tmp_path, policy, dtype):
    """Before the first update bit for bit; after it, RAM and disk equal each other, and the resident run within a bound."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    optimizer = headrace.AdamW(lr=1e-3, max_norm=0.5)
    resident = run(tmp_path / "device", "device", "keep", dtype, optimizer)
    on_host = [run(tmp_path / place, place, policy, dtype, optimizer) for place in ("ram", "disk")]
    mixed = run(tmp_path / "mixed", "mixed", policy, dtype, optimizer)
    for losses, norms, weights in [*on_host, mixed]:
        assert (losses[0], norms[0]) == (resident[0][0], resident[1][0])
        for name, value in resident[2].items():
            assert (weights[name] - value).abs().max() <= UPDATE_TOLERANCE, name
    assert on_host[0][:2] == on_host[1][:2]
    assert all(torch.equal(on_host[0][2][name], value) for name, value in on_host[1][2].items())


def test_the_link_is_measured():
    assert link_rate(torch.device("cuda"), 64 << 20) > 1e8
