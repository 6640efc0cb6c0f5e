"""Clipping by value: each element of a gradient is cut to [-max_value, max_value] before the rule sees it.

Unlike the global norm it waits for no other gradient, so it is part of the rule and works in any segment at any time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headrace.optim.rule import Rule


@dataclass(frozen=True)
class ClipByValue(Rule):
    """A rule on clipped gradients; all but `compute` is the inner rule's own."""

    rule: Rule
    max_value: float

    def __post_init__(self) -> None:
        assert self.max_value > 0.0, f"max_value = {self.max_value}"

    @property
    def lower_half(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.rule.lower_half

    @property
    def exact(self) -> bool:
        return self.rule.exact

    @property
    def needs_whole_parameter(self) -> bool:
        return self.rule.needs_whole_parameter

    @property
    def cut_elements(self) -> int:
        return self.rule.cut_elements

    @property
    def weight_dtype(self) -> torch.dtype:
        return self.rule.weight_dtype

    @property
    def weight_decay(self) -> float:
        return self.rule.weight_decay

    def state_of(self, shape: Sequence[int]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return self.rule.state_of(shape)

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
        for gradient in gradients:
            gradient.clamp_(-self.max_value, self.max_value)
        self.rule.compute(weights, gradients, *state, step=step, lr=lr, weight_decay=weight_decay, keys=keys)
