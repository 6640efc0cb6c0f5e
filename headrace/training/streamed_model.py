"""A model trained segment by segment from the user's own loop:

model = headrace.stream(module_or_folder_or_preset, memory="8GiB", store=folder, optimizer=headrace.AdamW(lr=1e-4))
for batch in batches:
    loss = model.step(batch)          # forward, backward, exact clip, update
model.save("out")
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from headrace.errors import UserError
from headrace.models.segments import Segment, segments_of
from headrace.optim import AdamW as AdamWRule
from headrace.optim import clip_coefficient
from headrace.store.store import Placement, Store
from headrace.streaming.activations import Policy, Saved
from headrace.streaming.segment import Pass, Streaming, install_segments


@dataclass(frozen=True)
class Optimizer:
    """An update rule with what the loop decides: learning rate, clipping, what is not decayed."""

    rule: Any
    lr: float | Callable[[int], float]  # or a function of the number of updates done
    max_norm: float | None = 1.0
    no_decay: tuple[str, ...] = ("bias", "norm", "Norm", "ln_")


def AdamW(
    lr: float | Callable[[int], float],
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    max_norm: float | None = 1.0,
    no_decay: Sequence[str] = ("bias", "norm", "Norm", "ln_"),
) -> Optimizer:
    """AdamW in fp32, exactly `torch.optim.AdamW(fused=True)` behind `clip_grad_norm_(max_norm)`."""
    return Optimizer(AdamWRule(betas, eps, weight_decay), lr, max_norm, tuple(no_decay))


Loss = Callable[[nn.Module, Mapping[str, Any]], Tensor]


def model_loss(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """The loss a transformers model computes itself, or what any other module returns."""
    output = model(**inputs)
    return output.loss if hasattr(output, "loss") else output


@dataclass
class StreamedModel:
    """`model` is the user's module with stand-ins for its segments; `print` shows them."""

    model: nn.Module
    segments: list[Segment]
    store: Store
    streaming: Streaming
    running: Pass
    optimizer: Optimizer
    microbatch: int | None = None  # examples that go through the model at once; None = the whole batch
    loss_of: Loss = model_loss
    updates: int = 0
    gradient_norm: float = field(default=math.nan, init=False)

    def step(self, batch: Mapping[str, Any]) -> float:
        """Forward, backward, clip and update on one batch (tensors with examples along their first dimension).

        The loss is the mean over microbatches, each weighted by its share of labels (of examples, without labels).
        Raises UserError when loss or gradient is not finite; nothing is updated then.
        """
        loss = self.loss(batch)
        loss.backward()
        value = loss.item()
        self.update(value)
        return value

    def loss(self, batch: Mapping[str, Any]) -> Tensor:
        """Forward of all microbatches; `.backward()` of what it returns fills the gradients, `update()` applies them."""
        self.store.zero_gradients()
        self.streaming.begin(self.updates)
        parts = _split(batch, self.microbatch)
        counts = [_count(part) for part in parts]
        losses = self.streaming.in_lanes(
            lambda part: self.loss_of(self.model, part[0]) * part[1],
            [(part, count / sum(counts)) for part, count in zip(parts, counts, strict=True)],
        )
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def update(self, loss: float = 0.0) -> None:
        """Clip and update with the gradients of the last backward."""
        norm = self.store.gradient_norm()
        self.streaming.end()
        self.gradient_norm = norm.item()
        if not (math.isfinite(loss) and math.isfinite(self.gradient_norm)):
            self.store.drop_gradients()
            raise UserError(
                f"update {self.updates + 1}: loss {loss}, gradient norm {self.gradient_norm}: not finite, nothing was "
                f"updated. Lower the learning rate, or look at this batch"
            )
        lr = self.optimizer.lr if isinstance(self.optimizer.lr, float | int) else self.optimizer.lr(self.updates)
        coefficient = clip_coefficient(norm, self.optimizer.max_norm)
        self.store.update(step=self.updates + 1, lr=lr, gradient_scale=coefficient)
        self.updates += 1

    def close(self) -> None:
        self.streaming.close()
        self.store.close()


def no_cache(model: nn.Module) -> None:
    """Keys and values kept for generation have no use in training, and a block that runs twice would add to them twice."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if hasattr(config, "use_cache"):
            config.use_cache = False


def _split(batch: Mapping[str, Any], size: int | None) -> list[dict[str, Any]]:
    tensors = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    length = len(next(iter(tensors.values())))
    size = size or length
    return [
        {name: (value[a : a + size] if name in tensors else value) for name, value in batch.items()}
        for a in range(0, length, size)
    ]


def _count(part: Mapping[str, Any]) -> int:
    labels = part.get("labels")
    if isinstance(labels, Tensor) and not labels.is_floating_point():
        return int((labels != -100).sum())
    return len(next(value for value in part.values() if isinstance(value, Tensor)))


def build(
    model: nn.Module,
    optimizer: Optimizer,
    *,
    folder: Path | None,
    placements: Sequence[Placement] | Callable[[list[Segment]], Sequence[Placement]],
    policies: Sequence[Policy] | Policy = "keep",
    weights: Callable[[list[Segment], int], dict[str, Tensor]] | None = None,
    microbatch: int | None = None,
    seed: int = 0,
    depth: int = 1,
    pool_bytes: int | None = None,
    held_gradient_bytes: int = 0,
    spill_bytes: int = 64 << 20,
    loss_of: Loss = model_loss,
) -> StreamedModel:
    """A streamed model from a module. weights: values of a segment's parameters; None = those the module holds."""
    no_cache(model)
    segments = segments_of(model)
    places = list(placements(segments) if callable(placements) else placements)
    held = None
    if weights is None:
        held = [{name: p.detach().clone() for name, p in segment.parameters.items()} for segment in segments]
    store = Store(
        segments,
        optimizer.rule,
        optimizer.no_decay,
        torch.device("cpu"),
        places,
        folder,
        held_gradient_bytes=held_gradient_bytes,
    )
    for i in range(len(segments)):
        store.fill(i, held[i] if held is not None else weights(segments, i))  # pyright: ignore
    running = Pass(seed)
    saved = Saved(folder / "scratch" / "activations" if folder else None, spill_bytes, store.traffic)
    chosen: list[Policy] = [policies] * len(segments) if isinstance(policies, str) else list(policies)
    if pool_bytes is None:
        pool_bytes = 2 * sum(sorted(4 * layout.size + 4096 for layout in store.layouts)[-2:])
    streaming = Streaming(segments, store, running, saved, chosen, pool_bytes, depth)
    install_segments(model, segments, streaming)
    return StreamedModel(model, segments, store, streaming, running, optimizer, microbatch, loss_of)
