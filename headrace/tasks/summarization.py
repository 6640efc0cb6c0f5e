"""Extractive summaries: the sentences of a text that sum it up (Liu 2019, Fine-tune BERT for Extractive Summarization).

    [CLS] sentence 0 [SEP] [CLS] sentence 1 [SEP] ...      types 0, 1, 0, 1, ...; at each [CLS]: is the sentence taken?

What is to be taken is not in the data, summaries are: sentences are taken greedily, one by one, as long as ROUGE-1 + ROUGE-2
of what is taken against the summary rises. The longest text is cut at the sequence length, after a whole sentence where
there is one.
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
from headrace.params import Params
from headrace.tasks.labelled import data_of, head_config, inputs_of
from headrace.tasks.labelled import new_model as new_labelled_model
from headrace.tasks.metrics import ROUGE, rouge_f1
from headrace.text.batches import Batch, Microbatch
from headrace.text.sentences import split_sentences
from headrace.text.vocabulary import Vocabulary

HEAD = ""
PEAK_LEARNING_RATE = 5e-5
CUT = "texts cut to the sequence length"
LEFT, TAKEN = 0, 1


@dataclass(frozen=True)
class Example:
    source: str  # file:line
    text: str
    sentences: tuple[str, ...]
    summary: str | None


def metric(params: Params) -> str:
    return "eval/rouge1"


def parse(row: Row, params: Params, need_label: bool) -> Example:
    fields, summary = data_of(params).fields, None
    if need_label or row.fields.get(fields.summary) is not None:
        summary = field_of(row, fields.summary, "data.fields.summary")
    text = field_of(row, fields.text, "data.fields.text")
    return Example(row.source, text, tuple(split_sentences(text, params.text.language)) or ("",), summary)


def truth(example: Example) -> dict[str, Any]:
    return {"text": example.text} | ({"truth": example.summary} if example.summary is not None else {})


def labels(examples: Sequence[Example], params: Params) -> list[str]:
    """Raises UserError where there is nothing to choose, as with English read as Japanese."""
    if all(len(example.sentences) < 2 for example in examples):
        raise UserError(
            f"text.language = {params.text.language!r}: no text of data.train has more than one sentence by it, so there is "
            f"nothing to choose from; 'ja' ends sentences at 。！？, 'en' at . ! ? before a space: set text.language"
        )
    return ["left", "taken"]


def rows_each(params: Params) -> int:
    return 1


def features(
    examples: Sequence[Example], params: Params, vocabulary: Vocabulary, length: int, notes: Counter[str]
) -> list[Feature]:
    """One feature an example; targets at the [CLS] of every sentence that fits."""
    return [_feature(k, example, params, vocabulary, length, notes) for k, example in enumerate(examples)]


def _feature(
    k: int, example: Example, params: Params, vocabulary: Vocabulary, length: int, notes: Counter[str]
) -> Feature:
    ids: list[int] = []
    types: list[int] = []
    firsts: list[int] = []
    for number, piece in enumerate(vocabulary.encode_batch(list(example.sentences))):
        whole = [vocabulary.cls_id, *piece, vocabulary.sep_id]
        if len(ids) + len(whole) > length:
            notes[CUT] += 1
            if ids:
                break
            whole = [*whole[: length - 1], vocabulary.sep_id]  # the first sentence alone is too long
        firsts.append(len(ids))
        ids += whole
        types += [number % 2] * len(whole)
    taken = np.zeros(len(firsts), np.int64)
    if example.summary is not None:
        taken[sorted(best_sentences(example.sentences[: len(firsts)], example.summary, params))] = TAKEN
    return Feature((np.array(ids),), (np.array(types),), k, None, np.array(firsts), taken)


def best_sentences(sentences: Sequence[str], summary: str, params: Params) -> list[int]:
    """The sentences taken greedily, in the order they were taken; at most task.sentences."""
    score = rouge_f1(params.text.language)
    taken: list[int] = []
    best = 0.0
    while len(taken) < min(params.task.sentences, len(sentences)):
        tried = {}
        for i in set(range(len(sentences))) - set(taken):
            found = score(summary, _joined([sentences[j] for j in sorted([*taken, i])], params))
            tried[i] = found["rouge1"] + found["rouge2"]
        i = max(tried, key=lambda i: (tried[i], -i))
        if tried[i] <= best:
            break
        best = tried[i]
        taken.append(i)
    return taken


def _joined(sentences: Sequence[str], params: Params) -> str:
    return ("" if params.text.language == "ja" else " ").join(sentences)


def config(params: Params, vocabulary: Vocabulary | None) -> PretrainedConfig:
    """Two outputs a sentence, or one, whose sigmoid is the share of `taken`, where model.config.id2label has one entry."""
    alone = len((params.model.config or {}).get("id2label", {})) == 1
    return head_config(params, vocabulary, ["taken"] if alone else ["left", "taken"])


def new_model(config: PretrainedConfig) -> PreTrainedModel:
    return new_labelled_model("summarization", config)


def freeze_unused(model: Any, params: Params) -> None:
    """All weights are used."""


def full_labels(params: Params, num_rows: int) -> np.ndarray:
    return np.zeros(0, np.int64)


def training_loss(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, batch: Batch, run_head: Any = None
) -> tuple[Tensor, Tensor]:
    """This microbatch's share of the mean loss over the batch's sentences, and its summed loss (1,), detached."""
    targets = torch.from_numpy(microbatch.target_ids).to(device)
    loss = F.cross_entropy(_logits(model, microbatch, device), targets, reduction="sum")
    return loss / batch.target_divisor, loss.detach()[None]


def losses(sums: Sequence[float], batch: Batch) -> dict[str, float | None]:
    return {"label_loss": sums[0] / batch.target_divisor}


def outputs(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, run_head: Any = None
) -> list[np.ndarray]:
    """Logits (S, 2) of each example's sentences."""
    logits = _logits(model, microbatch, device).cpu().numpy()
    rows = microbatch.target_positions // microbatch.input_ids.shape[1]
    return [logits[rows == row] for row in range(len(microbatch.input_ids))]


