"""Multiple choice: which of several texts goes with a question.

Shapes: E questions, C choices of each, R = E C rows.
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

from headrace.errors import InputError
from headrace.labelled.features import Feature
from headrace.labelled.row import Row, field_of
from headrace.labelled.single_or_pair import join_texts
from headrace.params import Params
from headrace.tasks.labelled import data_of, head_config, inputs_of, is_decoder, labels_of, names_of
from headrace.tasks.labelled import new_model as new_labelled_model
from headrace.text.batches import Batch, Microbatch
from headrace.text.vocabulary import Vocabulary

HEAD = ""
PEAK_LEARNING_RATE = 5e-5
CUT = "questions with choices cut to the sequence length"


@dataclass(frozen=True)
class Example:
    source: str  # file:line
    question: str
    choices: tuple[str, ...]
    label: int | None  # of the right one, from 0; None: not known


def metric(params: Params) -> str:
    return "eval/accuracy"


def parse(row: Row, params: Params, need_label: bool) -> Example:
    """A question of a row; raises InputError for choices that are no texts, or a label that is none of them."""
    fields = data_of(params).fields
    question = field_of(row, fields.question, "data.fields.question")
    if len(fields.choices) == 1:
        choices = field_of(row, fields.choices[0], "data.fields.choices", list)
    else:
        choices = [field_of(row, name, "data.fields.choices") for name in fields.choices]
    if len(choices) < 2 or not all(isinstance(choice, str) for choice in choices):
        raise InputError(f"{row.source}: choices are {choices!r}; two texts or more are needed")
    label: int | None = None
    if need_label or row.fields.get(fields.label) is not None:
        given = str(field_of(row, fields.label, "data.fields.label", (str, int)))
        if not given.isdigit() or int(given) >= len(choices):
            raise InputError(f"{row.source}: label {given!r} should be a number from 0 to {len(choices) - 1}")
        label = int(given)
    return Example(row.source, question, tuple(choices), label)


def truth(example: Example) -> dict[str, Any]:
    known = {"question": example.question, "choices": list(example.choices)}
    return known | ({"truth": example.label} if example.label is not None else {})


def labels(examples: Sequence[Example], params: Params) -> list[str]:
    """Numbers of the choices, which are as many for every question. Raises InputError."""
    count = len(examples[0].choices)
    return [str(i) for i in range(count)]


def rows_each(params: Params) -> int:
    return len(names_of(params))


def features(
    examples: Sequence[Example], params: Params, vocabulary: Vocabulary, length: int, notes: Counter[str]
) -> list[Feature]:
    """One feature a question, a row a choice."""
    decoder, count = is_decoder(config(params, vocabulary)), len(names_of(params))
    questions = vocabulary.encode_batch([example.question for example in examples])
    found = []
    for k, (example, question) in enumerate(zip(examples, questions, strict=True)):
        if len(example.choices) != count:
            raise InputError(
                f"{example.source}: has {len(example.choices)} choices, and the first question has {count}"
            )
        choices = vocabulary.encode_batch(list(example.choices))
        joined = [join_texts(question, choice, length, vocabulary, decoder) for choice in choices]
        notes[CUT] += any(cut for _, _, cut in joined)
        rows, types = tuple(row for row, _, _ in joined), tuple(kinds for _, kinds, _ in joined)
        found.append(Feature(rows, types, k, example.label))
    return found


def config(params: Params, vocabulary: Vocabulary | None) -> PretrainedConfig:
    return head_config(params, vocabulary, names_of(params))


def new_model(config: PretrainedConfig) -> PreTrainedModel:
    return new_labelled_model("multiple_choice", config)


def freeze_unused(model: Any, params: Params) -> None:
    """All weights are used."""


def full_labels(params: Params, num_rows: int) -> np.ndarray:
    """Labels of a microbatch that is only measured."""
    return np.zeros(num_rows // rows_each(params), np.int64)


def training_loss(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, batch: Batch, run_head: Any = None
) -> tuple[Tensor, Tensor]:
    """This microbatch's share of the mean loss over the batch's questions, and its summed loss (1,), detached."""
    loss = F.cross_entropy(_logits(model, microbatch, device), labels_of(microbatch, device), reduction="sum")
    return loss / batch.num_examples, loss.detach()[None]


def losses(sums: Sequence[float], batch: Batch) -> dict[str, float | None]:
    return {"label_loss": sums[0] / batch.num_examples}


def outputs(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, run_head: Any = None
) -> list[np.ndarray]:
    """Logits (C,) of each question."""
    return list(_logits(model, microbatch, device).cpu().numpy())


def _logits(model: PreTrainedModel, microbatch: Microbatch, device: torch.device) -> Tensor:
    """(E, C) fp32."""
    count = model.config.num_labels or 1
    inputs = {name: value.unflatten(0, (-1, count)) for name, value in inputs_of(model, microbatch, device).items()}
    return model(**inputs).logits.float()


def predictions(
    outputs: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[Example], params: Params
) -> list[dict[str, Any]]:
    """The number of the choice, its text, and the share of each."""
    found = []
    for logits, example in zip(outputs, examples, strict=True):
        shares = torch.from_numpy(logits).softmax(-1)
        best = int(shares.argmax())
        found.append({"label": best, "choice": example.choices[best], "scores": shares.tolist()})
    return found


def figures(
    outputs: Sequence[np.ndarray],
    predictions: Sequence[dict[str, Any]],
    features: Sequence[Feature],
    examples: Sequence[Example],
    params: Params,
) -> dict[str, float | None]:
    """Accuracy, and what choosing blindly would reach."""
    wanted = torch.tensor([example.label for example in examples])
    logits = torch.from_numpy(np.stack(outputs)).double()
    return {
        "eval/accuracy": (logits.argmax(-1) == wanted).double().mean().item(),
        "eval/loss": F.cross_entropy(logits, wanted).item(),
        "n_examples": len(examples),
        "blind_accuracy": 1 / logits.shape[1],
    }
