"""AdamW with moments of 8 bits, 256 of them to a block with a scale of its own (Dettmers et al. 2021,
https://arxiv.org/abs/2110.02861); 2.03 bytes of state a parameter instead of 8. Weights are fp32.

An update decodes moments, is AdamW's in fp32, and encodes the new ones. The codes are small floating-point numbers, not
the paper's table: made and read with a shift and an addition instead of a search, and as wide where Adam needs it.

    exp_avg_sq   code c = 0 ... 255    value = scale 2^(c // 8) (1 + c % 8 / 8)                   32 octaves, 8 steps each
    exp_avg      sign, c = 0 ... 127   value = +-(scale 2^(c // 8) (1 + c % 8 / 8) - scale)       15 octaves, then linear to 0

`scale` is a power of two, chosen by the block's largest moment, or 0 where all are 0.

Why updates cannot explode: they are about m / sqrt(v). A code of v is at least 8/9 of v, and never 0 in a block that is not all 0:
what lies below the 32 octaves is raised to the smallest. m has half the octaves, so the smallest m and the smallest
sqrt(v) match; m = 0 stays 0, so an element without gradients does not move.
Why the codes are dithered: in a step v changes by a thousandth, and its codes are an eighth apart. Rounded to nearest it
would hardly move (measured: a factor of 4 off after 2,500 steps). Here a share of the steps equal to the fraction rounds up:
what is added before rounding down, the same for all blocks, runs through multiples of irrational numbers in step and index,
which fill an interval evenly. So no random numbers are needed, and v strays half as far as with them: by 17 % (standard
deviation), so sqrt(v) by 9 %. Its mean is right where v is steady; one that only falls, falls up to 7 % too fast.

Bits do not depend on cuts at multiples of 256 from a parameter's start, on threads or on memory. A last block may be short.
Moments mean nothing once a gradient is not finite; the weights are not finite then either.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headrace.optim.adamw import AdamW
from headrace.optim.rule import Rule, tiles

QUANTIZATION_BLOCK = 256
"""Moments that share a scale."""

_MANTISSA = 23  # bits in fp32
_DROPPED = 20  # of them, which leaves 3
_OCTAVES = 32  # of exp_avg_sq: 2^8 codes, 2^3 in each
_SIGN = -(2**31)

# In units of 2^-32: the fractional parts of the golden ratio (steps), and of two other square roots (elements, steps).
_GOLDEN, _ROOT_2, _ROOT_3 = 0x9E3779B9, 0x6A09E667, 0xBB67AE85


@dataclass(frozen=True)
class AdamW8bit(Rule):
    """The rule and its constants; see AdamW."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = True

    exact: ClassVar[bool] = False
    needs_whole_parameter: ClassVar[bool] = False
    cut_elements: ClassVar[int] = QUANTIZATION_BLOCK
    weight_dtype: ClassVar[torch.dtype] = torch.float32

    def __post_init__(self) -> None:
        AdamW(self.betas, self.eps, self.weight_decay)  # checks them

    def state_of(self, shape: Sequence[int]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        codes = (torch.Size(shape), torch.uint8)
        scales = (torch.Size([-(-torch.Size(shape).numel() // QUANTIZATION_BLOCK)]), torch.float32)
        return {"exp_avg": codes, "exp_avg_scale": scales, "exp_avg_sq": codes, "exp_avg_sq_scale": scales}

    def compute(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        *state: list[Tensor],
        step: int,
        lr: float,
        weight_decay: float,
        keys: Sequence[int] | None,
    ) -> None:
        correction1, correction2 = (1.0 - beta**step if self.bias_correction else 1.0 for beta in self.betas)
        for pieces in zip(weights, gradients, *state, strict=True):
            weight, gradient, m_codes, m_scales, v_codes, v_scales = (p.view(-1) for p in pieces)
            m_dither, v_dither = _dither(step, weight.device)
            for cut, blocks, width in _blocks(weight.numel(), weight.device):
                w, g, m_code, v_code = (p[cut].view(-1, width) for p in (weight, gradient, m_codes, v_codes))
                m_scale, v_scale = m_scales[blocks, None], v_scales[blocks, None]
                m, v = _decode_signed(m_code, m_scale), _decode_positive(v_code, v_scale)
                m.mul_(self.betas[0]).add_(g * (1.0 - self.betas[0]))
                v.mul_(self.betas[1]).add_(g.square().mul_(1.0 - self.betas[1]))
                if weight_decay:
                    w.mul_(1.0 - lr * weight_decay)
                # eps is scaled instead of sqrt(v), which saves a pass: m / (sqrt(v) / c + eps) = c m / (sqrt(v) + c eps)
                root = correction2**0.5
                # sqrt as 1 / rsqrt: torch.sqrt would wait for other threads, even for a tile
                denominator = v.rsqrt().reciprocal_().add_(root * self.eps)
                w.sub_(torch.div(m, denominator, out=denominator).mul_(lr * root / correction1))
                _encode_signed(m, m_dither[:width], m_code, m_scale)
                _encode_positive(v, v_dither[:width], v_code, v_scale)


def _blocks(size: int, device: torch.device) -> Iterator[tuple[slice, slice, int]]:
    """Yield (elements, blocks, elements in each block): tiles of whole blocks, and the short block at the end."""
    whole = size // QUANTIZATION_BLOCK * QUANTIZATION_BLOCK
    for cut in tiles(whole, device):
        yield cut, slice(cut.start // QUANTIZATION_BLOCK, cut.stop // QUANTIZATION_BLOCK), QUANTIZATION_BLOCK
    if whole < size:
        yield slice(whole, size), slice(whole // QUANTIZATION_BLOCK, whole // QUANTIZATION_BLOCK + 1), size - whole


def _dither(step: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """What to add before the dropped bits go, for each element of a block: in [0, 2^_DROPPED), int32 (256,)."""
    element = torch.arange(QUANTIZATION_BLOCK, device=device)
    m = (element * _ROOT_2 + step * _ROOT_3) % 2**32 >> (32 - _DROPPED)
    v = (element * _ROOT_2 + step * _GOLDEN) % 2**32 >> (32 - _DROPPED)
    return m.to(torch.int32), v.to(torch.int32)


def _scale_bits(largest: Tensor, headroom: int, octaves: int) -> Tensor:
    """Bits of the power of two `octaves` below the first one that largest, plus headroom, does not pass; 0 for 0."""
    exponent = ((largest + headroom) >> _MANTISSA) - octaves
    return (exponent.clamp_(1, 254 - octaves) << _MANTISSA).mul_(largest > 0)


def _encode_positive(x: Tensor, dither: Tensor, codes: Tensor, scale: Tensor) -> None:
    """x (blocks, width), not negative, is overwritten."""
    bits = x.view(torch.int32)
    # One step below the power of two, because the largest may be rounded up by a step.
    base = _scale_bits(bits.amax(1, keepdim=True), (1 << _DROPPED) - 1, _OCTAVES - 1)
    scale.copy_(base.view(torch.float32))
    codes.copy_(bits.sub_(base).add_(dither).bitwise_right_shift_(_DROPPED).clamp_(0, 255))


def _decode_positive(codes: Tensor, scale: Tensor) -> Tensor:
    bits = codes.to(torch.int32).bitwise_left_shift_(_DROPPED).add_(scale.view(torch.int32))
    return bits.view(torch.float32)


def _encode_signed(x: Tensor, dither: Tensor, codes: Tensor, scale: Tensor) -> None:
    """x (blocks, width) is overwritten."""
    sign = (x.view(torch.int32) >> 24).bitwise_and_(0x80)
    size = x.abs_()
    # Two steps below: one for rounding up, one because scale is added.
    base = _scale_bits(size.view(torch.int32).amax(1, keepdim=True), (2 << _DROPPED) - 1, _OCTAVES // 2 - 1)
    scale.copy_(base.view(torch.float32))
    bits = size.add_(scale).view(torch.int32)
    codes.copy_(bits.sub_(base).add_(dither).bitwise_right_shift_(_DROPPED).clamp_(0, 127).bitwise_or_(sign))


def _decode_signed(codes: Tensor, scale: Tensor) -> Tensor:
    bits = codes.to(torch.int32)
    sign = (bits << 24).bitwise_and_(_SIGN)
    bits.bitwise_and_(0x7F).bitwise_left_shift_(_DROPPED).add_(scale.view(torch.int32))
    x = bits.view(torch.float32).sub_(scale)
    bits.bitwise_or_(sign)
    return x
