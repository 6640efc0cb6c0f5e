"""Questions whose answers stand in a context: SQuAD, JSQuAD (Rajpurkar et al. 2016, Kurihara et al. 2022).

A long context is read in windows, each a feature: [CLS] question [SEP] part of the context [SEP]. What is learnt of a window
is where the answer begins and ends; position 0, the [CLS], for a window that does not hold all of it.

Shapes: W windows, T token slots, L tokens of a window.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel

from headrace.errors import InputError, UserError
from headrace.labelled.features import Feature
from headrace.labelled.row import Row, field_of, shown
from headrace.labelled.scripts import is_unspaced
from headrace.labelled.spans import Encoded, encode_with_offsets, tokens_of_span, unmappable
from headrace.labelled.squad import check_answers
from headrace.labelled.tags import IGNORED
from headrace.labelled.windows import Answer, Window, best_answers, max_question_tokens, targets_of, windows_of
from headrace.params import Params
from headrace.tasks.labelled import data_of, head_config, inputs_of, is_decoder, labels_of
from headrace.tasks.labelled import new_model as new_labelled_model
from headrace.tasks.squad_metrics import exact_and_f1
from headrace.text.batches import Batch, Microbatch
from headrace.text.vocabulary import Vocabulary

HEAD = ""
PEAK_LEARNING_RATE = 5e-5
CUT = "questions cut to half a window"
NO_TOKEN = "answers without a token, which nothing is learnt of"
UNMAPPABLE = "answers of which tokens begin or end elsewhere"
TOO_LONG = "answers longer than task.max_answer_tokens"
NO_WINDOW = "answers that no window holds whole"


@dataclass(frozen=True)
class Example:
    source: str  # file:line, or file: article/paragraph/id
    id: str | None
    question: str
    context: str
    answers: tuple[tuple[int, str], ...] | None  # where each begins; () = there is none; None: not known


def metric(params: Params) -> str:
    return "eval/f1"


# --- rows -> features -------------------------------------------------------------------------------------------------


def parse(row: Row, params: Params, need_label: bool) -> Example:
    """Raises InputError for an answer that does not stand where it says, or for none where all should have one."""
    fields = data_of(params).fields
    question = field_of(row, fields.question, "data.fields.question")
    context = field_of(row, fields.context, "data.fields.context")
    answers, id = None, row.fields.get("id")
    if need_label or row.fields.get(fields.answers) is not None:
        answers = _answers(row, fields.answers, context)
        if need_label and not answers and not params.task.unanswerable:
            raise InputError(
                f"{row.source}: the question has no answer; set task.unanswerable to true if some questions have none."
            )
    return Example(row.source, None if id is None else str(id), question, context, answers)


def _answers(row: Row, name: str, context: str) -> tuple[tuple[int, str], ...]:
    given = field_of(row, name, "data.fields.answers", (dict, list))
    texts: Any
    starts: Any
    if isinstance(given, dict):
        texts, starts = given.get("text"), given.get("answer_start")
    else:
        rows = [each if isinstance(each, dict) else {} for each in given]
        texts, starts = [each.get("text") for each in rows], [each.get("answer_start") for each in rows]
    if not _all_of(texts, str) or not _all_of(starts, int):
        raise InputError(f"{row.source}: {name} is {shown(given)}; answers are {{text: [...], answer_start: [...]}}.")
    check_answers(context, texts, starts, row.source)
    return tuple(zip(starts, texts, strict=True))


def _all_of(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def truth(example: Example) -> dict[str, Any]:
    known = ({} if example.id is None else {"id": example.id}) | {"question": example.question}
    return known | ({"truth": [text for _, text in example.answers]} if example.answers is not None else {})


def labels(examples: Sequence[Example], params: Params) -> None:
    """There are none."""


def rows_each(params: Params) -> int:
    return 1


def features(
    examples: Sequence[Example], params: Params, vocabulary: Vocabulary, length: int, notes: Counter[str]
) -> list[Feature]:
    """One feature a window. Of several answers the first is learnt. label: IGNORED where no answer is known."""
    questions = encode_with_offsets(vocabulary, [example.question for example in examples])
    texts = list(dict.fromkeys(example.context for example in examples))
    contexts = dict(zip(texts, encode_with_offsets(vocabulary, texts), strict=True))
    for text, encoded in contexts.items():
        if vocabulary.kind != "wordpiece" or is_unspaced(text):
            contexts[text] = replace(encoded, words=None)  # answers are not to grow to words
    found = []
    for k, (example, question) in enumerate(zip(examples, questions, strict=True)):
        context = contexts[example.context]
        notes[CUT] += len(question) > max_question_tokens(length)
        windows = windows_of(question, context, vocabulary, length, params.task.stride)
        targets = _targets(example, context, windows, params, notes)
        for window, target in zip(windows, targets, strict=True):
            found.append(Feature((window.ids,), (window.types,), k, target, encoded=context, window=window))
    return found


def _targets(
    example: Example, context: Encoded, windows: Sequence[Window], params: Params, notes: Counter[str]
) -> list[tuple[int, int]]:
    if example.answers is None:
        return [(IGNORED, IGNORED)] * len(windows)
    if not example.answers:
        return [(0, 0)] * len(windows)
    start, text = example.answers[0]
    tokens = tokens_of_span(context, start, start + len(text))
    if tokens is None:
        notes[NO_TOKEN] += 1
        return [(IGNORED, IGNORED)] * len(windows)
    notes[UNMAPPABLE] += len(unmappable(example.context, context, [(start, start + len(text))]))
    notes[TOO_LONG] += tokens[1] - tokens[0] > params.task.max_answer_tokens
    targets = [targets_of(window, tokens) for window in windows]
    notes[NO_WINDOW] += not any(target != (0, 0) for target in targets)
    return targets


# --- model ------------------------------------------------------------------------------------------------------------


def config(params: Params, vocabulary: Vocabulary | None) -> PretrainedConfig:
    config = head_config(params, vocabulary, None, num_labels=2)
    if is_decoder(config):
        raise UserError(
            f"task.kind = 'question_answering' does not fit model {params.model.name!r}: it reads from left to right, and the "
            f"[CLS] before a window has to tell whether the answer is there; use an encoder, or causal_lm on data"
        )
    return config


def new_model(config: PretrainedConfig) -> PreTrainedModel:
    return new_labelled_model("question_answering", config)


def freeze_unused(model: Any, params: Params) -> None:
    """All weights are used."""


def full_labels(params: Params, num_rows: int) -> np.ndarray:
    return np.zeros((num_rows, 2), np.int64)


def training_loss(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, batch: Batch, run_head: Any = None
) -> tuple[Tensor, Tensor]:
    """This microbatch's share of the mean loss over the batch's windows, that of start and stop half each, and its summed
    loss (1,), detached. Padding is no choice, so that the loss does not depend on how windows share microbatches."""
    logits = _logits(model, microbatch, device)  # (W, T, 2)
    padding = torch.from_numpy(microbatch.example_ids == 0).to(device, non_blocking=True)
    logits = logits.masked_fill(padding[..., None], -torch.inf)
    loss = F.cross_entropy(logits, labels_of(microbatch, device), reduction="sum", ignore_index=IGNORED) / 2
    return loss * batch.loss_weight / batch.num_examples, loss.detach()[None]


def losses(sums: Sequence[float], batch: Batch) -> dict[str, float | None]:
    return {"label_loss": sums[0] * batch.loss_weight / batch.num_examples}


def outputs(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, run_head: Any = None
) -> list[np.ndarray]:
    """Logits (L, 2) of each window: of being the answer's first token and its last."""
    logits = _logits(model, microbatch, device).cpu().numpy()
    lengths = (microbatch.example_ids > 0).sum(1)
    return [window[:length] for window, length in zip(logits, lengths, strict=True)]


