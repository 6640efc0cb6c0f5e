"""--mode predict of pretraining models: what they say to every record, one line of JSON each.

BERT    positions, target_ids, predicted_ids (and predicted_tokens where the vocabulary is there) of the masked tokens, the mean
        log_likelihood of the true ones; random_next_probability and next_sentence_label (1 = a random next text) of pairs
GPT     predicted_ids: the likeliest next token at each position whose label counts; num_tokens, and the mean
        log_likelihood of the true ones

Log-likelihoods are in nats. record: its number through the files in name order, from 0. The tool has no such mode for
these models; for its fine-tuned ones it saves logits to predict/*.npz.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from transformers import BertForPreTraining, PreTrainedModel

from headrace.evaluation.evaluate import results_of_batches
from headrace.evaluation.room import Room
from headrace.modelzoo.records.record_batches import RecordBatchRule, numbered_batches
from headrace.modelzoo.run.records import OpenInput
from headrace.modelzoo.vocabulary import entries_of
from headrace.params import Params
from headrace.planning.device import Precision, microbatch_tokens
from headrace.progress import progress, say
from headrace.streaming.executor import Streaming
from headrace.tasks import causal_lm, masked_lm
from headrace.text.batches import Batch, Microbatch


class _Guesses(NamedTuple):
    """Of a microbatch: M predicted tokens, E records."""

    ids: np.ndarray  # (M,)
    log_likelihoods: np.ndarray  # (M,) of the true tokens
    random_next: np.ndarray  # (E,) probabilities, or (0,)


def predict_records(
    params: Params,
    data: OpenInput,
    batch_size: int,
    model: PreTrainedModel,
    precision: Precision,
    path: Path,
    *,
    sequence_length: int,
    most: int | None,
    streaming: Streaming | None,
    room: Room | None,
) -> None:
    """Write a line for each record, the first `most` of them where that is given. Raises InputError for a damaged record."""
    records = data.records
    count = min(len(records), most or len(records))
    tokens_at_once = room.microbatch_tokens if room else microbatch_tokens(params, model.config, precision)
    pad_id = getattr(model.config, "pad_token_id", None) or 0
    rule = data.rule(params, sequence_length, model.config.hidden_size, pad_id, tokens_at_once)
    name = data.facts.vocab_file
    entries = entries_of(Path(name)).texts if name is not None and Path(name).exists() else None
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".tmp")
    with progress("Predicting", count, "records") as meter, aside.open("w", encoding="utf-8") as file:
        for rows in _rows(params, data, batch_size, model, precision, rule, count, streaming, room):
            for row in rows:
                if entries is not None:
                    row["predicted_tokens"] = [entries[i] if i < len(entries) else "" for i in row["predicted_ids"]]
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            meter.advance(len(rows))
    aside.replace(path)
    say(f"Predictions for {count:,} records: {path}")


def _rows(
    params: Params,
    data: OpenInput,
    batch_size: int,
    model: PreTrainedModel,
    precision: Precision,
    rule: RecordBatchRule,
    count: int,
    streaming: Streaming | None,
    room: Room | None,
) -> Iterator[list[dict[str, Any]]]:
    """The lines of each batch, in the order of the records."""
    masked = params.task.kind == "masked_lm"
    guess = _guess_masked if masked else _guess_next
    numbers: deque[np.ndarray] = deque()

    def batches() -> Iterator[Batch]:
        for batch, of_rows in numbered_batches(data.records, rule, batch_size, count):
            numbers.append(of_rows)
            yield batch

    def guesses(microbatch: Microbatch, run_head: Callable[..., Any]) -> _Guesses:
        return guess(model, microbatch, precision.device, run_head)

    for batch, found in results_of_batches(guesses, model, batches(), precision, streaming, room):
        rows: list[dict[str, Any]] = []
        of_batch = iter(numbers.popleft().tolist())
        for microbatch, made in zip(batch.microbatches, found, strict=True):
            rows += _lines(microbatch, made, [next(of_batch) for _ in range(microbatch.num_examples)], masked)
        yield sorted(rows, key=lambda row: row["record"])


def _lines(microbatch: Microbatch, guesses: _Guesses, numbers: Sequence[int], masked: bool) -> Iterator[dict[str, Any]]:
    """numbers: of the microbatch's records, one a row."""
    length = microbatch.input_ids.shape[1]
    bounds = np.searchsorted(microbatch.target_positions, np.arange(len(numbers) + 1) * length)
    for row, number in enumerate(numbers):
        own = slice(bounds[row], bounds[row + 1])
        likelihoods = guesses.log_likelihoods[own]
        line: dict[str, Any] = {"record": number}
        if masked:
            line["positions"] = (microbatch.target_positions[own] - row * length).tolist()
            line["target_ids"] = microbatch.target_ids[own].tolist()
        line["predicted_ids"] = guesses.ids[own].tolist()
        line["num_tokens"] = len(likelihoods)
        line["log_likelihood"] = float(likelihoods.mean()) if len(likelihoods) else None
        if len(microbatch.labels):
            line["random_next_probability"] = float(guesses.random_next[row])
            line["next_sentence_label"] = int(microbatch.labels[row])
        yield line


def _guess_masked(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, run_head: Callable[..., Any]
) -> _Guesses:
    assert isinstance(model, BertForPreTraining)
    outputs = masked_lm.forward(model, microbatch, device, run_head)
    log_shares = F.log_softmax(outputs.masked_logits, -1)
    true = log_shares.gather(1, outputs.target_ids[:, None])[:, 0]
    random_next = torch.empty(0) if outputs.pair_logits is None else outputs.pair_logits.softmax(-1)[:, 1]
    return _Guesses(log_shares.argmax(-1).cpu().numpy(), true.cpu().numpy(), random_next.cpu().numpy())


def _guess_next(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, run_head: Callable[..., Any]
) -> _Guesses:
    ids, log_likelihoods = causal_lm.guesses(model, microbatch, device, run_head)
    return _Guesses(ids.cpu().numpy(), log_likelihoods.cpu().numpy(), np.empty(0))
