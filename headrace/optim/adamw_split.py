"""AdamW on an fp32 master weight kept in two halves: bfloat16 weights that forward and backward compute with, and the other
16 bits as state (`split.py`). A pass streams 2 bytes a parameter instead of 4; the update is AdamW's on the master, bit
for bit.

    join weight and lower half -> AdamW -> split        the weight is the master rounded to nearest, ties away from zero

A tile at a time: no fp32 copy of a parameter is made.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from headrace.optim.adamw import BLOCK_ELEMENTS, AdamW
from headrace.optim.rule import Rule, tiles
from headrace.optim.split import SPLIT_TILE_ELEMENTS, join, split

assert all(size % BLOCK_ELEMENTS == 0 for size in SPLIT_TILE_ELEMENTS.values()), "tiles are cuts that change no bit"


@dataclass(frozen=True)
class SplitAdamW(Rule):
    """`adamw` holds the constants."""

    adamw: AdamW = field(default_factory=AdamW)

    lower_half: ClassVar[str | None] = "lower_half"
    exact: ClassVar[bool] = True
    needs_whole_parameter: ClassVar[bool] = False
    cut_elements: ClassVar[int] = BLOCK_ELEMENTS
    weight_dtype: ClassVar[torch.dtype] = torch.bfloat16

    @property
    def weight_decay(self) -> float:
        return self.adamw.weight_decay

    def state_of(self, shape: Sequence[int]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return {**self.adamw.state_of(shape), "lower_half": (torch.Size(shape), torch.int16)}

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
        for pieces in zip(weights, gradients, *state, strict=True):
            weight, gradient, exp_avg, exp_avg_sq, lower = (piece.view(-1) for piece in pieces)
            for cut in tiles(weight.numel(), weight.device, SPLIT_TILE_ELEMENTS):
                master = torch.empty(cut.stop - cut.start, device=weight.device)
                join(weight[cut], lower[cut], master)
                self.adamw.compute(
                    [master], [gradient[cut]], [exp_avg[cut]], [exp_avg_sq[cut]],
                    step=step, lr=lr, weight_decay=weight_decay, keys=keys,
                )  # fmt: skip
                split(master, weight[cut], lower[cut])
