"""Adafactor on slabs against transformers', the same bits for any size of blocks, and bfloat16 weights."""

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.optim import Adafactor, parameter_key
from headrace.optim.rule import TILE_ELEMENTS

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
SHAPES = [
    (1,),
    (300,),
    (70_000,),
    (7, 5),
    (1, 9),
    (9, 1),
    (2000, 300),
    (300, 1500),
    (3, 70, 50),
    (5, 2, 3, 4),
    (2, 30_000),
]


def random_tensors(seed: int, device: str = "cpu") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for shape in SHAPES]


def gradients(step: int, device: str = "cpu") -> list[torch.Tensor]:
    """Rows and columns of very different size; later steps are larger, so that some updates are clipped."""
    found = random_tensors(step, device)
    for g in found:
        g.mul_(0.1 * 2.0**step * torch.linspace(0.01, 1.0, g.shape[-1], device=device))
        g[0].mul_(0.1)
    return found


def zero_states(rule: Adafactor, weights: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    """One list of tensors for each role."""
    states = [
        [torch.zeros(s, dtype=dtype, device=w.device) for s, dtype in rule.state_of(w.shape).values()] for w in weights
    ]
    return [list(role) for role in zip(*states, strict=True)]


def trained(rule: Adafactor, steps: int = 4, device: str = "cpu") -> list[list[torch.Tensor]]:
    weights = [w.to(rule.weight_dtype) for w in random_tensors(0, device)]
    state, keys = zero_states(rule, weights), [parameter_key(0, str(shape)) for shape in SHAPES]
    for step in range(1, steps + 1):
        rule.update(weights, gradients(step, device), *state, step=step, lr=1e-2, keys=keys)
    return [weights, *state]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("beta1", [None, 0.9])
def test_equal_to_transformers_closely(beta1, device):
    # Not bit for bit: their means are torch's reductions, whose order depends on the machine. Sums of 10^5 squares in two
    # orders differ by some 1e-7 of their size, and a weight by that part of an update of some lr.
    rule = Adafactor(weight_decay=0.1, beta1=beta1)
    params = [p.requires_grad_() for p in random_tensors(0, device)]
    theirs = transformers.Adafactor(
        params, lr=1e-2, scale_parameter=False, relative_step=False, weight_decay=0.1, beta1=beta1
    )
    weights = [p.detach().clone() for p in params]
    state = zero_states(rule, weights)
    clipped = 0
    for step in range(1, 7):
        for p, g in zip(params, gradients(step, device), strict=True):
            p.grad = g
        theirs.step()
        rule.update(weights, gradients(step, device), *state, step=step, lr=1e-2)
        clipped += sum(
            bool(rule.measure(g, *(t.clone() for t in s), step=step + 1) > 1.0)
            for g, *s in zip(gradients(step + 1, device), *state[:2], strict=True)
        )
        for w, p in zip(weights, params, strict=True):
            torch.testing.assert_close(w, p.detach(), rtol=1e-6, atol=1e-6)
    assert clipped > 0  # the divisor was at work
    for p, row, col in zip(params, *state[:2], strict=True):
        if p.dim() >= 2:
            torch.testing.assert_close(row, theirs.state[p]["exp_avg_sq_row"], rtol=3e-6, atol=0.0)
            torch.testing.assert_close(col, theirs.state[p]["exp_avg_sq_col"], rtol=3e-6, atol=0.0)
        else:
            torch.testing.assert_close(row, theirs.state[p]["exp_avg_sq"], rtol=3e-6, atol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_blocks_as_on_a_gpu_have_the_bits_of_small_ones(dtype, monkeypatch):
    rule = Adafactor(weight_dtype=dtype, weight_decay=0.1)
    expected = trained(rule)
    monkeypatch.setitem(TILE_ELEMENTS, "cpu", TILE_ELEMENTS["cuda"])
    for ours, theirs in zip(trained(rule), expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


class LargestNewStorage(TorchDispatchMode):
    """The bytes of the largest storage that operations inside it make."""

    num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {a.untyped_storage().data_ptr() for a in args if isinstance(a, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in known:
            self.num_bytes = max(self.num_bytes, result.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("shape", [(2048, 3000), (6_000_000,)])
def test_temporaries_do_not_grow_with_the_parameter(shape):
    rule = Adafactor(weight_dtype=torch.bfloat16)
    weight, gradient = torch.ones(shape).bfloat16(), torch.ones(shape)
    state = [torch.zeros(s, dtype=dtype) for s, dtype in rule.state_of(shape).values()]
    with LargestNewStorage() as largest:
        rule.update(weight, gradient, *state, step=1, lr=1e-3, keys=[1])
    state_bytes = max(t.nbytes for t in state)  # of a vector as large as the parameter, which only a toy has
    assert 0 < largest.num_bytes <= max(4_000_000, state_bytes)


def test_bfloat16_weights_move_by_the_mean_of_updates_that_rounding_to_nearest_would_lose():
    shape, steps, lr = (300, 200), 50, 1e-4
    rule = Adafactor(weight_dtype=torch.bfloat16)
    weight = torch.ones(shape).bfloat16()
    state = [torch.zeros(s, dtype=dtype) for s, dtype in rule.state_of(shape).values()]
    for step in range(1, steps + 1):
        rule.update(weight, torch.ones(shape), *state, step=step, lr=lr, keys=[parameter_key(0, "w")])
    assert (torch.tensor(1.0).bfloat16() - lr).item() == 1.0  # to nearest
    moved = 1.0 - weight.double().mean()
    # Each weight makes steps of 1/256 with probability 256 lr: 50 * 60,000 draws.
    assert abs(moved - steps * lr) < 5 * (steps * lr / 256 / weight.numel()) ** 0.5


def test_bfloat16_results_depend_on_keys_and_steps_and_need_a_key_each():
    rule = Adafactor(weight_dtype=torch.bfloat16)

    def updated(key: int, step: int) -> torch.Tensor:
        weight, state = torch.ones(50, 40).bfloat16(), zero_states(rule, [torch.ones(50, 40)])
        rule.update([weight], [torch.ones(50, 40)], *state, step=step, lr=1e-3, keys=[key])
        return weight

    assert torch.equal(updated(1, 1), updated(1, 1))
    assert not torch.equal(updated(1, 1), updated(2, 1))
    assert not torch.equal(updated(1, 1), updated(1, 2))
    with pytest.raises(AssertionError, match="key"):
        rule.update(torch.ones(3).bfloat16(), torch.ones(3), torch.zeros(3), torch.zeros(0), step=1, lr=1e-3)


def test_rows_and_columns_without_gradients_do_not_move_until_they_have_one():
    rule = Adafactor()
    weight, gradient = torch.ones(40, 30), torch.ones(40, 30)
    gradient[5:], gradient[:, 20:] = 0.0, 0.0
    state = [torch.zeros(s) for s, _ in rule.state_of(weight.shape).values()]
    for step in range(1, 4):
        rule.update(weight, gradient.clone(), *state, step=step, lr=0.1)
    assert (weight[:5, :20] != 1.0).all() and (weight[5:] == 1.0).all() and (weight[:, 20:] == 1.0).all()
    rule.update(weight, torch.ones(40, 30), *state, step=4, lr=0.1)
    assert weight.isfinite().all() and (weight != 1.0).all() and (weight - 1.0).abs().max() < 1.0
