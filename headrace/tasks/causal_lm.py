"""Causal language modelling: every token from those before it (Radford et al. 2019, Brown et al. 2020).

Shapes: R rows, T slots a row, M predicted tokens, H hidden size, V vocabulary.
Logits exist a few rows at a time: (CHUNK_BYTES / 4 V, V) and never (R, T, V). Beyond one such chunk the head's forward
runs again in backward.
"""

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING

from headrace.errors import UserError
from headrace.models.build import model_config
from headrace.params import Params, PhaseParams
from headrace.text.batches import Batch, Microbatch
from headrace.text.examples import ExampleRule
from headrace.text.vocabulary import Vocabulary
from headrace.text.window_batches import WindowBatchRule

HEAD = "lm_head"
"""Name of the segment that the task runs itself."""

CHUNK_BYTES = 256 << 20  # of fp32 logits at a time

# Config keys with which a model does more to its logits than its lm_head does, and the value that means "nothing".
_LOGIT_KEYS = {
    "final_logit_softcapping": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "lm_head_multiplier": 1.0,
    "output_router_logits": False,
}


def config(params: Params, vocabulary: Vocabulary | None) -> PretrainedConfig:
    """The model's config; raises UserError when it is no decoder, or does to its logits what we do not."""
    ids = (vocabulary.size, vocabulary.pad_id, vocabulary.sep_id) if vocabulary is not None else ()
    made = model_config(params.model, *ids)
    check_config(made, params.model.name)
    for key, nothing in _LOGIT_KEYS.items():
        if (value := getattr(made, key, nothing)) != nothing:
            raise UserError(f"model.config.{key} = {value!r} is not supported by causal_lm; set it to {nothing}")
    made.architectures = [getattr(MODEL_FOR_CAUSAL_LM_MAPPING[type(made)], "__name__")]  # noqa: B009
    return made


def check_config(config: PretrainedConfig, name: str) -> None:
    """Refuse models that are no decoders."""
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        raise UserError(
            f"task.kind = 'causal_lm' does not fit model {name!r}; choose a decoder: gpt2, gpt_neox, llama, ..."
        )


def new_model(config: PretrainedConfig) -> PreTrainedModel:
    return AutoModelForCausalLM.from_config(config)


def freeze_unused(model: PreTrainedModel, params: Params) -> None:
    """All weights are used; refuses what the model cannot do."""
    if params.task.isolate_documents and "position_ids" not in inspect.signature(model.base_model.forward).parameters:
        raise UserError(
            f"task.isolate_documents = True: {type(model).__name__} takes no positions, so they cannot restart in each "
            f"document"
        )


def example_rule(params: Params, sequence_length: int, phase: str, seed: int) -> ExampleRule:
    """How the task cuts text into examples."""
    return ExampleRule("windows", sequence_length, 0.0, seed, phase)


def batch_rule(
    params: Params,
    vocabulary: Vocabulary,
    sequence_length: int,
    microbatch_tokens: int,
    phase: PhaseParams | None = None,
) -> WindowBatchRule:
    """How windows become arrays."""
    return WindowBatchRule(
        sequence_length,
        vocabulary.sep_id,
        vocabulary.pad_id,
        microbatch_tokens,
        params.task.isolate_documents,
        model_config(params.model).hidden_size,
        loss_per_example=params.task.loss_per == "example",
        loss_weight=params.task.loss_weight,
    )


