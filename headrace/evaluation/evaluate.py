"""Evaluation of a masked language model on held-out documents, by pooled definitions.

    eval/accuracy_masked_lm   correct predicted tokens / predicted tokens, over the whole set
    eval/mlm_perplexity       exp(summed negative log-likelihood / predicted tokens); capped at e^100
    eval/accuracy_cls         correct next-sentence decisions / pairs
    eval/loss                 mean over predicted tokens + mean over pairs

Examples and masks are fixed by evaluation.mask_seed, so that figures of different checkpoints compare. Perplexities of
different vocabularies do not compare.
"""

import math
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from transformers import BertForPreTraining

from headrace.params import Params
from headrace.planning.device import Precision, microbatch_tokens
from headrace.progress import progress, say
from headrace.tasks import masked_lm
from headrace.text.batches import Batch, make_batch
from headrace.text.examples import IS_NEXT, every_example, hold_two_texts
from headrace.text.tokens import TokenFolder
from headrace.text.vocabulary import Vocabulary

BATCH_EXAMPLES = 256


@torch.no_grad()
def evaluate(
    params: Params,
    model: BertForPreTraining,
    tokens: TokenFolder,
    vocabulary: Vocabulary,
    precision: Precision,
    *,
    sequence_length: int,
) -> dict[str, Any]:
    """The figures above, with how many examples, tokens and pairs they rest on; empty when nothing is held out."""
    if not _enough_held_out(params, tokens):
        return {}
    model.eval()
    nll = pair_nll = 0.0
    correct = num_targets = pair_correct = num_pairs = num_next = num_examples = 0
    started_s = time.perf_counter()
    with progress("Evaluating", params.evaluation.examples, "examples") as meter:
        for batch in _batches(params, model, tokens, vocabulary, precision, sequence_length):
            for microbatch in batch.microbatches:
                with precision.autocast():
                    outputs = masked_lm.forward(model, microbatch, precision.device)
                sums = masked_lm.sums(outputs)
                nll += sums.masked_nll.item()
                pair_nll += sums.pair_nll.item()
                correct += int((outputs.masked_logits.argmax(-1) == outputs.target_ids).sum())
                if outputs.pair_logits is not None:
                    pair_correct += int((outputs.pair_logits.argmax(-1) == outputs.pair_labels).sum())
                    num_next += int((outputs.pair_labels == IS_NEXT).sum())
            num_targets += batch.num_targets
            num_pairs += batch.num_pairs
            num_examples += batch.num_examples
            meter.advance(batch.num_examples)
    elapsed_s = time.perf_counter() - started_s
    mean_nll, mean_pair_nll = nll / max(num_targets, 1), pair_nll / max(num_pairs, 1)
    return {
        "eval/accuracy_masked_lm": correct / max(num_targets, 1),
        "eval/mlm_perplexity": math.exp(min(mean_nll, 100.0)),
        "eval/accuracy_cls": pair_correct / num_pairs if num_pairs else None,
        "eval/loss": mean_nll + mean_pair_nll,
        "n_examples": num_examples,
        "n_predicted_tokens": num_targets,
        "n_pairs": num_pairs,
        "is_next_share": num_next / num_pairs if num_pairs else None,
        "sequence_length": sequence_length,
        "samples_per_s": num_examples / elapsed_s,
    }


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
    params: Params,
    model: BertForPreTraining,
    tokens: TokenFolder,
    vocabulary: Vocabulary,
    precision: Precision,
    sequence_length: int,
) -> Iterator[Batch]:
    shards = tokens.shards("held_out")
    rule = masked_lm.example_rule(params, sequence_length, "evaluation", params.evaluation.mask_seed)
    layout = masked_lm.batch_rule(
        params, vocabulary, sequence_length, microbatch_tokens(params, model.config, precision)
    )
    examples = islice(every_example(shards, rule), params.evaluation.examples)
    while chosen := list(islice(examples, BATCH_EXAMPLES)):
        spans, keys = zip(*chosen, strict=True)
        yield make_batch(shards, spans, keys, layout)
