"""A rule in words, for plan, log and report; what is not exact is said."""

import torch

from headrace.optim.adafactor import Adafactor
from headrace.optim.adamw import AdamW
from headrace.optim.adamw_8bit import AdamW8bit
from headrace.optim.adamw_split import SplitAdamW
from headrace.optim.clip_value import ClipByValue
from headrace.optim.rule import Rule
from headrace.optim.sgd import SGD


def describe(rule: Rule) -> str:
    """Its name and state format, the same for all constants that may change while a run goes on. Snapshots hold these
    words, and those of another rule are refused by them."""
    match rule:
        case ClipByValue():
            return describe(rule.rule)
        case AdamW():
            return "AdamW (exact)"
        case SplitAdamW():
            return "AdamW on split bf16 weights (exact fp32 master weights; the model computes with their bf16 halves)"
        case AdamW8bit():
            return "8-bit AdamW (inexact: 8-bit moments)"
        case Adafactor(weight_dtype=torch.bfloat16):
            return "Adafactor on bf16 weights (inexact: weights rounded to bf16 at random)"
        case Adafactor():
            return "Adafactor on fp32 weights (exact)"
        case SGD():
            return "SGD with momentum (exact)" if rule.momentum else "SGD (exact)"
        case _:
            raise AssertionError(rule)
