"""Rounding at random: the right neighbours with the right probabilities, from numbers that depend on (key, step, i) only."""

import itertools

import pytest
import torch

from headrace.optim import parameter_key, round_stochastically

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
KEY = parameter_key(0, "a.weight")


def rounded(source: torch.Tensor, *, key: int = KEY, step: int = 1, first: int = 0) -> torch.Tensor:
    target = torch.empty_like(source, dtype=torch.bfloat16)
    round_stochastically(source, target, key=key, step=step, first=first)
    return target


def numbers(size: int, *, key: int = KEY, step: int = 1, first: int = 0, bits: int = 16) -> torch.Tensor:
    """The first bits of the random numbers behind a rounding, found by halving: rounding up tells if one is >= a bound."""
    found = torch.zeros(size, dtype=torch.int32)
    for bit in reversed(range(16 - bits, 16)):
        tried = found + (1 << bit)
        # 1 + f / 65536 units is rounded up when f + number >= 65536, so when number >= tried
        source = (0x3F800000 + 65536 - tried).view(torch.float32)
        up = rounded(source, key=key, step=step, first=first).view(torch.int16) > 0x3F80
        found = torch.where(up, tried, found)
    return found


def test_values_that_are_bfloat16_stay_and_so_do_infinities_and_nan():
    every = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    every = every[~every.isnan()]
    for step in range(5):
        assert torch.equal(rounded(every.float(), step=step).view(torch.int16), every.view(torch.int16))
    words = [0x7F800001, 0x7FBFFFFF, 0x7FC00000, 0x7FFFFFFF, -0x7FFFFF, -0x400001, -0x400000, -1]
    nan = torch.tensor(words * 5000, dtype=torch.int32).view(torch.float32)
    assert nan.isnan().all() and rounded(nan).isnan().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("value", [1.001, -1.001, 3.14159e-5, -2.7e20, 1e-39, 0.9999, 1.00390624])
def test_a_value_becomes_one_of_its_neighbours_and_itself_on_average(value, device):
    size, steps = 10_000, 20
    source = torch.full((size,), value, device=device)
    results = torch.stack([rounded(source, step=step) for step in range(steps)]).double()
    x = source[0].double()
    low, high = results.min(), results.max()
    assert low < x < high and set(results.unique().tolist()) == {low.item(), high.item()}
    upper = high.to(torch.bfloat16).view(torch.int16).item(), low.to(torch.bfloat16).view(torch.int16).item()
    assert abs(upper[0] - upper[1]) == 1  # neighbours
    share = (x - low) / (high - low)
    error = (results.mean() - x) / (high - low)
    assert abs(error) < 5 * (share * (1 - share) / (size * steps)).sqrt()


def test_each_element_is_right_on_average_over_steps():
    source = torch.linspace(1.0, 1.0078125, 5000)[1:-1]  # fractions between two neighbours
    results = torch.stack([rounded(source, step=step) for step in range(2000)]).double().mean(0)
    errors = (results - source.double()) / 2**-7 * 2000**0.5 / 0.5
    assert errors.abs().max() < 6.0
    assert errors.mean().abs() < 5 * 5000**-0.5


def test_past_the_largest_bfloat16():
    largest = torch.finfo(torch.bfloat16).max
    results = rounded(torch.full((1000,), torch.finfo(torch.float32).max))
    assert set(results.tolist()) <= {largest, torch.inf}
    assert rounded(torch.full((1000,), largest)).isfinite().all()


@pytest.mark.parametrize("threads", [1, 2])
def test_results_depend_on_neither_cuts_nor_threads(threads):
    size = 150_001
    source = torch.randn(size, generator=torch.Generator().manual_seed(0))
    whole = rounded(source, first=12_345)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for borders in ([0, 64, 4096, 100_000, size], [0, 1, 77, 50_001, size]):
            for start, stop in itertools.pairwise(borders):
                part = rounded(source[start:stop].clone(), first=12_345 + start)
                assert torch.equal(part, whole[start:stop])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(rounded(source[:0]), whole[:0])


def test_numbers_are_pinned_because_a_resumed_run_must_meet_them_again():
    assert numbers(4).tolist() == [23171, 31012, 57579, 58398]
    assert numbers(2, first=4095, step=1000).tolist() == [26158, 64832]
    assert parameter_key(0, "a.weight") == 11912874920054538105


def test_numbers_are_uniform():
    counts = torch.bincount(numbers(1 << 20, bits=8) >> 8, minlength=256).double()
    chi_square = ((counts - 4096) ** 2 / 4096).sum()
    assert 255 - 5 * 22.6 < chi_square < 255 + 5 * 22.6


def test_numbers_of_other_elements_steps_and_keys_are_unrelated():
    size = 1 << 18

    def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
        return float(torch.corrcoef(torch.stack([a.float(), b.float()]))[0, 1])

    base = numbers(size, bits=10)
    for lag in (1, 2, 3, 64, 2047, 2048, 2049, 4095, 4096, 8192):  # halves of a tile are 2,048 apart
        assert abs(correlation(base[lag:], base[:-lag])) < 5 * size**-0.5, lag
    for other in (numbers(size, bits=10, step=2), numbers(size, bits=10, key=parameter_key(0, "b.weight")),
                  numbers(size, bits=10, key=parameter_key(1, "a.weight"))):  # fmt: skip
        assert abs(correlation(base, other)) < 5 * size**-0.5


def test_numbers_of_two_elements_are_unrelated_over_steps():
    steps = 2000
    over_steps = torch.stack([numbers(4096, step=step, bits=4)[torch.arange(0, 4096, 16)] for step in range(steps)])
    correlations = torch.corrcoef(over_steps.T.float()).fill_diagonal_(0.0) * steps**0.5
    assert correlations.abs().max() < 6.0
    assert 0.98 < correlations.square().mean() < 1.02  # as many near pairs as chance makes
