"""Dynamic loss scaling: when the scale changes, where it stops, and that its state is plain JSON."""

import json

import pytest
import torch

from headrace.errors import UserError
from headrace.optim import LossScale


def after(state: LossScale, *finite: bool) -> LossScale:
    for f in finite:
        state = state.after_step(f)
    return state


def test_starts_at_the_top_and_stays_there():
    state = LossScale()
    assert (state.scale, state.good_steps) == (2.0**15, 0)
    state = after(state, *[True] * 2000)
    assert (state.scale, state.good_steps) == (2.0**15, 0)


def test_doubles_after_exactly_2000_good_steps_in_a_row():
    state = after(LossScale(scale=4.0), *[True] * 1999)
    assert (state.scale, state.good_steps) == (4.0, 1999)
    assert after(state, True) == LossScale(scale=8.0)
    assert after(state, False) == LossScale(scale=2.0)
    assert after(state, False, *[True] * 2000) == LossScale(scale=4.0)


def test_falls_to_the_smallest_scale_and_then_stops_the_run():
    state = after(LossScale(), *[False] * 29)
    assert state == LossScale(scale=2.0**-14)
    with pytest.raises(UserError, match=r"not finite even with the smallest loss scale 6\.10352e-05"):
        state.after_step(False)
    assert after(state, *[True] * 2000).scale == 2.0**-13


def test_does_not_step_over_its_limits():
    assert after(LossScale(scale=3.0, max_scale=5.0, growth_steps=1), True).scale == 5.0
    assert after(LossScale(scale=3.0, min_scale=2.0), False).scale == 2.0
    with pytest.raises(AssertionError):
        LossScale(scale=2.0**16)


def test_static_scale_never_changes_and_stops_the_run():
    state = LossScale.static(1024.0)
    assert after(state, *[True] * 5000) == state
    with pytest.raises(UserError, match="fixed loss scale 1024;"):
        state.after_step(False)
    assert LossScale.static(2.0**20).scale == 2.0**20


@pytest.mark.parametrize("state", [LossScale(), after(LossScale(scale=8.0), True, True), LossScale.static(128.0)])
def test_state_goes_through_json(state):
    assert LossScale.from_state(json.loads(json.dumps(state.state()))) == state


def test_grows_and_backs_off_as_torchs_grad_scaler():
    finite = [i % 7 != 5 for i in range(100)]
    ours = LossScale(scale=64.0, growth_steps=3, min_scale=2.0**-40, max_scale=2.0**40)
    scale, tracker = torch.tensor(64.0), torch.tensor(0, dtype=torch.int32)
    for f in finite:
        torch._amp_update_scale_(scale, tracker, torch.tensor(float(not f)), 2.0, 0.5, 3)
        ours = ours.after_step(f)
        assert (ours.scale, ours.good_steps) == (scale.item(), tracker.item())
