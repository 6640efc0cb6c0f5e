"""Evaluation of a language model on held-out documents, by pooled definitions.

masked_lm
    eval/accuracy_masked_lm   correct predicted tokens / predicted tokens, over the whole set
    eval/mlm_perplexity       exp(summed negative log-likelihood / predicted tokens); capped at e^100
    eval/accuracy_cls         correct next-sentence decisions / pairs
    eval/loss                 mean over predicted tokens + mean over pairs
causal_lm
    eval/accuracy             tokens that are the model's first guess / tokens, ends of documents included
    eval/perplexity           exp(summed negative log-likelihood / tokens); capped at e^100
    eval/loss                 the mean itself, in nats

Examples and masks are fixed by evaluation.mask_seed, so that figures of different checkpoints compare. Perplexities of
different vocabularies do not compare.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headrace.evaluation.room import BATCH_EXAMPLES, Room
from headrace.params import Params
from headrace.planning.device import Precision, microbatch_tokens
from headrace.progress import progress, say
from headrace.streaming.executor import Streaming
from headrace.tasks import RunHead, TextTask, text_task_of
from headrace.tasks.masked_lm import call
from headrace.text.batches import Batch, Microbatch
from headrace.text.examples import every_example, hold_two_texts
from headrace.text.tokens import TokenFolder
from headrace.text.vocabulary import Vocabulary

T = TypeVar("T")


@torch.no_grad()
def evaluate(
    params: Params,
    model: PreTrainedModel,
    tokens: TokenFolder,
    vocabulary: Vocabulary,
    precision: Precision,
    *,
    sequence_length: int,
    streaming: Streaming | None = None,
    room: Room | None = None,
) -> dict[str, Any]:
    """The figures above, with how many examples, tokens and pairs they rest on; empty when nothing is held out.

    streaming: of a model whose segments are fetched; None: all of it is at hand. room: how much of the set is in memory at
    once, which does not change a microbatch's figures; None: as if there were no limit.
    """
    if not _enough_held_out(params, tokens):
        return {}
    task = text_task_of(params)
    num_targets = num_pairs = num_examples = 0
    sums = torch.zeros((), dtype=torch.float64)
    started_s = time.perf_counter()
    with progress("Evaluating", params.evaluation.examples, "examples") as meter:
        most_tokens = room.microbatch_tokens if room else microbatch_tokens(params, model.config, precision)
        batches = _batches(params, tokens, vocabulary, sequence_length, most_tokens)
        for batch, parts in sums_of_batches(task, model, batches, precision, streaming, room):
            for part in parts:
                sums = sums + part
            num_targets += batch.num_targets
            num_pairs += batch.num_pairs
            num_examples += batch.num_examples
            meter.advance(batch.num_examples)
    elapsed_s = time.perf_counter() - started_s
    return {
        **task.figures(sums.tolist(), num_examples, num_targets, num_pairs),
        "sequence_length": sequence_length,
        "samples_per_s": num_examples / elapsed_s,
    }


def sums_of_batches(
    task: TextTask,
    model: PreTrainedModel,
    batches: Iterable[Batch],
    precision: Precision,
    streaming: Streaming | None = None,
    room: Room | None = None,
) -> Iterator[tuple[Batch, list[Tensor]]]:
    """Each batch with the task's sums over its microbatches, (J,) each; the model stays in evaluation mode."""

    def sums(microbatch: Microbatch, run_head: RunHead) -> Tensor:
        return task.evaluation_sums(model, microbatch, precision.device, run_head)

    return results_of_batches(sums, model, batches, precision, streaming, room)


@torch.no_grad()
def results_of_batches(
    function: Callable[[Microbatch, RunHead], T],
    model: PreTrainedModel,
    batches: Iterable[Batch],
    precision: Precision,
    streaming: Streaming | None = None,
    room: Room | None = None,
) -> Iterator[tuple[Batch, list[T]]]:
    """Each batch with function(microbatch, run_head) of its microbatches; the model stays in evaluation mode."""
    model.eval()
    with _passes(streaming, room) as run:
        for batch in batches:
            yield batch, run(batch, function, precision)


@contextmanager
def _passes(streaming: Streaming | None, room: Room | None) -> Iterator[Callable[..., list[Any]]]:
    """run(batch, function(microbatch, run_head), precision): results of all microbatches, without dropout."""

    def run_plainly(batch: Batch, function: Callable[..., Any], precision: Precision) -> list[Any]:
        with precision.autocast():
            return [function(microbatch, call) for microbatch in batch.microbatches]

    def run_streamed(batch: Batch, function: Callable[..., Any], precision: Precision) -> list[Any]:
        assert streaming is not None
        head = streaming.run_head
        found: list[Any] = []
        for group in streaming.groups(batch.microbatches):
            lanes = room.lanes if room else len(group)
            for start in range(0, len(group), lanes):
                with precision.autocast():
                    found += streaming.in_lanes(lambda m: function(m, head), group[start : start + lanes])
        return found

    if streaming is None:
        yield run_plainly
        return
    with streaming.evaluating():
        yield run_streamed


def describe(figures: dict[str, Any]) -> str:
    """The figures of an evaluation in one line; next-sentence figures only where there are pairs."""
    return ", ".join(
        f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value:,}"
        for name, value in figures.items()
        if value is not None and not (name == "n_pairs" and not value)
    )


def _enough_held_out(params: Params, tokens: TokenFolder) -> bool:
    shards = tokens.shards("held_out")
    pairs = params.task.examples == "sentence_pairs"
    enough = hold_two_texts(shards) if pairs else bool(shards)
    if not enough:
        needed = "two different held-out documents are" if pairs else "a held-out document is"
        say(
            f"No evaluation: {needed} needed and there are {sum(shard.info.num_documents for shard in shards)} in all; "
            f"raise text.held_out (now {params.text.held_out}) or give more documents"
        )
    return enough


def _batches(
    params: Params, tokens: TokenFolder, vocabulary: Vocabulary, sequence_length: int, most_tokens: int
) -> Iterator[Batch]:
    shards = tokens.shards("held_out")
    task = text_task_of(params)
    rule = task.example_rule(params, sequence_length, "evaluation", params.evaluation.mask_seed)
    layout = task.batch_rule(params, vocabulary, sequence_length, most_tokens)
    examples = islice(every_example(shards, rule), params.evaluation.examples)
    while chosen := list(islice(examples, BATCH_EXAMPLES)):
        spans, keys = zip(*chosen, strict=True)
        yield layout.batch(shards, spans, keys)
