"""AdamW on slabs against torch.optim.AdamW (bit for bit with the fused one) and, without correction, BERT's formula."""

import pytest
import torch

from headrace.optim import BLOCK_ELEMENTS, AdamW, clip_coefficient, global_norm

SHAPES = [(1,), (3,), (7, 5), (16,), (31,), (64, 3), (1023,), (129, 257), (1,), (65_537,)]  # odd sizes: kernel tails
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def random_tensors(seed: int, device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]


def slab_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The tensors back to back in one flat tensor."""
    return torch.cat([t.detach().flatten() for t in tensors])


def slab_views(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(slab_of(tensors).split([t.numel() for t in tensors]))


def same(views: list[torch.Tensor], tensors: list[torch.Tensor]) -> bool:
    return all(torch.equal(v, t.detach().flatten()) for v, t in zip(views, tensors, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_views_of_slabs_equal_fused_torch_bit_for_bit_with_clipping(device):
    rule = AdamW(betas=(0.9, 0.98), eps=1e-6, weight_decay=0.1)
    params = [p.requires_grad_() for p in random_tensors(0, device)]
    theirs = torch.optim.AdamW(params, betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay, fused=True)
    weights = slab_views(params)
    exp_avgs = slab_views([torch.zeros_like(p) for p in params])
    exp_avg_sqs = slab_views([torch.zeros_like(p) for p in params])
    for step in range(1, 6):
        lr = 1e-2 / step
        gradients = random_tensors(step, device)
        for p, g in zip(params, gradients, strict=True):
            p.grad = g.clone()
        theirs.param_groups[0]["lr"] = lr
        norm = torch.nn.utils.clip_grad_norm_(params, max_norm=1.0)
        theirs.step()

        views = slab_views(gradients)
        assert torch.equal(global_norm([g.view(s) for g, s in zip(views, SHAPES, strict=True)]), norm)
        coefficient = clip_coefficient(norm, 1.0)
        if step % 2:  # both forms of the coefficient
            coefficient = float(coefficient)
        rule.update(weights, views, exp_avgs, exp_avg_sqs, step=step, lr=lr, gradient_scale=coefficient)
        assert same(weights, params)
        assert same(views, [p.grad for p in params if p.grad is not None])
    assert same(exp_avgs, [theirs.state[p]["exp_avg"] for p in params])
    assert same(exp_avg_sqs, [theirs.state[p]["exp_avg_sq"] for p in params])


@pytest.mark.parametrize("device", DEVICES)
def test_whole_slab_equals_unfused_torch_closely(device):
    rule = AdamW(weight_decay=0.1)
    params = [p.requires_grad_() for p in random_tensors(0, device)]
    theirs = torch.optim.AdamW(params, lr=1e-2, betas=rule.betas, eps=rule.eps, weight_decay=0.1, fused=False)
    weight = slab_of(params)
    exp_avg, exp_avg_sq = torch.zeros_like(weight), torch.zeros_like(weight)
    for step in range(1, 6):
        gradients = random_tensors(step, device)
        for p, g in zip(params, gradients, strict=True):
            p.grad = g
        theirs.step()
        rule.update(weight, slab_of(gradients), exp_avg, exp_avg_sq, step=step, lr=1e-2)
    torch.testing.assert_close(weight, slab_of(params), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_a_parameter_equal_one_update_bit_for_bit(threads):
    generator = torch.Generator().manual_seed(0)
    size = 100 * BLOCK_ELEMENTS + 31
    whole = [torch.rand(size, generator=generator) for _ in range(4)]
    # Blocks lie at an odd address, and are updated on another number of threads.
    blocks = [torch.cat([torch.zeros(3), t])[3:] for t in whole]
    rule = AdamW()
    rule.update(*whole, step=3, lr=1e-2, gradient_scale=0.3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for cut in (
            slice(0, BLOCK_ELEMENTS),
            slice(BLOCK_ELEMENTS, 77 * BLOCK_ELEMENTS),
            slice(77 * BLOCK_ELEMENTS, None),
        ):
            rule.update(*(t[cut] for t in blocks), step=3, lr=1e-2, gradient_scale=0.3)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(blocks, whole, strict=True))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.999999)])
def test_without_bias_correction_is_google_berts_update(betas, device):
    beta1, beta2 = betas
    rule = AdamW(betas=betas, eps=1e-6, weight_decay=0.01, bias_correction=False)
    weight = slab_of(random_tensors(0, device))
    exp_avg, exp_avg_sq = torch.zeros_like(weight), torch.zeros_like(weight)
    w, m, v = weight.double(), exp_avg.double(), exp_avg_sq.double()
    for step in range(1, 6):
        gradient = slab_of(random_tensors(step, device))
        g = gradient.double()
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        w = w - 1e-3 * (m / (v.sqrt() + 1e-6) + 0.01 * w)
        rule.update(weight, gradient, exp_avg, exp_avg_sq, step=step, lr=1e-3)
        torch.testing.assert_close(weight, w.float(), rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(exp_avg_sq, v.float(), rtol=1e-5, atol=1e-12)


def test_weight_decay_of_a_call_replaces_the_rules():
    def updated(rule: AdamW, **kwargs: float) -> torch.Tensor:
        weight = torch.ones(10)
        rule.update(weight, torch.ones(10), torch.zeros(10), torch.zeros(10), step=1, lr=0.1, **kwargs)
        return weight

    assert torch.equal(updated(AdamW(weight_decay=0.5), weight_decay=0.0), updated(AdamW(weight_decay=0.0)))
    assert torch.equal(updated(AdamW(weight_decay=0.0), weight_decay=0.5), updated(AdamW(weight_decay=0.5)))
    torch.testing.assert_close(updated(AdamW(weight_decay=0.5)), torch.full((10,), 1 - 0.1 * 0.5 - 0.1))


def test_zero_padding_stays_zero():
    slabs = [torch.zeros(100) for _ in range(4)]
    AdamW().update(*slabs, step=1, lr=0.1)
    assert all(not slab.any() for slab in slabs)


def test_nothing_to_update_is_allowed():
    AdamW().update([], [], [], [], step=1, lr=0.1)
    AdamW().update(*(torch.zeros(0) for _ in range(4)), step=1, lr=0.1)


@pytest.mark.parametrize(
    "wrong",
    [torch.zeros(9), torch.zeros(10, dtype=torch.bfloat16), torch.zeros(20)[::2]],
    ids=["size", "dtype", "strided"],
)
def test_slabs_that_do_not_match_are_refused_before_memory_is_corrupted(wrong):
    with pytest.raises(AssertionError):
        AdamW().update(torch.zeros(10), wrong, torch.zeros(10), torch.zeros(10), step=1, lr=0.1)
