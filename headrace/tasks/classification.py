"""Classification of a text or a pair of texts, and regression: a number in place of a label.

Shapes: E examples, K labels (1 for regression).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel

from headrace.errors import UserError
from headrace.labelled.features import Feature
from headrace.labelled.row import Row, field_of
from headrace.labelled.single_or_pair import join_texts
from headrace.params import Params
from headrace.tasks.labelled import (
    data_of,
    head_config,
    inputs_of,
    is_decoder,
    label_of,
    labels_of,
    names_of,
    number_of,
)
from headrace.tasks.labelled import new_model as new_labelled_model
from headrace.tasks.metrics import metrics_of_scikit_learn
from headrace.text.batches import Batch, Microbatch
from headrace.text.vocabulary import Vocabulary

HEAD = ""
METRIC = "eval/accuracy"
PEAK_LEARNING_RATE = 3e-5
CUT = "texts cut to the sequence length"


@dataclass(frozen=True)
class Example:
    source: str  # file:line
    text: str
    pair: str | None
    label: str | float | None  # None: not known


def metric(params: Params) -> str:
    return "eval/spearman" if params.task.kind == "regression" else METRIC


def parse(row: Row, params: Params, need_label: bool) -> Example:
    """An example of a row; raises UserError naming what is missing or no text."""
    fields = data_of(params).fields
    text = field_of(row, fields.text, "data.fields.text")
    pair = field_of(row, fields.pair, "data.fields.pair") if fields.pair is not None else None
    label: str | float | None = None
    if need_label or row.fields.get(fields.label) is not None:
        read = number_of if params.task.kind == "regression" else label_of
        label = read(row, fields.label, "data.fields.label")
    return Example(row.source, text, pair, label)


def truth(example: Example) -> dict[str, Any]:
    texts = {"text": example.text} if example.pair is None else {"text": example.text, "pair": example.pair}
    return texts | ({"truth": example.label} if example.label is not None else {})


def labels(examples: Sequence[Example], params: Params) -> list[str] | None:
    """All labels there are, sorted, numbers by their value; None for regression. Raises UserError for a single one."""
    if params.task.kind == "regression":
        return None
    found = {str(example.label) for example in examples}
    if len(found) < 2:
        raise UserError(
            f"data.train: all {len(examples):,} rows have the label {', '.join(found)!r}, so there is nothing to tell apart; "
            f"give rows of two labels or more, or name all labels in data.labels"
        )
    whole = all(label.lstrip("-").isdigit() for label in found)
    return sorted(found, key=int) if whole else sorted(found)


def rows_each(params: Params) -> int:
    return 1


def features(
    examples: Sequence[Example], params: Params, vocabulary: Vocabulary, length: int, notes: Counter[str]
) -> list[Feature]:
    """One feature an example. Raises UserError for a label that is none of data.labels."""
    decoder = is_decoder(config(params, vocabulary))
    ids = vocabulary.encode_batch([example.text for example in examples])
    pairs = vocabulary.encode_batch([example.pair or "" for example in examples])
    known = {label: i for i, label in enumerate(names_of(params))}
    found = []
    for k, (example, a, b) in enumerate(zip(examples, ids, pairs, strict=True)):
        row, types, cut = join_texts(a, b if example.pair is not None else None, length, vocabulary, decoder)
        notes[CUT] += cut
        label: int | float | None = None
        if isinstance(example.label, str):
            if example.label not in known:
                raise UserError(
                    f"{example.source}: label {example.label!r} is none of those that are learnt "
                    f"({', '.join(list(known)[:12])}); correct it, or name it in data.labels"
                )
            label = known[example.label]
        elif example.label is not None:
            label = example.label
        found.append(Feature((row,), (types,), k, label))
    return found


def config(params: Params, vocabulary: Vocabulary | None) -> PretrainedConfig:
    if params.task.kind == "regression":
        return head_config(params, vocabulary, None, num_labels=1, problem_type="regression")
    return head_config(params, vocabulary, names_of(params), problem_type="single_label_classification")


def new_model(config: PretrainedConfig) -> PreTrainedModel:
    return new_labelled_model("classification", config)


def freeze_unused(model: Any, params: Params) -> None:
    """All weights are used."""


def full_labels(params: Params, num_rows: int) -> np.ndarray:
    """Labels of a batch that is only measured."""
    return np.zeros(num_rows, np.float64 if params.task.kind == "regression" else np.int64)


def training_loss(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, batch: Batch, run_head: Any = None
) -> tuple[Tensor, Tensor]:
    """This microbatch's share of the mean loss over the batch's examples, and its summed loss (1,), detached."""
    logits = model(**inputs_of(model, microbatch, device)).logits.float()  # (E, K)
    wanted = labels_of(microbatch, device)
    if wanted.is_floating_point():
        loss = F.mse_loss(logits[:, 0], wanted.float(), reduction="sum")
    else:
        loss = F.cross_entropy(logits, wanted, reduction="sum")
    return loss / batch.num_examples, loss.detach()[None]


def losses(sums: Sequence[float], batch: Batch) -> dict[str, float | None]:
    return {"label_loss": sums[0] / batch.num_examples}


def outputs(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, run_head: Any = None
) -> list[np.ndarray]:
    """Logits (K,) of each feature."""
    return list(model(**inputs_of(model, microbatch, device)).logits.float().cpu().numpy())


def predictions(
    outputs: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[Example], params: Params
) -> list[dict[str, Any]]:
    """label and score as `pipeline("text-classification")` gives them, and all scores; regression: the number."""
    if params.task.kind == "regression":
        return [{"label": float(logits[0])} for logits in outputs]
    names, found = names_of(params), []
    for logits in outputs:
        shifted = np.exp(logits - logits.max())
        scores = shifted / shifted.sum()
        best = int(scores.argmax())
        found.append(
            {
                "label": names[best],
                "score": float(scores[best]),
                "scores": {name: float(score) for name, score in zip(names, scores, strict=True)},
            }
        )
    return found


def figures(
    outputs: Sequence[np.ndarray],
    predictions: Sequence[dict[str, Any]],
    features: Sequence[Feature],
    examples: Sequence[Example],
    params: Params,
) -> dict[str, float | None]:
    """Accuracy, macro-averaged F1 and Matthews' correlation by scikit-learn, over labels that occur; for regression
    Pearson's and Spearman's correlation and the mean squared error."""
    logits = torch.from_numpy(np.stack(outputs)).double()
    wanted = torch.tensor([feature.label for feature in features])
    if params.task.kind == "regression":
        return _regression_figures(logits[:, 0].numpy(), wanted.double().numpy())
    metrics = metrics_of_scikit_learn()
    truth, guess = [str(e.label) for e in examples], [p["label"] for p in predictions]
    commonest = Counter(truth).most_common(1)[0][1] / len(truth)
    return {
        "eval/accuracy": float(metrics.accuracy_score(truth, guess)),
        "eval/f1_macro": float(metrics.f1_score(truth, guess, average="macro", zero_division=0)),
        "eval/mcc": float(metrics.matthews_corrcoef(truth, guess)),
        "eval/loss": F.cross_entropy(logits, wanted).item(),
        "n_examples": len(truth),
        "commonest_label_share": commonest,
    }


def _regression_figures(guess: np.ndarray, truth: np.ndarray) -> dict[str, float | None]:
    """Correlations are None where one side does not vary."""
    varies = len(truth) > 1 and np.ptp(truth) > 0 and np.ptp(guess) > 0
    return {
        "eval/pearson": float(np.corrcoef(guess, truth)[0, 1]) if varies else None,
        "eval/spearman": float(np.corrcoef(_ranks(guess), _ranks(truth))[0, 1]) if varies else None,
        "eval/loss": float(np.mean((guess - truth) ** 2)),
        "n_examples": len(truth),
    }


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, the mean rank for equals: Spearman's correlation is Pearson's of these."""
    _, where, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[where]
