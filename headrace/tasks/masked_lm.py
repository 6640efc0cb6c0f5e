"""Masked-language-model pretraining, with next-sentence prediction when examples are pairs (Devlin et al. 2018).

Shapes: R rows, T slots a row, M predicted tokens, E examples, H hidden size, V vocabulary.
Logits exist only for predicted positions: hidden states are gathered before the head, (M, V) instead of (R, T, V).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BertConfig, BertForPreTraining, PretrainedConfig

from headrace.errors import UserError
from headrace.models.build import model_config
from headrace.params import Params, PhaseParams
from headrace.text.batches import Batch, BatchRule, Microbatch
from headrace.text.examples import IS_NEXT, ExampleRule
from headrace.text.masking import MaskRule
from headrace.text.vocabulary import Vocabulary

HEAD = "head"
"""Name of the segment that the task runs itself."""

_CUDA_VOCABULARY_MULTIPLE = 64


@dataclass(frozen=True)
class Sums:
    """Totals over one microbatch, so that any split of a batch adds up to the same figures. Tensors ()."""

    masked_nll: Tensor
    pair_nll: Tensor
    num_targets: int
    num_pairs: int


@dataclass(frozen=True)
class Outputs:
    masked_logits: Tensor  # (M, V) fp32
    pair_logits: Tensor | None  # (E, 2) fp32
    target_ids: Tensor  # (M,)
    pair_labels: Tensor  # (E,) or (0,)


def example_rule(params: Params, sequence_length: int, phase: str, seed: int) -> ExampleRule:
    """How the task cuts text into examples."""
    return ExampleRule(params.task.examples, sequence_length, params.task.short_example_rate, seed, phase)


def batch_rule(
    params: Params,
    vocabulary: Vocabulary,
    sequence_length: int,
    microbatch_tokens: int,
    phase: PhaseParams | None = None,
) -> BatchRule:
    """How the task masks examples and lays them out; phase None = as evaluation does."""
    most = phase.max_predictions if phase is not None else None
    mask = MaskRule(
        params.task.mask_rate,
        most or math.ceil(params.task.mask_rate * sequence_length),
        params.task.whole_words,
        vocabulary.mask_id,
        vocabulary.unk_id,
        vocabulary.normal_ids,
        span=vocabulary.shared_characters + 1,
    )
    return BatchRule(
        sequence_length,
        vocabulary.cls_id,
        vocabulary.sep_id,
        vocabulary.pad_id,
        mask,
        microbatch_tokens,
        packing=phase.packing if phase is not None else None,
        buckets=tuple(phase.buckets) if phase is not None and phase.buckets else None,
        hidden_size=model_config(params.model).hidden_size,
        loss_per_example=params.task.loss_per == "example",
        loss_weight=params.task.loss_weight,
    )


def config(params: Params, vocabulary: Vocabulary | None) -> PretrainedConfig:
    """The model's config; raises UserError when it is no BERT."""
    made = model_config(params.model, *((vocabulary.size, vocabulary.pad_id) if vocabulary is not None else ()))
    if not isinstance(made, BertConfig):
        raise UserError(f"task.kind = 'masked_lm' does not fit model {params.model.name!r}; choose a bert")
    made.architectures = ["BertForPreTraining"]
    return made


def new_model(config: PretrainedConfig) -> BertForPreTraining:
    assert isinstance(config, BertConfig)
    model = BertForPreTraining(config)
    if config.type_vocab_size == 1:  # as for padding: transformers makes this row zero, and torch gives it no gradient
        model.bert.embeddings.token_type_embeddings.padding_idx = 0
    return model


def freeze_unused(model: BertForPreTraining, params: Params) -> None:
    """Without pairs the pooler and the next-sentence head get no gradient, so they keep their initial weights; a single
    segment says nothing, so its row stays zero."""
    assert model.bert.pooler is not None
    if model.config.type_vocab_size == 1:
        model.bert.embeddings.token_type_embeddings.requires_grad_(False)
    for module in (model.bert.pooler, model.cls.seq_relationship):
        module.requires_grad_(params.task.examples == "sentence_pairs")


