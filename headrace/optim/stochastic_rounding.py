"""fp32 to bfloat16, up or down at random with the probabilities that keep the mean.

A bfloat16 weight has 8 bits: an update below 1/512 of it vanishes when rounded to nearest, each time. Rounded at random,
it moves the weight in one of many steps, and on average by what was asked.

    bits of x:  [ upper 16 | lower 16 ] + random number in [0, 65536), then the upper 16

The number is a hash of (parameter's key, step, index of the element in its parameter), so a result depends neither on
cuts, threads and devices nor on what was rounded before. Neighbouring bfloat16 are equally spaced in bits, so the carry
comes with exactly the right probability; a value that is a bfloat16 stays, and so do infinities and NaN. A finite value
beyond the largest bfloat16 may become infinite, as it may in any cast.

Numbers come in tiles of 4,096, two from each 32-bit hash of (lane, tile's key): the first half of a tile has the upper
halves of the hashes, the second the lower ones. Lanes and tile keys are SplitMix64's (`headrace.text.random`), and what
joins them is two rounds of xorshift and multiplication. Good enough for rounding; not a generator for anything else.
"""

import functools

import numpy as np
import torch
from torch import Tensor

from headrace.optim.rule import TILE_ELEMENTS
from headrace.text.random import bits, key

_TILE = 1 << 12


@functools.cache
def parameter_key(seed: int, name: str) -> int:
    """The key of a parameter's random numbers in a run with this seed."""
    return key("stochastic rounding", seed, name)


@torch.no_grad()
def round_stochastically(source: Tensor, target: Tensor, *, key: int, step: int, first: int = 0) -> None:
    """Fill target (bfloat16) from source (float32), elements [first, first + n) of the parameter that key belongs to."""
    assert source.dtype is torch.float32 and target.dtype is torch.bfloat16, (source.dtype, target.dtype)
    assert source.numel() == target.numel() and source.is_contiguous() and target.is_contiguous(), (
        "not alike, or strided"
    )
    source, target = source.view(-1), target.view(-1)
    end = first + source.numel()
    for start, numbers in _random_numbers(key, step, first, end, source.device):
        cut = slice(start - first, start - first + numbers.numel())
        x = source[cut]
        # In place: the numbers are this call's own.
        target[cut].view(torch.int16).copy_(numbers.add_(x.view(torch.int32)).bitwise_right_shift_(16))
        # A NaN of the largest patterns would have wrapped around to zero.
        target[cut].masked_fill_(x.isnan(), torch.nan)


def _random_numbers(key: int, step: int, first: int, end: int, device: torch.device):
    """Yield (start, random numbers in [0, 65536) of elements start ..., int32), which together cover [first, end)."""
    if first >= end:
        return
    group = -(-TILE_ELEMENTS[device.type] // _TILE) + 1  # as many as cover a rule's tile, wherever it starts
    numbers_of = np.arange(first // _TILE, (end - 1) // _TILE + 1)
    tile_keys = torch.from_numpy(bits(bits(key, np.array(step)), numbers_of).view(np.int32).reshape(-1, 2)[:, 0].copy())
    tile_keys = tile_keys[:, None].to(device)  # (tiles, 1)
    lanes = _lanes(device)  # (half a tile,)
    for i in range(0, len(tile_keys), group):
        x = lanes + tile_keys[i : i + group]
        # Shifts of int32 copy the sign. That costs the hash's highest bit before each multiplication, which spreads
        # the others over all bits again.
        x.bitwise_xor_(x >> 15).mul_(0x2C1B3C6D)
        x.bitwise_xor_(x >> 12).mul_(0x297A2D39)
        numbers = torch.empty(len(x), 2, _TILE // 2, dtype=torch.int32, device=device)
        torch.bitwise_right_shift(x, 16, out=numbers[:, 0]).add_(0x8000)
        torch.bitwise_and(x, 0xFFFF, out=numbers[:, 1])
        start = (first // _TILE + i) * _TILE
        begin = max(first, start)
        yield begin, numbers.view(-1)[begin - start : end - start]


@functools.cache
def _lanes(device: torch.device) -> Tensor:
    lanes = bits(key("stochastic rounding lanes"), np.arange(_TILE // 2))
    return torch.from_numpy(lanes.view(np.int32).reshape(-1, 2)[:, 0].copy()).to(device)
