"""Master weights in two halves: every bit comes back, and the upper half is torch's bfloat16 but for the ties it names."""

import pytest
import torch

from headrace.optim import join, split

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def patterns() -> torch.Tensor:
    """float32 with every upper half, and lower halves around each border: (65,536 * 40,)."""
    lower = torch.tensor([0, 1, 2, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF], dtype=torch.int32)
    lower = torch.cat([lower, torch.randint(0, 1 << 16, (31,), generator=torch.Generator().manual_seed(0)).int()])
    upper = torch.arange(1 << 16, dtype=torch.int32) << 16
    return (upper[:, None] + lower).flatten().view(torch.float32)


def halves_of(master: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    hi = torch.empty_like(master, dtype=torch.bfloat16)
    lo = torch.empty_like(master, dtype=torch.int16)
    split(master, hi, lo)
    return hi, lo


@pytest.mark.parametrize("device", DEVICES)
def test_every_bit_comes_back(device):
    master = patterns().to(device)
    kept = master.clone()
    hi, lo = halves_of(master)
    joined = torch.empty_like(master)
    join(hi, lo, joined)
    assert torch.equal(joined.view(torch.int32), kept.view(torch.int32))
    assert torch.equal(master.view(torch.int32), kept.view(torch.int32))


def test_the_upper_half_is_torchs_bfloat16_except_in_ties_above_an_even_one():
    master = patterns()
    master = master[~master.isnan()]
    ours = halves_of(master)[0].view(torch.int16).int()
    theirs = master.to(torch.bfloat16).view(torch.int16).int()
    bits = master.view(torch.int32)
    exceptions = (bits & 0x1FFFF) == 0x8000
    assert torch.equal(ours, theirs + exceptions.int())  # one further from zero
    distance = (halves_of(master)[0].double() - master.double()).abs()
    assert torch.equal(
        distance[master.abs() < 3e38], (master.bfloat16().double() - master.double()).abs()[master.abs() < 3e38]
    )


def test_lists_of_views_at_odd_places_and_of_any_shape():
    master = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    cuts = [slice(3, 4), slice(5, 60_000), slice(60_000, 100_000)]
    hi, lo, joined = torch.zeros(100_000).bfloat16(), torch.zeros(100_000, dtype=torch.int16), torch.zeros(100_000)
    split([master[c] for c in cuts], [hi[c] for c in cuts], [lo[c].view(-1, 1) for c in cuts])
    join([hi[c] for c in cuts], [lo[c] for c in cuts], [joined[c] for c in cuts])
    inside = torch.zeros(100_000).bool()
    for c in cuts:
        inside[c] = True
    assert torch.equal(joined, torch.where(inside, master, 0.0))


def test_infinity_and_values_that_round_to_it():
    master = torch.tensor([torch.inf, -torch.inf, 3.4e38, -3.4e38, torch.nan])
    hi, _ = halves_of(master)
    assert hi.tolist()[:4] == [torch.inf, -torch.inf, torch.inf, -torch.inf]
    assert hi[4].isnan()


@pytest.mark.parametrize("lo", [torch.zeros(3, dtype=torch.int32), torch.zeros(4, dtype=torch.int16)])
def test_slabs_that_do_not_match_are_refused(lo):
    with pytest.raises(AssertionError):
        split(torch.zeros(3), torch.zeros(3).bfloat16(), lo)