def call(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """Run a head whose weights are at hand; `Streaming.run_head` fetches them first."""
    return function(*tensors)


def forward(
    model: BertForPreTraining, microbatch: Microbatch, device: torch.device, run_head: Callable[..., Any] = call
) -> Outputs:
    """Run the model on one microbatch; logits of predicted positions and of pairs only."""
    hidden, targets, target_ids, firsts, labels = _encode(model, microbatch, device)
    masked_logits, pair_logits = run_head(
        lambda hidden, targets, firsts: _logits(model, hidden, targets, firsts, len(labels)), hidden, targets, firsts
    )
    return Outputs(masked_logits, pair_logits, target_ids, labels)


def training_loss(
    model: BertForPreTraining,
    microbatch: Microbatch,
    device: torch.device,
    batch: Batch,
    run_head: Callable[..., Any] = call,
) -> tuple[Tensor, Tensor]:
    """This microbatch's share of the batch's loss, and its summed (masked, pair) losses (2,), detached."""
    hidden, targets, target_ids, firsts, labels = _encode(model, microbatch, device)

    def head(hidden: Tensor, targets: Tensor, target_ids: Tensor, firsts: Tensor, labels: Tensor) -> Any:
        masked_logits, pair_logits = _logits(model, hidden, targets, firsts, len(labels))
        total = sums(Outputs(masked_logits, pair_logits, target_ids, labels))
        nlls = torch.stack([total.masked_nll.detach(), total.pair_nll.detach()])
        return loss(total, batch.target_divisor, batch.num_pairs), nlls

    return run_head(head, hidden, targets, target_ids, firsts, labels)


def losses(sums: Sequence[float], batch: Batch) -> dict[str, float | None]:
    masked_nll, pair_nll = sums
    return {
        "masked_lm_loss": masked_nll / batch.target_divisor,
        "next_sentence_loss": pair_nll / batch.num_pairs if batch.num_pairs else None,
    }


def evaluation_sums(
    model: BertForPreTraining, microbatch: Microbatch, device: torch.device, run_head: Callable[..., Any] = call
) -> Tensor:
    """Summed masked and pair losses in nats, right first guesses of both, and pairs that really follow each other."""
    outputs = forward(model, microbatch, device, run_head)
    total = sums(outputs)
    found = [total.masked_nll.item(), total.pair_nll.item()]
    found.append(int((outputs.masked_logits.argmax(-1) == outputs.target_ids).sum()))
    if outputs.pair_logits is not None:
        found.append(int((outputs.pair_logits.argmax(-1) == outputs.pair_labels).sum()))
        found.append(int((outputs.pair_labels == IS_NEXT).sum()))
    return torch.tensor(found + [0] * (5 - len(found)), dtype=torch.float64)


def figures(sums: Sequence[float], num_examples: int, num_targets: int, num_pairs: int) -> dict[str, float | None]:
    nll, pair_nll, correct, pair_correct, num_next = sums
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
    }


def _encode(
    model: BertForPreTraining, microbatch: Microbatch, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Hidden states (R * T, H), and targets, their ids, first positions and pair labels on the device."""
    input_ids, types, positions, targets, target_ids, firsts, labels = (
        torch.from_numpy(array).to(device, non_blocking=True)
        for array in (
            microbatch.input_ids,
            microbatch.token_type_ids,
            microbatch.position_ids,
            microbatch.target_positions,
            microbatch.target_ids,
            microbatch.first_positions,
            microbatch.labels,
        )
    )
    hidden = model.bert(
        input_ids=input_ids,
        attention_mask=attention_mask(torch.from_numpy(microbatch.example_ids).to(device), microbatch.packed),
        token_type_ids=types,
        position_ids=positions,
    ).last_hidden_state.flatten(0, 1)
    return hidden, targets, target_ids, firsts, labels


def _logits(
    model: BertForPreTraining, hidden: Tensor, targets: Tensor, firsts: Tensor, num_pairs: int
) -> tuple[Tensor, Tensor | None]:
    """The head, on predicted positions and first positions only: (M, V) and (E, 2) fp32."""
    masked_logits = _vocabulary_logits(model, model.cls.predictions.transform(hidden.index_select(0, targets)))
    pair_logits = None
    if num_pairs:
        assert model.bert.pooler is not None
        pooled = model.bert.pooler(hidden.index_select(0, firsts).unsqueeze(1))  # the pooler takes slot 0 of each row
        pair_logits = model.cls.seq_relationship(pooled).float()
    return masked_logits.float(), pair_logits


def attention_mask(example_ids: Tensor, packed: bool) -> Tensor | None:
    """None without padding; (R, T) for padded rows; (R, 1, T, T) block-diagonal when rows hold several examples."""
    if packed:
        return example_ids[:, None, :, None] == example_ids[:, None, None, :]
    return None if bool((example_ids > 0).all()) else (example_ids > 0)


def _vocabulary_logits(model: BertForPreTraining, hidden: Tensor) -> Tensor:
    """(M, H) -> (M, V). On CUDA the weight is padded for this product only, because odd sizes miss the fast kernels."""
    decoder = model.cls.predictions.decoder
    missing = -decoder.out_features % _CUDA_VOCABULARY_MULTIPLE
    if hidden.device.type != "cuda" or not missing:
        return decoder(hidden)
    weight, bias = F.pad(decoder.weight, (0, 0, 0, missing)), F.pad(decoder.bias, (0, missing))
    return F.linear(hidden, weight, bias)[:, : decoder.out_features]


def sums(outputs: Outputs) -> Sums:
    """Summed negative log-likelihoods, in nats."""
    masked_nll = F.cross_entropy(outputs.masked_logits, outputs.target_ids, reduction="sum")
    pair_nll = masked_nll.new_zeros(())
    if outputs.pair_logits is not None:
        pair_nll = F.cross_entropy(outputs.pair_logits, outputs.pair_labels, reduction="sum")
    return Sums(masked_nll, pair_nll, len(outputs.target_ids), len(outputs.pair_labels))


def loss(total: Sums, target_divisor: float, num_pairs: int) -> Tensor:
    """This microbatch's share of the batch's loss: predicted tokens' over what the batch divides them by (their number, unless
    task.loss_per and loss_weight say otherwise) plus the mean over pairs of the whole batch."""
    return total.masked_nll / target_divisor + total.pair_nll / max(num_pairs, 1)
