"""Completions of prompts by a decoder: instruction data, and abstractive summaries (Radford et al. 2019, Ouyang et al. 2022).

    prompt ids, completion ids, end        the loss is that of the completion and the end; the prompt is given

The model, its head and the loss are those of `headrace.tasks.causal_lm`.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.errors import UserError
from headrace.labelled.features import Feature
from headrace.labelled.row import Row, field_of
from headrace.params import Params
from headrace.tasks import causal_lm
from headrace.tasks.labelled import data_of
from headrace.tasks.metrics import rouge_f1
from headrace.text.batches import Microbatch
from headrace.text.vocabulary import Vocabulary

HEAD = causal_lm.HEAD
PEAK_LEARNING_RATE = 5e-5
CUT_PROMPT = "prompts cut at their beginning to the sequence length"
CUT_COMPLETION = "completions cut to the sequence length"

config = causal_lm.config
new_model = causal_lm.new_model
freeze_unused = causal_lm.freeze_unused
training_loss = causal_lm.training_loss
losses = causal_lm.losses


@dataclass(frozen=True)
class Example:
    source: str  # file:line
    prompt: str
    completion: str | None  # None: to be written


def metric(params: Params) -> str:
    return "eval/perplexity"


def parse(row: Row, params: Params, need_label: bool) -> Example:
    fields = data_of(params).fields
    completion = None
    if need_label or row.fields.get(fields.completion) is not None:
        completion = field_of(row, fields.completion, "data.fields.completion")
    return Example(row.source, field_of(row, fields.prompt, "data.fields.prompt"), completion)


def truth(example: Example) -> dict[str, Any]:
    known = {"prompt": example.prompt}
    return known | ({"truth": example.completion} if example.completion is not None else {})


def labels(examples: Sequence[Example], params: Params) -> None:
    """There are none."""


def rows_each(params: Params) -> int:
    return 1


def features(
    examples: Sequence[Example], params: Params, vocabulary: Vocabulary, length: int, notes: Counter[str]
) -> list[Feature]:
    """One feature an example: the end token, the prompt and the completion as inputs, completion and end as targets. What
    is too long loses the beginning of its prompt, and where that is not enough the end of its completion."""
    prompts = vocabulary.encode_batch([example.prompt for example in examples])
    completions = vocabulary.encode_batch([example.completion or "" for example in examples])
    end, found = vocabulary.sep_id, []
    for k, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        wanted = [*completion, end]
        if len(wanted) > length:
            wanted = wanted[:length]
            notes[CUT_COMPLETION] += 1
        given = [end, *prompt]
        room = length - len(wanted) + 1  # the last target is no input
        if len(given) > room:
            given = [end, *given[len(given) - room + 1 :]] if room > 1 else given[-1:]
            notes[CUT_PROMPT] += 1
        ids = np.array(given + wanted[:-1], np.int64)
        targets = np.arange(len(given) - 1, len(ids), dtype=np.int64)
        found.append(Feature((ids,), (np.zeros_like(ids),), k, None, targets, np.array(wanted, np.int64)))
    return found


def full_labels(params: Params, num_rows: int) -> np.ndarray:
    return np.zeros(0, np.int64)


def outputs(
    model: Any, microbatch: Microbatch, device: torch.device, run_head: Any = causal_lm.call
) -> list[np.ndarray]:
    """Negative log-likelihood in nats and whether the first guess is right, (M, 2), of each example's targets."""

    def head(hidden: Tensor, targets: Tensor, target_ids: Tensor) -> Tensor:
        return causal_lm.token_nlls(model, hidden.index_select(0, targets), target_ids)

    found = run_head(head, *causal_lm.encode(model, microbatch, device)).cpu().numpy()
    rows = microbatch.target_positions // microbatch.input_ids.shape[1]
    return [found[rows == row] for row in range(len(microbatch.input_ids))]


def predictions(
    outputs: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[Example], params: Params
) -> list[dict[str, Any]]:
    """How likely the known completion is; `headrace predict` writes completions of its own."""
    return [{"mean_nll": float(each[:, 0].mean()), "tokens": len(each)} for each in outputs]


def figures(
    outputs: Sequence[np.ndarray],
    predictions: Sequence[dict[str, Any]],
    features: Sequence[Feature],
    examples: Sequence[Example],
    params: Params,
) -> dict[str, float | None]:
    """Over the tokens of all completions, ends included."""
    if any(example.completion is None for example in examples):
        raise UserError(f"{data_of(params).fields.completion}: every row to judge by needs a completion")
    tokens = np.concatenate(list(outputs)).astype(np.float64)
    mean_nll = float(tokens[:, 0].mean())
    return {
        "eval/perplexity": math.exp(min(mean_nll, 100.0)),
        "eval/accuracy": float(tokens[:, 1].mean()),
        "eval/loss": mean_nll,
        "n_examples": len(examples),
        "n_predicted_tokens": len(tokens),
    }


def figures_of_written(pairs: Sequence[tuple[str, str]], language: str) -> dict[str, float]:
    """Of (truth, written) completions, one at least: the share that is the same but for white space around it, and mean
    ROUGE F1, each 0 to 1. Raises MissingExtraError."""
    score = rouge_f1(language)
    found = [
        {"exact_match": float(truth.strip() == written.strip()), **score(truth, written)} for truth, written in pairs
    ]
    return {name: float(np.mean([each[name] for each in found])) for name in found[0]}