def _logits(model: PreTrainedModel, microbatch: Microbatch, device: torch.device) -> Tensor:
    """(M, 2) fp32: at the first token of each sentence. A single output stands beside a 0: a sigmoid is that softmax."""
    logits = model(**inputs_of(model, microbatch, device)).logits.flatten(0, 1)
    found = logits.index_select(0, torch.from_numpy(microbatch.target_positions).to(device)).float()
    return F.pad(found, (1, 0)) if found.shape[-1] == 1 else found


def predictions(
    outputs: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[Example], params: Params
) -> list[dict[str, Any]]:
    """The likeliest task.sentences sentences in the order of the text."""
    found = []
    for logits, example in zip(outputs, examples, strict=True):
        shares = torch.from_numpy(logits).softmax(-1)[:, TAKEN].numpy()
        chosen = sorted(np.argsort(-shares, kind="stable")[: params.task.sentences].tolist())
        summary = _joined([example.sentences[i] for i in chosen], params)
        found.append({"summary": summary, "sentences": chosen, "scores": [float(share) for share in shares]})
    return found


def figures(
    outputs: Sequence[np.ndarray],
    predictions: Sequence[dict[str, Any]],
    features: Sequence[Feature],
    examples: Sequence[Example],
    params: Params,
) -> dict[str, float | None]:
    """ROUGE F1 of the summaries, of as many first sentences, and of the best choice there is."""
    score = rouge_f1(params.text.language)
    first = params.task.sentences
    ways: dict[str, list[str]] = {
        "eval/": [prediction["summary"] for prediction in predictions],
        "lead_": [_joined(example.sentences[:first], params) for example in examples],
        "oracle_": [
            _joined([example.sentences[i] for i in np.flatnonzero(feature.target_ids == TAKEN)], params)
            for example, feature in zip(examples, features, strict=True)
        ],
    }
    found: dict[str, float | None] = {}
    for prefix, summaries in ways.items():
        scores = [score(e.summary or "", summary) for e, summary in zip(examples, summaries, strict=True)]
        found |= {f"{prefix}{name}": float(np.mean([each[name] for each in scores])) for name in ROUGE}
    logits = torch.from_numpy(np.concatenate(list(outputs))).double()
    targets = torch.from_numpy(np.concatenate([feature.target_ids for feature in features]))
    return found | {"eval/loss": F.cross_entropy(logits, targets).item(), "n_examples": len(examples)}
