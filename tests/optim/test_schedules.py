"""Schedules against closed forms, torch's schedulers and the published BERT numbers; the forms users may write."""

import math
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from headrace.optim import learning_rate
from headrace.schedule_params import (
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    LinearSchedule,
    PiecewiseSchedule,
    PolynomialSchedule,
    Schedule,
)

SCHEDULE: TypeAdapter[Any] = TypeAdapter(Schedule)
BERT = [LinearSchedule(start=0.0, end=1e-4, steps=10_000), LinearSchedule(start=1e-4, end=0.0, steps=1_000_000)]


def test_numbers_and_constants():
    assert learning_rate(3e-4, 0) == learning_rate(3e-4, 10**9) == 3e-4
    assert learning_rate(ConstantSchedule(value=3e-4), 10**9) == 3e-4
    assert learning_rate(ConstantSchedule(value=3e-4, steps=5), 10**9) == 3e-4
    assert isinstance(learning_rate(1, 0), float)


def test_linear_meets_both_ends_exactly_and_holds():
    schedule = LinearSchedule(start=0.3, end=0.1, steps=7)
    assert learning_rate(schedule, 0) == 0.3
    assert learning_rate(schedule, 3) == pytest.approx(0.3 - 0.2 * 3 / 7, rel=1e-14)
    assert [learning_rate(schedule, s) for s in (7, 8, 10**9)] == [0.1] * 3


def test_polynomial():
    schedule = PolynomialSchedule(start=1.0, end=0.2, steps=10, power=2.0)
    assert learning_rate(schedule, 0) == 1.0
    assert learning_rate(schedule, 4) == pytest.approx(0.8 * 0.6**2 + 0.2, rel=1e-14)
    assert [learning_rate(schedule, s) for s in (10, 11, 10**9)] == [0.2] * 3
    linear = PolynomialSchedule(start=1.0, end=0.2, steps=10)
    assert all(
        learning_rate(linear, s) == learning_rate(LinearSchedule(start=1.0, end=0.2, steps=10), s) for s in range(15)
    )


def test_polynomial_cycle_stretches_its_steps_to_the_next_multiple():
    schedule = PolynomialSchedule(start=1.0, end=0.0, steps=10, cycle=True)
    expected = {0: 1.0, 5: 0.5, 10: 0.0, 11: 1 - 11 / 20, 15: 0.25, 20: 0.0, 21: 1 - 21 / 30, 105: 1 - 105 / 110}
    assert {s: learning_rate(schedule, s) for s in expected} == pytest.approx(expected, rel=1e-12)
    followed = [schedule, ConstantSchedule(value=7.0)]
    assert [learning_rate(followed, s) for s in (9, 10, 15)] == pytest.approx([0.1, 7.0, 7.0])
    last = [ConstantSchedule(value=7.0, steps=3), schedule]
    assert learning_rate(last, 3 + 15) == 0.25
    assert learning_rate(last, 15, "global_step") == 0.25


def test_cosine():
    schedule = CosineSchedule(start=1.0, end=0.1, steps=8)
    assert learning_rate(schedule, 0) == 1.0
    assert learning_rate(schedule, 2) == pytest.approx(0.1 + 0.9 * (1 + math.sqrt(0.5)) / 2, rel=1e-14)
    assert learning_rate(schedule, 4) == pytest.approx(0.55, rel=1e-14)
    assert [learning_rate(schedule, s) for s in (8, 9, 10**9)] == [0.1] * 3


def test_exponential():
    smooth = ExponentialSchedule(start=1.0, decay_rate=0.25, decay_steps=10)
    assert [learning_rate(smooth, s) for s in (0, 5, 10, 20)] == pytest.approx([1.0, 0.5, 0.25, 0.0625], rel=1e-14)
    stairs = ExponentialSchedule(start=1.0, decay_rate=0.25, decay_steps=10, staircase=True)
    assert [learning_rate(stairs, s) for s in (0, 9, 10, 19, 20)] == [1.0, 1.0, 0.25, 0.25, 0.0625]
    ended = ExponentialSchedule(start=1.0, decay_rate=0.25, decay_steps=10, steps=5)
    assert [learning_rate(ended, s) for s in (5, 6, 10**9)] == pytest.approx([0.5] * 3, rel=1e-14)


