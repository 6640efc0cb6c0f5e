"""Forecasts: scores by hand, and a model that learnt a pattern goes on with it on the command line."""

import csv

import numpy as np
import pytest

from headrace.cli.forecast_stage import forecast_stage
from headrace.cli.stages import train_stage
from headrace.errors import UserError
from headrace.evaluation.forecast import mase, open_forecaster, seasonal_naive, smape
from headrace.params import dump_params, validate_params
from headrace.run_folder import RunFolder
from headrace.text.prepare import prepare


def test_scores_by_hand():
    context = np.array([1.0, 5.0, 2.0, np.nan, 4.0, 6.0])
    assert seasonal_naive(context, 3, 2).tolist() == [4.0, 6.0, 4.0]
    assert seasonal_naive(np.array([1.0, 5.0, 2.0, np.nan]), 2, 2).tolist() == [2.0, 5.0]
    # Changes over two steps: 2 - 1 and 4 - 2, two are unknown.
    assert mase(np.array([1.0, np.nan]), np.array([4.0, 9.0]), context, 2) == 3 / 1.5
    assert np.isnan(mase(np.array([1.0]), np.array([4.0]), np.ones(5), 2))
    assert smape(np.array([1.0, 0.0, np.nan]), np.array([3.0, 0.0, 1.0])) == pytest.approx((200 * 2 / 4 + 0) / 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny model of saw teeth of several heights, four points each."""
    folder = tmp_path_factory.mktemp("waves")
    rows = [f"s{i},{t},{(i + 1) * (t % 4 + 1)}" for i in range(12) for t in range(60)]
    (folder / "waves.csv").write_text("id,t,x\n" + "\n".join(rows) + "\n")
    params = validate_params(
        {
            "run": {"folder": folder / "run"},
            "text": {
                "input": str(folder / "waves.csv"),
                "format": "series",
                "held_out": 0.0,
                "workers": 1,
                "series": {"id": "id", "time": "t", "length": 24, "stride": 5, "horizon": 8, "held_out_points": 8},
                "vocabulary": {"size": 30},
            },
            "model": {
                "preset": "gpt2-tiny",
                "max_position_embeddings": 25,
                "hidden_dropout": 0,
                "attention_dropout": 0,
            },
            "task": {"kind": "causal_lm", "isolate_documents": True},
            "training": {
                "phases": [{"sequence_length": 25, "batch_size": 16, "steps": 40}],
                "learning_rate": 5e-3,
                "input_workers": 0,
            },
        }
    )
    run = RunFolder(params.run.folder)
    run.create()
    run.params.write_text(dump_params(params))
    prepare(params, run)
    train_stage(params)
    return run


def test_a_learnt_pattern_goes_on_at_its_scale(run):
    forecaster = open_forecaster(run.model.resolve(), 24)
    tooth = np.array([1.0, 2.0, 3.0, 4.0])
    for height in (1.0, 250.0):
        values = height * np.tile(tooth, 10)[:38]
        drawn = forecaster.forecast(values, 8, 20)
        assert drawn.shape == (20, 8)
        expected = height * np.tile(tooth, 12)[38:46]
        np.testing.assert_allclose(np.median(drawn, 0), expected, rtol=0.15)
    assert np.array_equal(forecaster.forecast(values, 8, 20), drawn)
    with pytest.raises(UserError, match="--horizon = 24 is not below 24"):
        forecaster.forecast(values, 24, 1)
    with pytest.raises(UserError, match="all missing"):
        forecaster.forecast(np.full(50, np.nan), 8, 1)
    forecaster.close()


def test_the_command_writes_quantiles_and_scores(run, tmp_path):
    forecast_stage(run.root, [], tmp_path / "out.csv", 8, 10, 0, None)
    rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
    assert len(rows) == 12 * 8 and rows[0]["series"] == "waves.csv:s0" and rows[0]["after"] == "59"
    assert [row["step"] for row in rows[:9]] == ["1", "2", "3", "4", "5", "6", "7", "8", "1"]
    assert all(float(row["q0.1"]) <= float(row["median"]) <= float(row["q0.9"]) for row in rows)
    forecast_stage(run.root, [], tmp_path / "scored.csv", 8, 10, 0, 3)  # these teeth have a season of four
    rows = list(csv.DictReader((tmp_path / "scored.csv").read_text().splitlines()))
    assert [float(row["actual"]) for row in rows[:8]] == [1, 2, 3, 4] * 2
    ours, naive = (
        sum(abs(float(row[name]) - float(row["actual"])) for row in rows) for name in ("median", "seasonal_naive")
    )
    assert ours < 0.3 * naive
