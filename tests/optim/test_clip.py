"""The global norm and its clip coefficient against torch.nn.utils, bit for bit."""

import pytest
import torch

from headrace.optim import clip_coefficient, global_norm, join_norms, tensor_norms

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
SHAPES = [(1,), (7, 5), (1023,), (129, 257), (70_001,)]
ALIGN = 16  # floats, so 64 bytes


def padded_slab_views(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Flat views of one slab in which each tensor starts at a multiple of 64 bytes."""
    starts, end = [], 0
    for t in tensors:
        starts.append(end)
        end += -(-t.numel() // ALIGN) * ALIGN
    slab = torch.zeros(end, device=tensors[0].device)
    views = [slab[start : start + t.numel()] for start, t in zip(starts, tensors, strict=True)]
    for view, t in zip(views, tensors, strict=True):
        view.copy_(t.flatten())
    return views


@pytest.mark.parametrize("device", DEVICES)
def test_norm_of_slab_views_is_torchs_bit_for_bit(device):
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        gradients = [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]
        expected = torch.nn.utils.get_total_norm(gradients)
        views = padded_slab_views(gradients)
        assert torch.equal(global_norm(views), expected)
        assert torch.equal(join_norms([*tensor_norms(views[:2]), *tensor_norms(views[2:])]), expected)


def test_norm_of_nothing_is_zero():
    assert global_norm([]) == torch.nn.utils.get_total_norm([]) == 0.0
    assert global_norm([torch.zeros(0), torch.zeros(3)]) == 0.0


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_norm_is_not_finite_when_one_element_is_not(value):
    gradients = [torch.ones(100), torch.ones(1000)]
    gradients[1][777] = value
    assert not torch.isfinite(global_norm(gradients))


@pytest.mark.parametrize("max_norm", [1e-3, 1.0, 17.0, 1e6])
def test_coefficient_clips_as_torch_does(max_norm):
    gradient = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    param = torch.zeros(1000, requires_grad=True)
    param.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(param, max_norm)
    coefficient = clip_coefficient(global_norm([gradient]), max_norm)
    assert torch.equal(gradient * coefficient, param.grad)
    assert torch.equal(gradient * float(coefficient), param.grad)


def test_no_clipping():
    assert clip_coefficient(torch.tensor(5.0), None) == clip_coefficient(torch.tensor(5.0), 0.0) == 1.0
    assert clip_coefficient(torch.tensor(0.0), 1.0) == 1.0
    with pytest.raises(AssertionError):
        clip_coefficient(torch.tensor(5.0), -1.0)