def _logits(model: PreTrainedModel, microbatch: Microbatch, device: torch.device) -> Tensor:
    """(W, T, 2) fp32."""
    found = model(**inputs_of(model, microbatch, device))
    return torch.stack([found.start_logits, found.end_logits], -1).float()


# --- outputs -> predictions -> figures --------------------------------------------------------------------------------


def predictions(
    outputs: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[Example], params: Params
) -> list[dict[str, Any]]:
    """The best answer over an example's windows, in the raw context; "" from 0 to 0 where there is none."""
    windows: list[list[int]] = [[] for _ in examples]
    for i, feature in enumerate(features):
        windows[feature.example].append(i)
    found = []
    for example, chosen in zip(examples, windows, strict=True):
        encoded = features[chosen[0]].encoded
        assert encoded is not None
        best = best_answers(
            [window for i in chosen if (window := features[i].window) is not None],
            [outputs[i][:, 0] for i in chosen],
            [outputs[i][:, 1] for i in chosen],
            example.context,
            encoded,
            params.task.max_answer_tokens,
            allow_none=params.task.unanswerable,
            align_to_words=encoded.words is not None,
        )
        answer = best[0] if best else Answer("", 0, 0, 0.0)
        found.append({"answer": answer.text, "start": answer.start, "stop": answer.stop, "score": answer.score})
    return found


def figures(
    outputs: Sequence[np.ndarray],
    predictions: Sequence[dict[str, Any]],
    features: Sequence[Feature],
    examples: Sequence[Example],
    params: Params,
) -> dict[str, float | None]:
    """Exact match and F1, means over the questions, each by the best of its answers; beside them those of questions with
    and without an answer, where there are both. loss: over windows."""
    each = np.array([_scores(example, guess["answer"]) for example, guess in zip(examples, predictions, strict=True)])
    exact, f1 = each.mean(0).tolist()
    found: dict[str, float | None] = {"eval/f1": f1, "eval/exact": exact, "eval/loss": _mean_loss(outputs, features)}
    answerable = np.array([bool(example.answers) for example in examples])
    if answerable.any() and not answerable.all():
        for name, side in (("answerable", answerable), ("unanswerable", ~answerable)):
            exact, f1 = each[side].mean(0).tolist()
            found |= {f"eval/f1_{name}": f1, f"eval/exact_{name}": exact}
    return {**found, "n_examples": len(examples), "n_windows": len(features)}


def _scores(example: Example, answer: str) -> tuple[float, float]:
    return exact_and_f1(answer, [text for _, text in example.answers or ()], is_unspaced(example.question))


def _mean_loss(outputs: Sequence[np.ndarray], features: Sequence[Feature]) -> float | None:
    known = [(logits, feature.label) for logits, feature in zip(outputs, features, strict=True)]
    found = [
        F.cross_entropy(torch.from_numpy(logits).double().T, torch.tensor(label)).item()
        for logits, label in known
        if label != (IGNORED, IGNORED)
    ]
    return float(np.mean(found)) if found else None
