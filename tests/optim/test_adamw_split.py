"""SplitAdamW is torch's AdamW on the fp32 master that its two halves are."""

import torch

from headrace.optim import AdamW, SplitAdamW, join, split

SHAPES = [(), (7,), (129, 257), (600_001,), (2, 200_000)]  # within a tile and across, with odd last elements


def random(seed: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_master_weights_and_moments_have_torchs_bits():
    masters = [random(0, shape).requires_grad_() for shape in SHAPES]
    with torch.no_grad():
        masters[1][:3] = torch.tensor([1.0 + 2**-8, -1.0 - 3 * 2**-8, 2**-130])  # ties to an even and an odd neighbour
    theirs = torch.optim.AdamW(masters, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, fused=True)
    rule = SplitAdamW(AdamW(betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1))
    weights = [torch.empty(shape, dtype=torch.bfloat16) for shape in SHAPES]
    lower = [torch.empty(shape, dtype=torch.int16) for shape in SHAPES]
    split([m.detach() for m in masters], weights, lower)
    exp_avgs, exp_avg_sqs = ([torch.zeros(shape) for shape in SHAPES] for _ in range(2))
    joined = [torch.empty(shape) for shape in SHAPES]
    for step in range(1, 6):
        gradients = [random(step, shape) for shape in SHAPES]
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = 0.3 * gradient
        theirs.step()
        rule.update(weights, gradients, exp_avgs, exp_avg_sqs, lower, step=step, lr=1e-2, gradient_scale=0.3)
        join(weights, lower, joined)
        for i, master in enumerate(masters):
            assert torch.equal(joined[i], master), (step, SHAPES[i])
            assert torch.equal(exp_avgs[i], theirs.state[master]["exp_avg"])
            assert torch.equal(exp_avg_sqs[i], theirs.state[master]["exp_avg_sq"])
            assert (weights[i].float() - master).abs().max() <= master.abs().max() * 2**-8


def test_weights_are_masters_rounded_to_nearest_with_ties_away_from_zero():
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, -1 - 3 * 2**-8, 1 + 2**-8 - 2**-20, 1 + 2**-8 + 2**-20])
    weight, lower = torch.empty(6, dtype=torch.bfloat16), torch.empty(6, dtype=torch.int16)
    split(ties, weight, lower)
    assert weight.tolist() == [1 + 2**-7, 1 + 2**-6, -1 - 2**-7, -1 - 2**-6, 1.0, 1 + 2**-7]
