"""A model trained segment by segment from the user's own loop:

model = headrace.stream(module_or_folder_or_preset, memory="8GiB", store=folder, optimizer=headrace.AdamW(lr=1e-4))
for batch in batches:
    loss = model.step(batch)          # forward, backward, exact clip, update
model.save("out")
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headrace.errors import UserError
from headrace.models.segments import Segment, segments_of
from headrace.optim import SGD as SGDRule
from headrace.optim import Adafactor as AdafactorRule
from headrace.optim import AdamW as AdamWRule
from headrace.optim import AdamW8bit as AdamW8bitRule
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

    @property
    def eager(self) -> bool:
        """Without a global norm to wait for, each segment is updated in backward."""
        return self.max_norm is None


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


def AdamW8bit(
    lr: float | Callable[[int], float],
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    max_norm: float | None = 1.0,
    no_decay: Sequence[str] = ("bias", "norm", "Norm", "ln_"),
) -> Optimizer:
    """AdamW with 8-bit moments: 6 bytes a parameter of state instead of 12; inexact."""
    return Optimizer(AdamW8bitRule(betas, eps, weight_decay), lr, max_norm, tuple(no_decay))


def Adafactor(
    lr: float | Callable[[int], float],
    weight_decay: float = 0.0,
    clip_threshold: float = 1.0,
    weight_dtype: torch.dtype = torch.bfloat16,
    no_decay: Sequence[str] = ("bias", "norm", "Norm", "ln_"),
) -> Optimizer:
    """Adafactor on bf16 weights with stochastic rounding: 2 bytes a parameter of state; inexact. It clips each parameter's
    update by itself, so there is no global norm and no gradient outlives its segment's backward."""
    rule = AdafactorRule(clip_threshold=clip_threshold, weight_decay=weight_decay, weight_dtype=weight_dtype)
    return Optimizer(rule, lr, None, tuple(no_decay))


def SGD(
    lr: float | Callable[[int], float],
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    max_norm: float | None = 1.0,
    no_decay: Sequence[str] = (),
) -> Optimizer:
    """SGD, exactly `torch.optim.SGD(fused=True)`."""
    return Optimizer(SGDRule(momentum, weight_decay=weight_decay), lr, max_norm, tuple(no_decay))


Loss = Callable[[nn.Module, Mapping[str, Any]], Tensor]


