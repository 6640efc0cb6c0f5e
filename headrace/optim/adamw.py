"""AdamW on flat slabs, in place (Loshchilov & Hutter 2019, https://arxiv.org/abs/1711.05101).

Enters: weight, gradient and two moments, each a contiguous tensor (N,) or a list of such pieces of slabs, and numbers.
Leaves: nothing; weight and moments are updated, and gradient is left multiplied by gradient_scale.

    m = beta1 m + (1 - beta1) g        v = beta2 v + (1 - beta2) g^2
    w = w (1 - lr decay) - lr m^ / (sqrt(v^) + eps)        m^ = m / (1 - beta1^step), v^ = v / (1 - beta2^step)

Bits. torch's CPU kernel computes whole vectors (8 floats with AVX2) and the rest of each tensor one element at a time.
The two round differently, so an element's last bit can depend on whether it is among the last few of its tensor.
Two consequences for whoever cuts slabs:
- to equal `torch.optim.AdamW(fused=True)` bit for bit, pass a list with one view for each parameter, not the whole slab
  (padding a parameter to a whole vector does not help: torch's own last elements are computed alone);
- to update a parameter in blocks, with the bits of one update, cut it at multiples of BLOCK_ELEMENTS from its start.
Where in memory a view begins, and the number of threads, make no difference.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headrace.optim.rule import Rule

BLOCK_ELEMENTS = 64
"""A parameter may be cut at multiples of this without changing a bit: the kernel's unit of work for a thread, and a
multiple of every vector length."""

# beta**step is exactly 0 in float64 for every beta below 1, so both corrections are exactly 1. float32 can hold it.
_STEP_WITHOUT_CORRECTION = 2.0**100


@dataclass(frozen=True)
class AdamW(Rule):
    """The rule and its constants; moments and the step belong to the store and the loop."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-6
    weight_decay: float = 0.01
    bias_correction: bool = True
    """False: m and v are used as they are, as in Google's BERT (optimization.py); early updates are larger."""

    exact: ClassVar[bool] = True
    needs_whole_parameter: ClassVar[bool] = False
    cut_elements: ClassVar[int] = BLOCK_ELEMENTS
    weight_dtype: ClassVar[torch.dtype] = torch.float32

    def __post_init__(self) -> None:
        assert all(0.0 <= beta < 1.0 for beta in self.betas), f"betas = {self.betas}"
        assert self.eps > 0.0 and self.weight_decay >= 0.0, f"eps = {self.eps}, weight_decay = {self.weight_decay}"

    def state_of(self, shape: Sequence[int]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return dict.fromkeys(("exp_avg", "exp_avg_sq"), (torch.Size(shape), torch.float32))

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
        exp_avgs, exp_avg_sqs = state
        # float32 like torch.optim's, on the device because a CUDA kernel reads it there.
        count = float(step) if self.bias_correction else _STEP_WITHOUT_CORRECTION
        steps = [torch.full((), count, dtype=torch.float32, device=weights[0].device)] * len(weights)
        torch._fused_adamw_(  # pyright: ignore[reportPrivateImportUsage]
            weights,
            gradients,
            exp_avgs,
            exp_avg_sqs,
            [],
            steps,
            lr=lr,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )
