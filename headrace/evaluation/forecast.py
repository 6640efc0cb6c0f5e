"""A causal language model over bins of numbers goes on with time series: many times, and the spread is the forecast.

    values -> over the scale of the context -> ids -> S continuations of H bins, drawn as the model has them
           -> centres of the bins times the scale (S, H) -> median and quantiles

Arithmetic is fp32. Scores: MASE, the mean error over that of the season before inside the context (Hyndman and Koehler 2006),
and sMAPE in per cent; missing values count in neither.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoConfig, DynamicCache, PreTrainedModel

from headrace.errors import UserError
from headrace.evaluation.folder_model import FolderModel, blank_model, open_model, place
from headrace.models.adapters import adapter_config
from headrace.models.segments import segments_of
from headrace.tasks import causal_lm
from headrace.text.series import scale_of
from headrace.text.vocabulary import Vocabulary, open_vocabulary
from headrace.text.vocabulary.bins import FIRST_BIN_ID, bin_ids

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Forecaster:
    """`length`: points of the windows the model was trained on; a context and its horizon fit into one."""

    opened: FolderModel
    vocabulary: Vocabulary
    length: int

    def forecast(self, values: np.ndarray, horizon: int, num_samples: int, seed: int = 0) -> np.ndarray:
        """(num_samples, horizon) values that may follow values (N,), of which the last are read. Raises UserError."""
        if horizon >= self.length:
            raise UserError(
                f"--horizon = {horizon} is not below {self.length}, the points of a window the model was trained on; ask for "
                "fewer, or train with a larger text.series.length"
            )
        context = values[-(self.length - horizon) :]
        if np.isnan(context).all():
            raise UserError(f"the last {len(context)} values of a series are all missing: nothing to go on from")
        scale = scale_of(context)
        ids = bin_ids(context / scale, self.vocabulary.bin_edges)
        read = torch.from_numpy(np.concatenate([[self.vocabulary.sep_id], ids]))[None]
        with self.opened.running() as model:
            drawn = draw_bins(model, read, horizon, num_samples, torch.Generator().manual_seed(seed))
        return self.vocabulary.bin_centres[drawn.numpy() - FIRST_BIN_ID] * scale

    def close(self) -> None:
        self.opened.close()


def open_forecaster(folder: Path, length: int) -> Forecaster:
    """The model and bins of a model folder. Raises UserError where it is of another kind."""
    vocabulary = open_vocabulary(folder)
    if vocabulary.kind != "bins":
        raise UserError(f"{folder}: its vocabulary is {vocabulary.kind}, not bins of numbers; it cannot forecast")
    config: Any = AutoConfig.from_pretrained(folder)
    causal_lm.check_config(config, config.model_type)
    device = torch.device("cpu")
    model = blank_model(lambda: causal_lm.new_model(config), device, adapter_config(folder))
    opened = open_model(folder, model, place(segments_of(model), None), device)
    return Forecaster(opened, vocabulary, length)


@torch.no_grad()
def draw_bins(model: PreTrainedModel, read: Tensor, horizon: int, num_samples: int, source: torch.Generator) -> Tensor:
    """(num_samples, horizon) ids of bins after read (1, T); neither ends nor missing values are drawn."""
    cache = DynamicCache(config=model.config)
    logits = model(input_ids=read, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1].float()
    cache.batch_repeat_interleave(num_samples)
    logits = logits.expand(num_samples, -1)
    drawn: list[Tensor] = []
    while True:
        shares = logits[:, FIRST_BIN_ID:].softmax(-1)  # of bins alone; every id behind the first bin's is one
        drawn.append(FIRST_BIN_ID + torch.multinomial(shares, 1, generator=source)[:, 0])
        if len(drawn) == horizon:
            return torch.stack(drawn, 1)
        logits = (
            model(input_ids=drawn[-1][:, None], cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1].float()
        )


def seasonal_naive(values: np.ndarray, horizon: int, season: int) -> np.ndarray:
    """(horizon,) the last season of values, again and again; a missing value is that of the season before."""
    filled = values.copy()
    for i in range(season, len(filled)):
        if np.isnan(filled[i]):
            filled[i] = filled[i - season]
    last = filled[-season:]
    return np.resize(last, horizon)


def mase(actual: np.ndarray, forecast: np.ndarray, context: np.ndarray, season: int) -> float:
    """Mean absolute error over the mean change from one season to the next in the context; nan where that is nothing."""
    usual = np.abs(context[season:] - context[:-season])
    usual = usual[~np.isnan(usual)]
    errors = np.abs(actual - forecast)
    errors = errors[~np.isnan(errors)]
    if not len(usual) or not len(errors) or usual.mean() == 0:
        return float("nan")
    return float(errors.mean() / usual.mean())


def smape(actual: np.ndarray, forecast: np.ndarray) -> float:
    """Mean of 200 |actual - forecast| / (|actual| + |forecast|), 0 where both are 0; nan where nothing is known."""
    known = ~np.isnan(actual) & ~np.isnan(forecast)
    sizes = np.abs(actual[known]) + np.abs(forecast[known])
    errors = np.abs(actual[known] - forecast[known])
    ratios = np.divide(errors, sizes, out=np.zeros_like(errors), where=sizes > 0)
    return float(200 * ratios.mean()) if len(ratios) else float("nan")