def test_piecewise_changes_at_its_boundary_like_a_list_of_constants():
    schedule = PiecewiseSchedule(boundaries=(3, 5), values=(0.3, 0.2, 0.1))
    assert [learning_rate(schedule, s) for s in range(7)] == [0.3, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1]
    constants = [
        ConstantSchedule(value=0.3, steps=3),
        ConstantSchedule(value=0.2, steps=2),
        ConstantSchedule(value=0.1),
    ]
    for s in range(20):
        assert learning_rate(schedule, s) == learning_rate(constants, s) == learning_rate(constants, s, "global_step")
    ended = PiecewiseSchedule(boundaries=(3, 5), values=(0.3, 0.2, 0.1), steps=4)
    assert learning_rate(ended, 10**9) == 0.2


def test_pieces_in_sequence_join_where_they_say():
    assert learning_rate(BERT, 0) == 0.0
    assert learning_rate(BERT, 9_999) == pytest.approx(1e-4 * 0.9999, rel=1e-14)
    assert learning_rate(BERT, 10_000) == 1e-4
    assert learning_rate(BERT, 510_000) == pytest.approx(0.5e-4, rel=1e-14)
    assert learning_rate(BERT, 1_009_999) == pytest.approx(1e-10, rel=1e-9)
    assert [learning_rate(BERT, s) for s in (1_010_000, 10**9)] == [0.0, 0.0]


def test_pieces_on_the_global_step_as_google_bert():
    def bert(step: int) -> float:
        decayed = 1e-4 * (1 - min(step, 1_000_000) / 1_000_000)
        return 1e-4 * step / 10_000 if step < 10_000 else decayed

    assert learning_rate(BERT, 10_000, "global_step") == pytest.approx(0.99e-4, rel=1e-14)
    for step in (0, 1, 9_999, 10_000, 10_001, 500_000, 999_999, 1_000_000, 1_005_000, 1_010_000, 10**9):
        assert learning_rate(BERT, step, "global_step") == pytest.approx(bert(step), rel=1e-9, abs=1e-18)


def test_a_last_piece_with_steps_ends_with_its_interval_on_the_global_step():
    decay = ExponentialSchedule(start=1.0, decay_rate=0.5, decay_steps=10, steps=20)
    pieces = [ConstantSchedule(value=3.0, steps=10), decay]
    assert [learning_rate(pieces, s) for s in (9, 10, 20, 30, 31, 10**9)] == [3.0, 1.0, 0.5, 0.25, 0.25, 0.25]
    on_global = [learning_rate(pieces, s, "global_step") for s in (9, 10, 20, 30, 31, 10**9)]
    assert on_global == [3.0, 0.5, 0.25, 0.125, 0.125, 0.125]


