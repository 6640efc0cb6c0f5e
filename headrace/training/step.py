"""One optimizer step."""

import math
from dataclasses import dataclass

import torch
from transformers import BertForPreTraining

from headrace.errors import UserError
from headrace.optim import AdamW, LossScale, clip_coefficient
from headrace.planning.device import Precision
from headrace.store.device import DeviceStore
from headrace.streaming.segment import Pass
from headrace.tasks import masked_lm
from headrace.text.batches import Batch


class NonFiniteError(UserError):
    """Loss or gradient is not a finite number; nothing was updated."""


@dataclass(frozen=True)
class StepResult:
    masked_loss: float  # nats a predicted token
    pair_loss: float  # nats a pair
    gradient_norm: float  # before clipping
    updated: bool  # False: gradients overflowed under fp16 loss scaling and the step was skipped

    @property
    def loss(self) -> float:
        return self.masked_loss + self.pair_loss


def train_step(
    batch: Batch,
    model: BertForPreTraining,
    store: DeviceStore,
    rule: AdamW,
    running: Pass,
    precision: Precision,
    *,
    step: int,
    updates: int,
    lr: float,
    max_norm: float | None,
    loss_scale: LossScale,
) -> StepResult:
    """Forward, backward and update for one batch; step counts from 0, updates are those
    done before (fewer than step only under fp16 loss scaling). Raises NonFiniteError before any update."""
    store.zero_gradients()
    nlls = []
    for number, microbatch in enumerate(batch.microbatches):
        running.step, running.microbatch = step, number
        with precision.autocast():
            sums = masked_lm.sums(masked_lm.forward(model, microbatch, precision.device))
        loss = masked_lm.loss(sums, batch.num_targets, batch.num_pairs)
        (loss * loss_scale.scale).backward()
        nlls.append(torch.stack([sums.masked_nll.detach(), sums.pair_nll.detach()]))
    norm = store.gradient_norm() / loss_scale.scale
    masked_nll, pair_nll = torch.stack(nlls).double().sum(0).tolist()
    result = StepResult(
        masked_loss=masked_nll / max(batch.num_targets, 1),
        pair_loss=pair_nll / max(batch.num_pairs, 1),
        gradient_norm=norm.item(),
        updated=math.isfinite(norm.item()),
    )
    if not math.isfinite(result.loss) or (not result.updated and not loss_scale.dynamic):
        raise NonFiniteError(
            f"step {step + 1}: loss {result.loss}, gradient norm {result.gradient_norm} in batch {batch.digest:08x}; stopped "
            f"before the update. Lower the learning rate, lengthen its warm-up or clip gradients "
            f"(training.optimizer.max_gradient_norm), then run again: it goes on from the last checkpoint"
        )
    if result.updated:
        coefficient = clip_coefficient(norm, max_norm)
        store.update(rule, step=updates + 1, lr=lr, gradient_scale=coefficient / loss_scale.scale)
    return result