def call(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """Run a head whose weights are at hand; `Streaming.run_head` fetches them first."""
    return function(*tensors)


def training_loss(
    model: PreTrainedModel,
    microbatch: Microbatch,
    device: torch.device,
    batch: Batch,
    run_head: Callable[..., Any] = call,
) -> tuple[Tensor, Tensor]:
    """This microbatch's share of the batch's loss, and its summed loss (1,), detached."""

    def head(hidden: Tensor, targets: Tensor, target_ids: Tensor) -> tuple[Tensor, Tensor]:
        nll = summed_nll(_head_of(model), hidden.index_select(0, targets), target_ids)
        return nll / batch.target_divisor, nll.detach()[None]

    return run_head(head, *encode(model, microbatch, device))


def losses(sums: Sequence[float], batch: Batch) -> dict[str, float | None]:
    return {"next_token_loss": sums[0] / batch.target_divisor}


def evaluation_sums(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, run_head: Callable[..., Any] = call
) -> Tensor:
    """Summed negative log-likelihood in nats, and right first guesses."""

    def head(hidden: Tensor, targets: Tensor, target_ids: Tensor) -> Tensor:
        found = torch.zeros(2, dtype=torch.float64)
        lm_head, chosen = _head_of(model), hidden.index_select(0, targets)
        for rows, ids in _chunks(lm_head, chosen, target_ids):
            logits = lm_head(rows).float()
            found[0] += F.cross_entropy(logits, ids, reduction="sum").item()
            found[1] += int((logits.argmax(-1) == ids).sum())
        return found

    return run_head(head, *encode(model, microbatch, device))


def guesses(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, run_head: Callable[..., Any] = call
) -> tuple[Tensor, Tensor]:
    """The likeliest next token at each predicted position (M,), and the log-likelihood in nats of the true one (M,)."""

    def head(hidden: Tensor, targets: Tensor, target_ids: Tensor) -> tuple[Tensor, Tensor]:
        lm_head, chosen = _head_of(model), hidden.index_select(0, targets)
        ids, log_likelihoods = [], []
        for rows, true in _chunks(lm_head, chosen, target_ids):
            logits = lm_head(rows).float()
            ids.append(logits.argmax(-1))
            log_likelihoods.append(-F.cross_entropy(logits, true, reduction="none"))
        return torch.cat(ids), torch.cat(log_likelihoods)

    return run_head(head, *encode(model, microbatch, device))


def figures(sums: Sequence[float], num_examples: int, num_targets: int, num_pairs: int) -> dict[str, float | None]:
    nll, correct = sums
    mean_nll = nll / max(num_targets, 1)
    return {
        "eval/accuracy": correct / max(num_targets, 1),
        "eval/perplexity": math.exp(min(mean_nll, 100.0)),
        "eval/loss": mean_nll,
        "n_examples": num_examples,
        "n_predicted_tokens": num_targets,
    }


def summed_nll(lm_head: nn.Module, hidden: Tensor, target_ids: Tensor) -> Tensor:
    """Negative log-likelihood in nats () of target_ids (M,) after hidden (M, H)."""
    chunks = _chunks(lm_head, hidden, target_ids)
    if len(chunks) == 1 or not torch.is_grad_enabled():
        return torch.stack([_nll(lm_head, rows, ids) for rows, ids in chunks]).sum()
    parts = [
        checkpoint(_nll, lm_head, rows, ids, use_reentrant=False, preserve_rng_state=False) for rows, ids in chunks
    ]
    return torch.stack(parts).sum()


def _nll(lm_head: nn.Module, hidden: Tensor, target_ids: Tensor) -> Tensor:
    return F.cross_entropy(lm_head(hidden).float(), target_ids, reduction="sum")


def token_nlls(model: PreTrainedModel, hidden: Tensor, target_ids: Tensor) -> Tensor:
    """For each hidden state (M, H), without gradients: nats of its target, and whether it is the first guess, (M, 2)."""
    lm_head, found = _head_of(model), []
    for rows, ids in _chunks(lm_head, hidden, target_ids):
        logits = lm_head(rows).float()
        right = (logits.argmax(-1) == ids).float()
        found.append(torch.stack([F.cross_entropy(logits, ids, reduction="none"), right], 1))
    return torch.cat(found)


def _chunks(lm_head: nn.Module, hidden: Tensor, target_ids: Tensor) -> list[tuple[Tensor, Tensor]]:
    num_rows = max(1, CHUNK_BYTES // (4 * lm_head.out_features))  # pyright: ignore[reportOperatorIssue]
    return list(zip(hidden.split(num_rows), target_ids.split(num_rows), strict=True))


def _head_of(model: PreTrainedModel) -> nn.Module:
    lm_head = model.get_output_embeddings()
    assert isinstance(lm_head, nn.Module)
    return lm_head


def encode(model: PreTrainedModel, microbatch: Microbatch, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states (R * T, H), predicting positions and target ids on the device."""
    input_ids, targets, target_ids = (
        torch.from_numpy(array).to(device, non_blocking=True)
        for array in (microbatch.input_ids, microbatch.target_positions, microbatch.target_ids)
    )
    more: dict[str, Tensor] = {}
    example_ids = torch.from_numpy(microbatch.example_ids).to(device)
    if microbatch.packed:
        more["position_ids"] = torch.from_numpy(microbatch.position_ids).to(device)
        more["attention_mask"] = _isolating_mask(model, example_ids)
    elif microbatch.num_tokens < microbatch.num_slots:
        more["attention_mask"] = (example_ids > 0).long()
    output = model.base_model(input_ids=input_ids, use_cache=False, **more)
    return output.last_hidden_state.flatten(0, 1), targets, target_ids


def _isolating_mask(model: PreTrainedModel, example_ids: Tensor) -> Tensor:
    """(R, 1, T, T): what each position sees, itself and those before it in its document."""
    sees = (example_ids[:, :, None] == example_ids[:, None, :]).tril()[:, None]
    if model.config._attn_implementation == "sdpa":
        return sees
    hidden = torch.finfo(torch.float32).min
    return torch.zeros(sees.shape, device=sees.device).masked_fill_(~sees, hidden)
