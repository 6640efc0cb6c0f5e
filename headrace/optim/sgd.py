"""Stochastic gradient descent on flat slabs, in place, plain or with momentum; decay is coupled, as in torch.optim.SGD.

    g = g + decay w        b = momentum b + g        w = w - lr b        (Nesterov: w = w - lr (g + momentum b))

Bits: those of `torch.optim.SGD(fused=True)` for a list with one view for each parameter; what `adamw.py` says about cuts
holds for this kernel too. Without momentum they are also those of the unfused one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headrace.optim.adamw import BLOCK_ELEMENTS
from headrace.optim.rule import Rule


@dataclass(frozen=True)
class SGD(Rule):
    """The rule and its constants."""

    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    exact: ClassVar[bool] = True
    needs_whole_parameter: ClassVar[bool] = False
    cut_elements: ClassVar[int] = BLOCK_ELEMENTS
    weight_dtype: ClassVar[torch.dtype] = torch.float32

    def __post_init__(self) -> None:
        assert 0.0 <= self.momentum < 1.0 and self.weight_decay >= 0.0, self
        assert self.momentum or not self.nesterov, f"{self}: Nesterov's is a kind of momentum"

    def state_of(self, shape: Sequence[int]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Nothing without momentum."""
        return {"momentum_buffer": (torch.Size(shape), torch.float32)} if self.momentum else {}

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
        torch._fused_sgd_(  # pyright: ignore[reportPrivateImportUsage]
            weights,
            gradients,
            state[0] if state else [],
            lr=lr,
            weight_decay=weight_decay,
            momentum=self.momentum,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            is_first_step=step == 1,
        )
