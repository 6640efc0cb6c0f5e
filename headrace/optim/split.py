"""An exact fp32 master weight in two 16-bit halves, so that a pass can stream half of its bytes.

    bits of master:  [ upper 16 | lower 16 ]       lo = lower 16, read as a signed number
                                                   hi = upper 16, plus one where lo is negative: nearest bfloat16

`hi` is the bfloat16 nearest to master, `lo` the distance to it in units of the 32nd bit. All 2^32 patterns come back
exactly: zeros of both signs, denormals, values that round up to infinity (hi is inf then, as in torch's cast), inf and NaN.

Ties. hi has the bits of `master.to(torch.bfloat16)`, which rounds ties to the even neighbour, except where that is the one
nearer to zero (lower half 0x8000, upper half even): hi then is the one further away. No code can do without an exception:
65,537 floats round to each even bfloat16, one more than 16 bits can tell apart. It concerns one pattern in 131,072 (but one
value in 16 of those that come from fp16), and both neighbours are equally near.
NaN. hi of the NaNs that x86 arithmetic makes (0x7FC00000, 0xFFC00000) is NaN; of others it may be infinite or zero.
"""

import torch

from headrace.optim.rule import Slab, pieces_of, tiles

SPLIT_TILE_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 22}
"""Elements to split or join at once: with so few operations a tile, calling them costs more than the cache saves (measured:
810 M parameters a second in SplitAdamW on one core, 380 M with the rules' tiles)."""


@torch.no_grad()
def split(master: Slab, hi: Slab, lo: Slab) -> None:
    """Fill hi (bfloat16) and lo (int16) from master (float32)."""
    for m, h, l in zip(pieces_of(master), pieces_of(hi), pieces_of(lo), strict=True):
        words, uppers, lowers = _integers(m, h, l)
        for tile in tiles(m.numel(), m.device, SPLIT_TILE_ELEMENTS):
            lowers[tile].copy_(words[tile])  # keeps the lower 16 bits
            # int32 wraps for NaNs of the largest patterns, and wraps back in join.
            uppers[tile].copy_(torch.add(words[tile], 0x8000).bitwise_right_shift_(16))


@torch.no_grad()
def join(hi: Slab, lo: Slab, out: Slab) -> None:
    """Fill out (float32) with the master that hi and lo came from."""
    for h, l, m in zip(pieces_of(hi), pieces_of(lo), pieces_of(out), strict=True):
        words, uppers, lowers = _integers(m, h, l)
        for tile in tiles(m.numel(), m.device, SPLIT_TILE_ELEMENTS):
            words[tile].copy_(uppers[tile]).bitwise_left_shift_(16).add_(lowers[tile])


def _integers(master: torch.Tensor, hi: torch.Tensor, lo: torch.Tensor) -> list[torch.Tensor]:
    found = [(t.dtype, t.numel(), t.is_contiguous()) for t in (master, hi, lo)]
    wanted = [(dtype, master.numel(), True) for dtype in (torch.float32, torch.bfloat16, torch.int16)]
    assert found == wanted, f"{found}, not {wanted}"
    types = (torch.int32, torch.int16, torch.int16)
    return [t.view(-1).view(dtype) for t, dtype in zip((master, hi, lo), types, strict=True)]