def model_loss(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    """The loss a transformers model computes itself, or what any other module returns."""
    output = model(**inputs)
    return output.loss if hasattr(output, "loss") else output


PLAIN_HEADS = {"gpt2", "gptj", "gpt_neox", "llama", "mistral", "qwen2", "qwen3"}
"""Model types whose loss is that of next tokens on nothing but `lm_head(hidden states)`."""


def causal_head(model: nn.Module, segments: Sequence[Segment]) -> int | None:
    """The segment of the output layer, where the loss can be computed beside it."""
    plain = isinstance(model, PreTrainedModel) and model.config.model_type in PLAIN_HEADS
    return len(segments) - 1 if plain and segments[-1].modules == ("lm_head",) else None


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
        total = torch.zeros(())  # added up in fp32 and in order, whatever the groups
        parts = self._begin(batch)
        for group in self.streaming.groups(parts):
            loss = self._sum_of_losses(group)
            total = total + loss.detach()
            if not math.isfinite(total.item()):
                self._refuse(total.item(), math.nan)
            loss.backward()
        self.update(total.item())
        return total.item()

    def loss(self, batch: Mapping[str, Any]) -> Tensor:
        """Forward of all microbatches; `.backward()` of what it returns fills the gradients, `update()` applies them."""
        return self._sum_of_losses(self._begin(batch))

    def _begin(self, batch: Mapping[str, Any]) -> list[tuple[dict[str, Any], float]]:
        """Begin a step: its microbatches, each with its share of the loss."""
        self.store.zero_gradients()
        self.store.expect_update(step=self.updates + 1, lr=self.lr)
        self.streaming.begin(self.updates)
        parts = _split(batch, self.microbatch)
        counts = [_count(part) for part in parts]
        return [(part, count / sum(counts)) for part, count in zip(parts, counts, strict=True)]

    def _sum_of_losses(self, parts: Sequence[tuple[dict[str, Any], float]]) -> Tensor:
        losses = self.streaming.in_lanes(lambda part: self._loss_of(*part), parts)
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def _loss_of(self, inputs: Mapping[str, Any], share: float) -> Tensor:
        """A microbatch's loss times its share. Causal models: the head and its loss in one go, without a graph that holds
        the logits of all microbatches; the same operations as the model's own, so the same bits."""
        if (
            self.streaming.policies[self.streaming.head] != "at_once"
            or "labels" not in inputs
            or not self.model.training
        ):
            return self.loss_of(self.model, inputs) * share
        model: Any = self.model
        hidden = model.base_model(
            **{name: value for name, value in inputs.items() if name != "labels"}
        ).last_hidden_state

        def head(hidden: Tensor, labels: Tensor) -> Tensor:
            logits = model.lm_head.block(hidden)
            return model.loss_function(logits=logits, labels=labels, vocab_size=model.config.vocab_size) * share

        return self.streaming.run_head(head, hidden, inputs["labels"])

    def update(self, loss: float = 0.0) -> None:
        """Clip and update with the gradients of the last backward."""
        norm = self.store.gradient_norm()
        self.streaming.end()
        self.gradient_norm = norm.item()
        if not (math.isfinite(loss) and math.isfinite(self.gradient_norm)):
            self._refuse(loss, self.gradient_norm)
        lr = self.lr
        coefficient = clip_coefficient(norm, self.optimizer.max_norm)
        self.store.update(step=self.updates + 1, lr=lr, gradient_scale=coefficient)
        self.updates += 1

    @property
    def lr(self) -> float:
        """Learning rate of the next update."""
        return self.optimizer.lr if isinstance(self.optimizer.lr, float | int) else self.optimizer.lr(self.updates)

    def _refuse(self, loss: float, norm: float) -> None:
        self.store.drop_gradients()
        updated = "nothing was updated" if not self.store.eager else "segments may have been updated already"
        raise UserError(
            f"update {self.updates + 1}: loss {loss}, gradient norm {norm}: not finite, {updated}. Lower the learning "
            f"rate, or look at this batch"
        )

    def close(self) -> None:
        self.streaming.close()
        self.store.close()


def room_for_two(store: Store, segments: Sequence[Segment]) -> int:
    """Bytes of weights of a segment and its neighbour, the largest such sum: one computes while the other is fetched."""
    needs = []
    for i, segment in enumerate(segments):
        owners = {i, *(store.owner[name] for name in segment.borrowed)}
        needs.append(sum(4 * store.layouts[j].size + 4096 for j in owners if store.placements[j] == "disk"))
    return max((a + b for a, b in pairwise([*needs, 0])), default=0)


def no_cache(model: nn.Module) -> None:
    """Keys and values kept for generation have no use in training, and a block that runs twice would add to them twice."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "use_cache"):
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
    store = Store(
        segments,
        optimizer.rule,
        optimizer.no_decay,
        torch.device("cpu"),
        places,
        folder,
        held_gradient_bytes=held_gradient_bytes,
        eager=optimizer.eager,
        seed=seed,
    )
    for i, segment in enumerate(segments):
        if weights is not None:
            store.fill(i, weights(segments, i))
        elif store.placements[i] == "disk":  # on the device they were taken over when the store was made
            store.fill(i, {name: parameter.detach() for name, parameter in segment.parameters.items()})
    running = Pass(seed)
    head = causal_head(model, segments)
    saved = Saved(folder / "scratch" / "activations" if folder else None, spill_bytes, store.traffic)
    chosen: list[Policy] = [policies] * len(segments) if isinstance(policies, str) else list(policies)
    if head is not None and loss_of is model_loss:
        chosen[head] = "at_once"
    if pool_bytes is None:
        pool_bytes = room_for_two(store, segments)
    streaming = Streaming(segments, store, running, saved, chosen, pool_bytes, depth)
    install_segments(model, segments, streaming)
    return StreamedModel(model, segments, store, streaming, running, optimizer, microbatch, loss_of)
