"""What decides an update: as `headrace.stream` takes it, a rule, its learning rate, clipping, and what is not decayed; and
the rule that a run's params ask for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from headrace.optim import SGD as SGDRule
from headrace.optim import Adafactor as AdafactorRule
from headrace.optim import AdamW as AdamWRule
from headrace.optim import AdamW8bit as AdamW8bitRule
from headrace.optim import ClipByValue, Rule, SplitAdamW, describe
from headrace.params import Params

LearningRate = float | Callable[[int], float]
"""A number, or a function of the number of updates done."""
NO_DECAY = ("bias", "norm", "Norm", "ln_")


@dataclass(frozen=True)
class Optimizer:
    rule: Rule
    lr: LearningRate
    max_norm: float | None = 1.0
    """Global norm that gradients are clipped to; None = no clipping."""
    no_decay: tuple[str, ...] = NO_DECAY
    """Parameters whose name contains one of these are not decayed."""

    @property
    def eager(self) -> bool:
        """Without a global norm to wait for, each segment on disk is updated in backward, and no gradient is held."""
        return self.max_norm is None

    def lr_at(self, updates: int) -> float:
        """Learning rate of the update that follows `updates` others."""
        return float(self.lr if isinstance(self.lr, float | int) else self.lr(updates))


def AdamW(
    lr: LearningRate,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    max_norm: float | None = 1.0,
    no_decay: Sequence[str] = NO_DECAY,
    weights: Literal["fp32", "split_bf16"] = "fp32",
) -> Optimizer:
    """AdamW in fp32, exactly `torch.optim.AdamW(fused=True)` behind `clip_grad_norm_(max_norm)`: 12 bytes a parameter.

    weights: split_bf16 keeps the fp32 weight in two halves of 16 bits. The model computes with the first, a bfloat16
    (rounded to nearest, ties away from zero), which is all that a pass reads: 2 bytes a parameter. Updates are those of
    the whole, bit for bit."""
    rule = AdamWRule(betas, eps, weight_decay)
    return Optimizer(SplitAdamW(rule) if weights == "split_bf16" else rule, lr, max_norm, tuple(no_decay))


def AdamW8bit(
    lr: LearningRate,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    max_norm: float | None = 1.0,
    no_decay: Sequence[str] = NO_DECAY,
) -> Optimizer:
    """AdamW with 8-bit moments: 6 bytes a parameter; inexact."""
    return Optimizer(AdamW8bitRule(betas, eps, weight_decay), lr, max_norm, tuple(no_decay))


def Adafactor(
    lr: LearningRate,
    weight_decay: float = 0.0,
    clip_threshold: float = 1.0,
    weight_dtype: torch.dtype = torch.bfloat16,
    no_decay: Sequence[str] = NO_DECAY,
) -> Optimizer:
    """Adafactor on bf16 weights with stochastic rounding: 2 bytes a parameter; inexact. It clips each parameter's update
    by itself, so there is no global norm and no gradient outlives its segment's backward."""
    rule = AdafactorRule(clip_threshold=clip_threshold, weight_decay=weight_decay, weight_dtype=weight_dtype)
    return Optimizer(rule, lr, None, tuple(no_decay))


def SGD(
    lr: LearningRate,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    max_norm: float | None = 1.0,
    no_decay: Sequence[str] = (),
) -> Optimizer:
    """SGD, exactly `torch.optim.SGD(fused=True)`: 4 bytes a parameter, 8 with momentum."""
    return Optimizer(SGDRule(momentum, weight_decay=weight_decay), lr, max_norm, tuple(no_decay))


def update_rule(params: Params) -> Rule:
    """The rule of training.optimizer; its learning rate and clipping by norm are the loop's."""
    rule, value = _plain_rule(params), params.training.optimizer.max_gradient_value
    return ClipByValue(rule, value) if value is not None else rule


def _plain_rule(params: Params) -> Rule:
    optimizer = params.training.optimizer
    adam = (optimizer.betas, optimizer.eps, optimizer.weight_decay, optimizer.bias_correction)
    match optimizer.kind:
        case "adamw":
            return SplitAdamW(AdamWRule(*adam)) if optimizer.weights == "split_bf16" else AdamWRule(*adam)
        case "adamw_8bit":
            return AdamW8bitRule(*adam)
        case "adafactor":
            return AdafactorRule(
                clip_threshold=optimizer.clip_threshold,
                weight_decay=optimizer.weight_decay,
                weight_dtype=torch.bfloat16 if optimizer.weights == "bf16" else torch.float32,
            )
        case "sgd":
            return SGDRule(optimizer.momentum, weight_decay=optimizer.weight_decay)


def describe_optimizer(params: Params) -> str:
    """The run's rule and clipping in words."""
    optimizer = params.training.optimizer
    if optimizer.max_gradient_norm is not None:
        clipping = f"global norm clipped to {optimizer.max_gradient_norm:g}"
    elif optimizer.max_gradient_value is not None:
        clipping = f"gradients cut at +-{optimizer.max_gradient_value:g}; segments on disk are updated in backward"
    else:
        clipping = "no global norm; segments on disk are updated in backward"
    return f"{describe(update_rule(params))}, {clipping}"
