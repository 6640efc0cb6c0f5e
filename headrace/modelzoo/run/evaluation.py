"""Evaluation on records, with the figures and the lines that users of the Model Zoo know.

eval/accuracy_cls          right next-sentence decisions / pairs
eval/accuracy_masked_lm    right predictions / masked tokens, over all batches together
eval/mlm_perplexity        exp(summed negative log-likelihood / masked tokens), capped at e^100
eval/accuracy, eval/lm_perplexity     of a GPT, likewise
eval/bits_per_byte         of a GPT in a TensorFlow file: mean negative log-likelihood in bits x the tool's tokens per byte
loss                       mean over batches of the loss of each, divided and weighed as eval_input and model say
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from transformers import PreTrainedModel

from headrace.evaluation.evaluate import sums_of_batches
from headrace.evaluation.room import Room
from headrace.modelzoo.fine_tuning.feature_set import FeatureSet
from headrace.modelzoo.fine_tuning.judge import evaluate_features
from headrace.modelzoo.params.model import FineTuning
from headrace.modelzoo.records.record_batches import every_batch
from headrace.modelzoo.run.records import OpenInput
from headrace.params import Params
from headrace.planning.device import Precision, microbatch_tokens
from headrace.progress import say
from headrace.streaming.executor import Streaming
from headrace.tasks import text_task_of
from headrace.text.batches import Batch

# Names of ours that the tool calls otherwise.
THEIRS = {"eval/perplexity": "eval/lm_perplexity"}


@dataclass(frozen=True)
class EvaluationSet:
    """What to evaluate on, batch_size at a time; steps: at most so many batches, None = all."""

    input: OpenInput | FeatureSet
    batch_size: int
    steps: int | None

    @property
    def num_batches(self) -> int:
        """A last batch that is not full counts only where it is the first, or drop_last is false."""
        size = self.input.size
        whole = size // self.batch_size
        if size % self.batch_size and (not whole or not self.input.facts.drop_last):
            whole += 1
        return min(whole, self.steps) if self.steps else whole


def evaluate_set(
    params: Params,
    data: EvaluationSet,
    model: PreTrainedModel,
    precision: Precision,
    *,
    tensorflow: bool,
    fine_tuning: FineTuning | None,
    step: int,
    sequence_length: int,
    streaming: Streaming | None,
    room: Room | None,
) -> dict[str, Any]:
    """Evaluate and say so: of pretraining `evaluate_records`, of fine-tuning `evaluate_features`."""
    if isinstance(data.input, OpenInput):
        return evaluate_records(
            params,
            data.input,
            data.batch_size,
            data.num_batches,
            model,
            precision,
            step=step,
            sequence_length=sequence_length,
            streaming=streaming,
            room=room,
        )
    assert fine_tuning is not None
    return evaluate_features(
        params,
        data.input,
        data.batch_size,
        data.num_batches,
        model,
        precision,
        job=fine_tuning.job,
        tensorflow=tensorflow,
        step=step,
        sequence_length=sequence_length,
        streaming=streaming,
        room=room,
    )


def evaluate_records(
    params: Params,
    records: OpenInput,
    batch_size: int,
    num_batches: int,
    model: PreTrainedModel,
    precision: Precision,
    *,
    step: int,
    sequence_length: int,
    streaming: Streaming | None,
    room: Room | None,
) -> dict[str, Any]:
    """Evaluate and say so; the figures under the names of `headrace.evaluation.evaluate`, and `loss`. Raises InputError for
    a damaged record."""
    task = text_task_of(params)
    tokens_at_once = room.microbatch_tokens if room else microbatch_tokens(params, model.config, precision)
    pad_id = getattr(model.config, "pad_token_id", None) or 0
    rule = records.rule(params, sequence_length, model.config.hidden_size, pad_id, tokens_at_once)
    started_s = time.perf_counter()
    batches = _counted(every_batch(records.records, rule, batch_size), num_batches)
    sums = torch.zeros((), dtype=torch.float64)
    losses: list[float] = []
    num_examples = num_targets = num_pairs = 0
    for batch, parts in sums_of_batches(task, model, batches, precision, streaming, room):
        of_batch = torch.stack(parts).sum(0)
        sums = sums + of_batch
        each = task.losses(of_batch.tolist()[:2], batch)
        losses.append(sum(loss for loss in each.values() if loss is not None))
        num_examples += batch.num_examples
        num_targets += batch.num_targets
        num_pairs += batch.num_pairs
    elapsed_s = time.perf_counter() - started_s
    rate = num_examples / elapsed_s
    say(f"Evaluation finished with {num_examples} samples in {elapsed_s:.2f} seconds, {rate:.2f} samples/second.")
    figures = {**task.figures(sums.tolist(), num_examples, num_targets, num_pairs), "loss": sum(losses) / len(losses)}
    tokens_per_byte, mean_nll = records.facts.tokens_per_byte, figures["eval/loss"]
    if tokens_per_byte is not None and mean_nll is not None:
        figures["eval/bits_per_byte"] = mean_nll / math.log(2) * tokens_per_byte
    shown = {THEIRS.get(name, name): value for name, value in sorted(figures.items()) if name.startswith("eval/")}
    shown.pop("eval/loss")
    shown["loss"] = figures["loss"]
    say(
        f"Saving dict for global step {step}: "
        + ", ".join(f"{name} = {value:.8g}" for name, value in shown.items() if value is not None)
    )
    return {**figures, "sequence_length": sequence_length, "samples_per_s": rate}


def _counted(batches: Iterator[Batch], count: int) -> Iterator[Batch]:
    """The first `count` batches, each told of when it is done."""
    for k, batch in enumerate(islice(batches, count)):
        yield batch
        say(f"Evaluation [{k + 1}/{count}]")
