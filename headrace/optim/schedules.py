"""Learning rates as pure functions of the step.

Enters: a Schedule (`headrace.schedule_params`) and a step, the number of updates made before this one (0 = the first).
Leaves: the learning rate of that update, a float. Nothing is remembered, so resuming needs the step alone.

    step     0 ........ 9,999 | 10,000 ................ 909,999 | 910,000 ...
    piece    linear 0 -> 1e-4 | linear 1e-4 -> 0, 900,000 steps | its end value, for ever

A piece that lasts n steps (its `lasts`, else its `steps`) and starts at step a is active in [a, a + n). What its formula sees
is chosen by `evaluated`:
in_sequence   the step since its start, step - a: pieces join where they say they do;
global_step   the step itself, as in Google's BERT (optimization.py), whose decay counts the warm-up's steps: linear
              0 -> 1e-4 in 10,000 steps, then linear 1e-4 -> 0 in 1,000,000, starts its decay at 0.99e-4.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from headrace.schedule_params import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PiecewiseSchedule,
    PolynomialSchedule,
    Schedule,
    duration,
)

Piece = (
    ConstantSchedule | LinearSchedule | PolynomialSchedule | CosineSchedule | ExponentialSchedule | PiecewiseSchedule
)


def learning_rate(
    schedule: Schedule, step: int, evaluated: Literal["in_sequence", "global_step"] = "in_sequence"
) -> float:
    """The learning rate of update number `step`, counted from 0."""
    assert step >= 0, f"step = {step}"
    if isinstance(schedule, int | float):
        return float(schedule)
    pieces: Sequence[Piece] = schedule if isinstance(schedule, Sequence) else (schedule,)
    assert pieces and all(piece.steps for piece in pieces[:-1]), f"all pieces but the last need steps: {pieces}"
    starts = list(accumulate((duration(piece) or 0 for piece in pieces[:-1]), initial=0))
    i = bisect_right(starts, step) - 1
    piece, start = pieces[i], starts[i]
    if piece.steps is not None and not (isinstance(piece, PolynomialSchedule) and piece.cycle):
        step = min(step, start + piece.steps)  # a finished last piece holds its end value; only a cycle never finishes
    return _value(piece, step - start if evaluated == "in_sequence" else step)


def _value(piece: Piece, step: int) -> float:
    match piece:
        case ConstantSchedule():
            return piece.value
        case LinearSchedule():
            return polynomial(step, piece.start, piece.end, piece.steps)
        case PolynomialSchedule():
            return polynomial(step, piece.start, piece.end, piece.steps, piece.power, piece.cycle)
        case CosineSchedule():
            return cosine(step, piece.start, piece.end, piece.steps)
        case ExponentialSchedule():
            return exponential(step, piece.start, piece.decay_rate, piece.decay_steps, piece.staircase)
        case PiecewiseSchedule():
            return piece.values[bisect_right(piece.boundaries, step)]


def polynomial(step: int, start: float, end: float, steps: int, power: float = 1.0, cycle: bool = False) -> float:
    """From start to end as (1 - step / steps)^power falls from 1 to 0; power 1 is linear.

    With cycle, steps is stretched to its next multiple at or after step (TensorFlow 1's `polynomial_decay`).
    """
    if cycle:
        steps *= max(1, -(-step // steps))
    return _between(start, end, (1.0 - min(step / steps, 1.0)) ** power)


def cosine(step: int, start: float, end: float, steps: int) -> float:
    """Half a cosine from start to end: one period of SGDR (Loshchilov & Hutter 2017, https://arxiv.org/abs/1608.03983)."""
    return _between(start, end, 0.5 * (1.0 + math.cos(math.pi * min(step / steps, 1.0))))


def exponential(step: int, start: float, decay_rate: float, decay_steps: int, staircase: bool = False) -> float:
    """start x decay_rate^(step / decay_steps); staircase rounds the exponent down."""
    return start * decay_rate ** (step // decay_steps if staircase else step / decay_steps)


def _between(start: float, end: float, share: float) -> float:
    # Exactly start at share 1 and exactly end at share 0; end + (start - end) * share could miss start by rounding.
    return share * start + (1.0 - share) * end
