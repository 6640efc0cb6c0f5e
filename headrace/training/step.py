"""One optimizer step."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headrace.errors import UserError
from headrace.optim import LossScale, clip_coefficient
from headrace.planning.device import Precision
from headrace.store.store import Store
from headrace.streaming.executor import Streaming
from headrace.tasks import Task
from headrace.text.batches import Batch, Microbatch


class NonFiniteError(UserError):
    """Loss or gradient is not a finite number; nothing was updated, or with eager updates perhaps segments on disk. The
    last checkpoint is as it was."""


@dataclass(frozen=True)
class StepResult:
    losses: dict[str, float | None]  # by the task's names, nats a predicted token or pair; None = there is none
    gradient_norm: float  # before clipping
    updated: bool  # False: gradients overflowed under fp16 loss scaling and the step was skipped

    @property
    def loss(self) -> float:
        return sum(loss for loss in self.losses.values() if loss is not None)


def train_step(
    batch: Batch,
    task: Task,
    model: PreTrainedModel,
    store: Store,
    streaming: Streaming,
    precision: Precision,
    *,
    step: int,
    updates: int,
    lr: float,
    max_norm: float | None,
    loss_scale: LossScale,
) -> StepResult:
    """Forward, backward and update for one batch; step counts from 0, updates are those
    done before (fewer than step only under fp16 loss scaling). Raises NonFiniteError before any update, but for what an
    eager store has updated in backward."""

    def loss_of(microbatch: Microbatch) -> tuple[Tensor, Tensor]:
        return task.training_loss(model, microbatch, precision.device, batch, streaming.run_head)

    store.gradients.zero()
    store.expect_update(step=updates + 1, lr=lr, gradient_scale=1.0 / loss_scale.scale)
    streaming.begin(step, loss_gradient=loss_scale.scale)
    sums: list[Tensor] = []
    for group in streaming.groups(batch.microbatches):
        with precision.autocast():
            losses, group_sums = zip(*streaming.in_lanes(loss_of, group), strict=True)
        (torch.stack(losses).sum() * loss_scale.scale).backward()
        sums += group_sums
    norm = store.gradient_norm() / loss_scale.scale
    streaming.end()
    result = StepResult(
        losses=task.losses(torch.stack(sums).double().sum(0).tolist(), batch),
        gradient_norm=norm.item(),
        updated=math.isfinite(norm.item()),
    )
    if not math.isfinite(result.loss) or (not result.updated and not loss_scale.dynamic):
        when = "in the middle of" if store.eager and streaming.streams else "before"
        raise NonFiniteError(
            f"step {step + 1}: loss {result.loss}, gradient norm {result.gradient_norm} in batch {batch.digest:08x}; stopped "
            f"{when} the update. Lower the learning rate, lengthen its warm-up or clip gradients "
            f"(training.optimizer.max_gradient_norm), then run again: it goes on from the last checkpoint"
        )
    if result.updated:
        coefficient = clip_coefficient(norm, max_norm)
        store.update(step=updates + 1, lr=lr, gradient_scale=coefficient / loss_scale.scale)
    else:
        store.gradients.drop()
    return result
