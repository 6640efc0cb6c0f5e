"""Evaluation and prediction on features, by the tool's lines and figures."""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from headrace.evaluation.evaluate import results_of_batches
from headrace.evaluation.room import Room
from headrace.labelled.features import by_length, make_batch
from headrace.modelzoo.fine_tuning.feature_set import FeatureSet, Item
from headrace.modelzoo.fine_tuning.figures import batch_loss, figures_of, taken_by, taken_words
from headrace.modelzoo.fine_tuning.source import feature_rule
from headrace.modelzoo.vocabulary import entries_of
from headrace.params import Params
from headrace.planning.device import Precision, microbatch_tokens
from headrace.progress import progress, say
from headrace.streaming.executor import Streaming
from headrace.tasks import RunHead, labelled_task_of
from headrace.text.batches import Batch, Microbatch

Results = Iterator[tuple[Sequence[Item], Batch, list[np.ndarray]]]


def evaluate_features(
    params: Params,
    data: FeatureSet,
    batch_size: int,
    num_batches: int,
    model: PreTrainedModel,
    precision: Precision,
    *,
    job: str,
    tensorflow: bool,
    step: int,
    sequence_length: int,
    streaming: Streaming | None,
    room: Room | None,
) -> dict[str, Any]:
    """Evaluate and say so; the figures by the tool's names, and `loss`, the mean of the batches' losses."""
    started_s = time.perf_counter()
    outputs: list[np.ndarray] = []
    losses: list[float] = []
    items = data.items[: num_batches * batch_size]
    results = _results(params, items, batch_size, model, precision, sequence_length, streaming, room)
    for chosen, batch, found in results:
        outputs += found
        losses.append(batch_loss(job, found, chosen, batch))
        say(f"Evaluation [{len(losses)}/{num_batches}]")
    elapsed_s = time.perf_counter() - started_s
    rate = len(items) / elapsed_s
    say(f"Evaluation finished with {len(items)} samples in {elapsed_s:.2f} seconds, {rate:.2f} samples/second.")
    labels = params.data.labels if params.data is not None else None
    figures = figures_of(job, outputs, items, tensorflow=tensorflow, labels=labels, vocab_file=data.facts.vocab_file)
    if data.examples is not None and len(items) == len(data.items):
        task = labelled_task_of(params)
        said = task.predictions(outputs, data.features, data.examples, params)
        more = task.figures(outputs, said, data.features, data.examples, params)
        figures |= {name: more[name] for name in ("eval/exact", "eval/f1") if isinstance(more.get(name), float)}
    shown = {**dict(sorted(figures.items())), "loss": sum(losses) / len(losses)}
    say(f"Saving dict for global step {step}: " + ", ".join(f"{name} = {value:.8g}" for name, value in shown.items()))
    return {
        **shown,
        "eval/loss": shown["loss"],
        "n_examples": len(items),
        "sequence_length": sequence_length,
        "samples_per_s": rate,
    }


def predict_features(
    params: Params,
    data: FeatureSet,
    batch_size: int,
    model: PreTrainedModel,
    precision: Precision,
    path: Path,
    *,
    job: str,
    sequence_length: int,
    most: int | None,
    streaming: Streaming | None,
    room: Room | None,
) -> None:
    """A line of JSON for each example, the first `most` of them where that is given; of SQuAD's own files for each
    question."""
    items = data.items[:most] if most and data.examples is None else data.items
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    outputs: list[np.ndarray] = []
    written = 0
    with progress("Predicting", len(items), "examples") as meter, aside.open("w", encoding="utf-8") as file:
        for chosen, _, found in _results(params, items, batch_size, model, precision, sequence_length, streaming, room):
            if data.examples is not None:
                outputs += found
            else:
                for logits, item in zip(found, chosen, strict=True):
                    said = _prediction(job, logits, item, params, data)
                    file.write(json.dumps({**item.shown, "prediction": said}, ensure_ascii=False) + "\n")
                written += len(chosen)
            meter.advance(len(chosen))
        if data.examples is not None:
            task = labelled_task_of(params)
            answers = task.predictions(outputs, data.features, data.examples, params)
            for example, said in zip(data.examples, answers, strict=True):
                line = {"source": example.source, **task.truth(example), "prediction": said}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            written = len(answers)
    aside.replace(path)
    say(f"Predictions for {written:,} examples: {path}")


def _results(
    params: Params,
    items: Sequence[Item],
    batch_size: int,
    model: PreTrainedModel,
    precision: Precision,
    length: int,
    streaming: Streaming | None,
    room: Room | None,
) -> Results:
    """Batches of items with what the model says of each, in their order."""
    task = labelled_task_of(params)
    at_once = room.microbatch_tokens if room else microbatch_tokens(params, model.config, precision)
    rule = feature_rule(params, length, model.config, at_once)
    chunks = [items[start : start + batch_size] for start in range(0, len(items), batch_size)]
    batches = (make_batch([item.feature for item in chunk], rule) for chunk in chunks)

    def outputs(microbatch: Microbatch, run_head: RunHead) -> list[np.ndarray]:
        return task.outputs(model, microbatch, precision.device, run_head)

    results = results_of_batches(outputs, model, batches, precision, streaming, room)
    for chunk, (batch, parts) in zip(chunks, results, strict=True):
        order = by_length([item.feature for item in chunk])
        of_item = dict(zip(order, (each for part in parts for each in part), strict=True))
        yield chunk, batch, [of_item[k] for k in range(len(chunk))]


def _prediction(job: str, logits: np.ndarray, item: Item, params: Params, data: FeatureSet) -> dict[str, Any]:
    """What the logits of an example mean."""
    names = (params.data.labels if params.data is not None else None) or []
    if job == "classifier":
        scores = torch.from_numpy(logits).double().softmax(-1).tolist()
        best = int(np.argmax(logits))
        return {"label": names[best], "score": scores[best], "scores": dict(zip(names, scores, strict=True))}
    if job == "token_classifier":
        return {"labels": [names[i] for i in logits.argmax(-1)]}
    if job == "qa":
        start, stop, score = _best_span(logits, params.task.max_answer_tokens)
        return {"start_position": start, "end_position": stop, "score": score}
    taken = taken_by(logits)
    sentences = {int(start): k for k, start in enumerate(item.starts if item.starts is not None else ())}
    positions = item.feature.target_positions
    said: dict[str, Any] = {"sentences": [sentences[int(p)] for p in positions[taken != 0]]}
    said["scores"] = torch.from_numpy(logits).double().softmax(-1)[:, 1].tolist()
    name = data.facts.vocab_file
    if name is not None and Path(name).exists():
        said["words"] = taken_words(item, taken, entries_of(Path(name)).texts)
    return said


def _best_span(logits: np.ndarray, most: int) -> tuple[int, int, float]:
    """The likeliest first and last token of a window, at most so many tokens apart; 0 and 0: no answer there."""
    sums = logits[:, :1] + logits[:, 1]
    apart = np.arange(len(logits)) - np.arange(len(logits))[:, None]
    sums = np.where((apart >= 0) & (apart < most), sums, -np.inf)
    start, stop = divmod(int(sums.argmax()), len(logits))
    return start, stop, float(sums[start, stop])
