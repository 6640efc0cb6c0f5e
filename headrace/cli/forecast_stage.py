"""`headrace forecast`: a run trained on time series goes on with those of a table, or is judged on their last points."""

import csv
import io
from pathlib import Path

import numpy as np

from headrace.errors import UserError
from headrace.evaluation.forecast import QUANTILES, mase, open_forecaster, seasonal_naive, smape
from headrace.params import load_params
from headrace.progress import progress, say
from headrace.run_folder import RunFolder
from headrace.text.files import expand_paths
from headrace.text.series import iter_series
from headrace.text.source import series_options
from headrace.text.tokens import write_atomically


def forecast_stage(
    folder: Path, inputs: list[str], output: Path, horizon: int, num_samples: int, seed: int, season: int | None
) -> None:
    """Write one line a series and step; season: hold the last `horizon` points back and score against them."""
    run = RunFolder(folder)
    if not run.params.is_file() or not (run.model / "config.json").is_file():
        raise UserError(f"{folder}: is no run folder with a model in it; give the run.folder of a run on time series")
    text = load_params(run.params).text
    given = series_options(text)
    if given is None:
        raise UserError(f"{folder}: was trained on text.format = {text.format!r}, not on series; it cannot forecast")
    forecaster = open_forecaster(run.model.resolve(), given.length)
    rows = io.StringIO()
    table = csv.writer(rows, lineterminator="\n")
    names = ["median" if quantile == 0.5 else f"q{quantile:g}" for quantile in QUANTILES]
    table.writerow(["series", "after", "step", *names] + (["actual", "seasonal_naive"] if season else []))
    scores: list[tuple[float, float]] = []
    naive_scores: list[tuple[float, float]] = []
    with progress("Forecasting", None, "series") as meter:
        for path in expand_paths(inputs or text.input):
            for series in iter_series(path, given, text.encoding, text.invalid_bytes):
                values = series.values
                if season and len(values) < horizon + 2 * season:
                    say(f"{series.name}: has {len(values)} points, too few to be scored; left out")
                    continue
                context = values[:-horizon] if season else values
                drawn = forecaster.forecast(context, horizon, num_samples, seed)
                found = np.quantile(drawn, QUANTILES, axis=0)  # (Q, H)
                more = np.empty((0, horizon))
                if season:
                    naive = seasonal_naive(context, horizon, season)
                    more = np.stack([values[-horizon:], naive])
                    median = found[QUANTILES.index(0.5)]
                    actual = values[-horizon:]
                    scores.append((mase(actual, median, context, season), smape(actual, median)))
                    naive_scores.append((mase(actual, naive, context, season), smape(actual, naive)))
                after = "" if season else series.last_time or ""
                for step, numbers in enumerate(np.concatenate([found, more]).T.tolist(), 1):
                    table.writerow([series.name, after, step, *(f"{number:.6g}" for number in numbers)])
                meter.advance()
    forecaster.close()
    write_atomically(output, rows.getvalue().encode())
    say(f"Forecasts: {output}")
    if scores:
        ours_mase, ours_smape = np.nanmean(scores, axis=0).tolist()
        naive_mase, naive_smape = np.nanmean(naive_scores, axis=0).tolist()
        say(
            f"Last {horizon} points of {len(scores)} series: MASE {ours_mase:.3f}, sMAPE {ours_smape:.2f} %; seasonal naive "
            f"(season {season}): MASE {naive_mase:.3f}, sMAPE {naive_smape:.2f} %"
        )
