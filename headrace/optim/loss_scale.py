"""Loss scaling for fp16 (Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740).

The loss is multiplied by the scale before backward, so that small gradients do not become 0 in fp16; the update divides
by it.
Enters: whether a step's gradients were all finite. Leaves: the state for the next step; a step that was not is skipped.

    finite:      good_steps + 1; after growth_steps in a row the scale doubles, up to max_scale
    not finite:  the scale halves; below min_scale the run cannot go on

Powers of two only shift the exponent, so multiplying and dividing by the scale is exact.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from headrace.errors import UserError


@dataclass(frozen=True)
class LossScale:
    """The scale of the next step and what decides its changes; defaults are Cerebras Model Zoo's."""

    scale: float = 2.0**15
    good_steps: int = 0
    """Steps with finite gradients since the scale last changed or last stood at max_scale for growth_steps."""
    dynamic: bool = True
    """False: the scale never changes, and gradients that are not finite stop the run."""
    growth_steps: int = 2000
    min_scale: float = 2.0**-14
    max_scale: float = 2.0**15

    def __post_init__(self) -> None:
        assert 0.0 < self.scale < float("inf") and self.good_steps >= 0 and self.growth_steps > 0, self
        assert not self.dynamic or self.min_scale <= self.scale <= self.max_scale, self

    @classmethod
    def static(cls, scale: float) -> "LossScale":
        """A scale that never changes; 1.0 = no scaling."""
        return cls(scale=scale, dynamic=False)

    def after_step(self, finite: bool) -> "LossScale":
        """The state for the next step; raises UserError when gradients overflow and no smaller scale is allowed."""
        if not self.dynamic:
            if not finite:
                raise UserError(
                    f"gradients are not finite with the fixed loss scale {self.scale:g}; "
                    f"use a smaller one, a dynamic loss scale, bf16 or fp32, or a lower learning rate"
                )
            return self
        if not finite:
            if self.scale <= self.min_scale:
                raise UserError(
                    f"gradients are not finite even with the smallest loss scale {self.min_scale:g}: the cause is not "
                    f"fp16; lower the learning rate, clip gradients, or look at the data of this step"
                )
            return replace(self, scale=max(self.scale / 2, self.min_scale), good_steps=0)
        if self.good_steps + 1 < self.growth_steps:
            return replace(self, good_steps=self.good_steps + 1)
        return replace(self, scale=min(self.scale * 2, self.max_scale), good_steps=0)

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "LossScale":
        return cls(**state)