def test_three_pieces_change_exactly_at_their_starts():
    pieces = [
        LinearSchedule(start=0.0, end=1.0, steps=4),
        ConstantSchedule(value=1.0, steps=2),
        CosineSchedule(start=1.0, end=0.0, steps=2),
    ]
    assert [learning_rate(pieces, s) for s in range(10)] == pytest.approx(
        [0.0, 0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0], abs=1e-15
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            LinearSchedule(start=0.1, end=0.4, steps=20),
            lambda o: torch.optim.lr_scheduler.LinearLR(o, start_factor=0.25, end_factor=1.0, total_iters=20),
        ),
        (
            PolynomialSchedule(start=0.4, end=0.0, steps=20, power=1.5),
            lambda o: torch.optim.lr_scheduler.PolynomialLR(o, total_iters=20, power=1.5),
        ),
        (
            ExponentialSchedule(start=0.4, decay_rate=0.9, decay_steps=1),
            lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.9),
        ),
        (
            PiecewiseSchedule(boundaries=(5, 9), values=(0.4, 0.04, 0.004)),
            lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [5, 9], gamma=0.1),
        ),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_same_rate_at_every_update_as_torch(ours, theirs):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler = theirs(optimizer)
    for step in range(30):
        assert learning_rate(ours, step) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_cosine_same_rate_as_torch():
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0.1)
    for step in range(21):  # theirs rises again afterwards
        ours = learning_rate(CosineSchedule(start=0.4, end=0.1, steps=20), step)
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (1e-4, 1e-4),
        ("1e-4", 1e-4),  # what YAML makes of 1e-4 without a point
        ({"kind": "constant", "value": 1}, ConstantSchedule(value=1.0)),
        (
            [
                {"kind": "linear", "start": 0, "end": 1e-4, "steps": 10_000},
                LinearSchedule(start=1e-4, end=0, steps=1_000_000),
            ],
            tuple(BERT),
        ),
        (
            {"kind": "piecewise", "boundaries": [1], "values": [1, 2]},
            PiecewiseSchedule(boundaries=(1,), values=(1.0, 2.0)),
        ),
    ],
)
def test_what_may_be_written_and_dumped_again(written, expected):
    schedule = SCHEDULE.validate_python(written)
    assert schedule == expected
    assert SCHEDULE.validate_python(SCHEDULE.dump_python(schedule, mode="json")) == expected
    assert learning_rate(schedule, 0) == learning_rate(expected, 0)


LINEAR = {"kind": "linear", "start": 0.0, "end": 1.0, "steps": 5}


@pytest.mark.parametrize(
    ("written", "where", "message"),
    [
        (-1.0, (), "greater than or equal to 0"),
        (float("nan"), (), "finite"),
        ("fast", (), "valid number"),
        ([], (), "at least one schedule"),
        ({"kind": "sine"}, (), "constant, linear, polynomial, cosine, exponential or piecewise"),
        ({"start": 1.0}, (), "constant, linear, polynomial, cosine, exponential or piecewise"),
        ({**LINEAR, "steps": 0}, ("steps",), "greater than 0"),
        ({**LINEAR, "stpes": 5}, ("stpes",), "Extra inputs"),
        ([LINEAR, {"kind": "cosine", "start": 1.0, "end": 0.0}], (1, "steps"), "Field required"),
        ([LINEAR, {"kind": "constant", "value": 1.0}, LINEAR], (), r"entry 1 \(constant\) needs steps"),
        ([1e-3, LINEAR], (0,), "should have kind: constant, linear,"),
        ({"kind": "piecewise", "boundaries": [3, 3], "values": [1, 2, 3]}, (), r"boundaries = \[3, 3\] must rise"),
        ({"kind": "piecewise", "boundaries": [3], "values": [1]}, (), "values has 1 entries for 1 boundaries; give 2"),
    ],
)
def test_what_may_not_be_written_gives_one_error_at_its_place(written, where, message):
    with pytest.raises(ValidationError, match=message) as caught:
        SCHEDULE.validate_python(written)
    (problem,) = caught.value.errors()
    tags = {"float", "one[kind]", "list[kind]", "linear", "cosine", "piecewise"}
    assert tuple(part for part in problem["loc"] if part not in tags) == where


def test_every_field_documents_itself():
    for model in (
        LinearSchedule,
        PolynomialSchedule,
        CosineSchedule,
        ExponentialSchedule,
        PiecewiseSchedule,
        ConstantSchedule,
    ):
        assert [n for n, f in model.model_fields.items() if not f.description] == ["kind"]


def test_lasts_is_when_the_next_begins():
    pieces = [CosineSchedule(start=1.0, end=0.0, steps=100, lasts=50), ConstantSchedule(value=7.0)]
    assert learning_rate(pieces, 49) == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.49)), rel=1e-12)
    assert learning_rate(pieces, 50) == 7.0
    held = [LinearSchedule(start=0.0, end=1.0, steps=10, lasts=20), ConstantSchedule(value=7.0)]
    assert [learning_rate(held, s) for s in (5, 10, 19, 20)] == [0.5, 1.0, 1.0, 7.0]
