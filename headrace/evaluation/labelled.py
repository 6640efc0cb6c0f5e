"""Evaluation and prediction on labelled rows: every feature once through the model, shortest together.

features -> outputs (headrace.tasks) -> predictions, one an example -> figures
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from headrace.evaluation.evaluate import results_of_batches
from headrace.evaluation.room import BATCH_EXAMPLES, Room
from headrace.labelled.features import Feature, FeatureRule, by_length, make_batch
from headrace.params import Params
from headrace.planning.device import Precision, microbatch_tokens
from headrace.progress import progress
from headrace.streaming.executor import Streaming
from headrace.tasks import RunHead, labelled_task_of
from headrace.tasks.labelled import LabelledSet
from headrace.text.batches import Microbatch


def evaluate_labelled(
    params: Params,
    model: PreTrainedModel,
    data: LabelledSet,
    precision: Precision,
    *,
    sequence_length: int,
    streaming: Streaming | None = None,
    room: Room | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The figures of the task on labelled rows, with how many they rest on, and a prediction for each example; no figures
    where there are no rows."""
    if not data.examples:
        return {}, []
    task = labelled_task_of(params)
    started_s = time.perf_counter()
    outputs = outputs_of(params, model, data.features, precision, sequence_length, streaming, room)
    elapsed_s = time.perf_counter() - started_s
    predictions = task.predictions(outputs, data.features, data.examples, params)
    figures: dict[str, Any] = task.figures(outputs, predictions, data.features, data.examples, params)
    figures |= {"sequence_length": sequence_length, "samples_per_s": len(data.examples) / elapsed_s}
    return figures, predictions


def outputs_of(
    params: Params,
    model: PreTrainedModel,
    features: Sequence[Feature],
    precision: Precision,
    sequence_length: int,
    streaming: Streaming | None = None,
    room: Room | None = None,
) -> list[np.ndarray]:
    """What the model says of each feature, in their order. room: how much is in memory at once."""
    task = labelled_task_of(params)
    rule = FeatureRule(
        sequence_length,
        getattr(model.config, "pad_token_id", None) or 0,
        room.microbatch_tokens if room else microbatch_tokens(params, model.config, precision),
        model.config.hidden_size,
    )
    chunks = [features[start : start + BATCH_EXAMPLES] for start in range(0, len(features), BATCH_EXAMPLES)]
    batches = (make_batch(chunk, rule) for chunk in chunks)

    def outputs(microbatch: Microbatch, run_head: RunHead) -> list[np.ndarray]:
        return task.outputs(model, microbatch, precision.device, run_head)

    found: list[np.ndarray] = []
    with progress("Predicting", len(features), "examples") as meter:
        results = results_of_batches(outputs, model, batches, precision, streaming, room)
        for chunk, (_, parts) in zip(chunks, results, strict=True):
            of_batch = dict(zip(by_length(chunk), (each for part in parts for each in part), strict=True))
            found += [of_batch[k] for k in range(len(chunk))]
            meter.advance(len(chunk))
    return found
