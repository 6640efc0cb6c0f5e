"""A model trained segment by segment from the user's own loop; `headrace.stream` makes it."""

import copy
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from headrace.errors import UserError
from headrace.models.adapters import save_adapter_config
from headrace.models.segments import Segment, segments_of
from headrace.optim import clip_coefficient, describe
from headrace.store.files import file_sum
from headrace.store.placement import Placement
from headrace.store.snapshot import read_snapshot, write_snapshot
from headrace.store.store import Store
from headrace.streaming.activations import Policy, Saved
from headrace.streaming.executor import Pass, Streaming
from headrace.streaming.segment import StreamedSegment, install_segments
from headrace.training.optimizers import Optimizer

SNAPSHOT = "headrace.json"

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
    config: PretrainedConfig | None = None  # what `save` writes; None where the module is not transformers'
    updates: int = 0
    plan: Any = None
    gradient_norm: float = field(default=math.nan, init=False)
    earlier: tuple[Path | None, dict[str, str]] = field(default=(None, {}), init=False)
    """The last folder written, and the sums of its files: what does not train is linked from there."""

    def step(self, batch: Mapping[str, Any]) -> float:
        """Forward, backward, clip and update on one batch (tensors with examples along their first dimension).

        The loss is the mean over microbatches, each weighted by its share of labels (of examples, without labels).
        Raises UserError when loss or gradient is not finite; nothing is updated then.
        """
        total = torch.zeros((), device=self.store.device)  # added up in fp32 and in order, whatever the groups
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
        self.store.gradients.zero()
        self.store.expect_update(step=self.updates + 1, lr=self.optimizer.lr_at(self.updates))
        self.streaming.begin(self.updates)
        return self._parts(batch)

    def _parts(self, batch: Mapping[str, Any]) -> list[tuple[dict[str, Any], float]]:
        """The batch's microbatches, each with its share of the loss."""
        parts = _split(batch, self.microbatch, self.store.device)
        counts = [_count(part) for part in parts]
        return [(part, count / sum(counts)) for part, count in zip(parts, counts, strict=True)]

    def _losses(self, parts: Sequence[tuple[dict[str, Any], float]]) -> list[Tensor]:
        with self.streaming.autocast():
            return self.streaming.in_lanes(lambda part: self._loss_of(*part), parts)

    def _sum_of_losses(self, parts: Sequence[tuple[dict[str, Any], float]]) -> Tensor:
        losses = self._losses(parts)
        total = losses[0]
        for loss in losses[1:]:
            total = total + loss
        return total

    def _loss_of(self, inputs: Mapping[str, Any], share: float) -> Tensor:
        """A microbatch's loss times its share."""
        at_once = self.streaming.policies[self.streaming.head] == "at_once"
        if at_once and "labels" in inputs:
            return next_token_loss(self.model, inputs, self.streaming.run_head, share)
        return self.loss_of(self.model, inputs) * share

    def update(self, loss: float = 0.0) -> None:
        """Clip and update with the gradients of the last backward."""
        norm = self.store.gradient_norm()
        self.streaming.end()
        self.gradient_norm = norm.item()
        if not (math.isfinite(loss) and math.isfinite(self.gradient_norm)):
            self._refuse(loss, self.gradient_norm)
        lr = self.optimizer.lr_at(self.updates)
        coefficient = clip_coefficient(norm, self.optimizer.max_norm)
        self.store.update(step=self.updates + 1, lr=lr, gradient_scale=coefficient)
        self.updates += 1

    def evaluate(self, batch: Mapping[str, Any]) -> float:
        """The loss of a batch, weighted as in `step`, without dropout and without gradients."""
        parts = self._parts(batch)
        with self.evaluating():
            losses = [loss for group in self.streaming.groups(parts) for loss in self._losses(group)]
            return torch.stack(losses).sum().item()

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """`generate` of the transformers model: greedy, sampled or by beams, as it is asked; every token fetches what is not
        at hand."""
        with self.evaluating() as model:
            if not (isinstance(model, PreTrainedModel) and model.can_generate()):
                raise UserError(f"{type(model).__name__}: has no `generate`; that is for causal models of transformers")
            return cast(Any, model).generate(*args, **kwargs)

    # ---- what is left of it

    def save(self, folder: str | Path) -> None:
        """A Hugging Face folder of the model as it is now; files on disk are linked, not copied."""
        self._write(Path(folder), optimizer=False)

    def snapshot(self, folder: str | Path) -> None:
        """As `save`, with the optimizer's state: `resume` goes on from there, exactly, on any placement."""
        self._write(Path(folder), optimizer=True)

    def resume(self, folder: str | Path) -> None:
        """Go on from a snapshot. Raises UserError naming a file that is missing or not what was written, or the two
        optimizers where they differ."""
        path = Path(folder) / SNAPSHOT
        if not path.is_file():
            raise UserError(f"{folder}: no {SNAPSHOT} there: it is not a snapshot of `snapshot`, or not a complete one")
        manifest = json.loads(path.read_text("utf-8"))
        ours = describe(self.optimizer.rule)
        theirs = manifest.get("optimizer", ours)
        if theirs != ours:
            raise UserError(
                f"{folder}: holds the state of {theirs}, and this model is trained with {ours}; take that one"
            )
        for name, stamp in manifest["sums"].items():
            file = Path(folder) / name
            if not file.is_file() or file_sum(file) != stamp:
                raise UserError(f"{file}: damaged or missing: its sum is not the one written in {SNAPSHOT}")
        self.streaming.fetcher.rest()
        read_snapshot(self.store, Path(folder))
        self.updates, self.running.seed, self.store.seed = manifest["updates"], manifest["seed"], manifest["seed"]

    def _write(self, folder: Path, optimizer: bool) -> None:
        aside = folder.with_name(f".{folder.name}.tmp")
        if folder.exists():
            raise UserError(f"{folder}: exists already; choose another name")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        self.streaming.fetcher.rest()
        try:
            sums = write_snapshot(self.store, aside, optimizer, *self.earlier)
            if self.config is not None:
                self.config.save_pretrained(aside)
            save_adapter_config(self.model, aside)
            rule = describe(self.optimizer.rule)
            state = {"updates": self.updates, "seed": self.running.seed, "optimizer": rule, "sums": sums}
            if optimizer:
                (aside / SNAPSHOT).write_text(json.dumps(state, indent=1))
            aside.rename(folder)
            self.earlier = folder, sums
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise UserError(f"{folder}: cannot be written ({error.strerror})") from None

    @contextmanager
    def evaluating(self) -> Iterator[nn.Module]:
        """The module in evaluation mode, without gradients; its weights are fetched as it runs. For metrics, and for
        `generate` of transformers."""
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad(), self.streaming.evaluating():
                yield self.model
        finally:
            self.model.train(was_training)

    def _refuse(self, loss: float, norm: float) -> None:
        self.store.gradients.drop()
        updated = "nothing was updated" if not self.store.eager else "segments may have been updated already"
        raise UserError(
            f"update {self.updates + 1}: loss {loss}, gradient norm {norm}: not finite, {updated}. Lower the learning "
            f"rate, or look at this batch"
        )

    def close(self) -> None:
        """End the threads that move data and let go of the store's folder. What was not saved is lost."""
        self.streaming.close()
        self.store.close()

    def __enter__(self) -> "StreamedModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def next_token_loss(model: Any, inputs: Mapping[str, Any], run_head: Callable[..., Any], share: float = 1.0) -> Tensor:
    """The model's own loss times share, its head and loss in one function: the same operations as in its forward, without
    a graph that holds the logits of all microbatches."""
    hidden = model.base_model(**{name: value for name, value in inputs.items() if name != "labels"}).last_hidden_state
    lm_head = model.lm_head.block if isinstance(model.lm_head, StreamedSegment) else model.lm_head

    def head(hidden: Tensor, labels: Tensor) -> Tensor:
        return model.loss_function(lm_head(hidden), labels, model.config.vocab_size) * share

    return run_head(head, hidden, inputs["labels"])


def room_for_two(store: Store, segments: Sequence[Segment], tiers: Sequence[Placement]) -> int:
    """Bytes of weights in these tiers of a segment and its neighbour, the largest such sum: one computes while the other is
    fetched."""
    needs = []
    for i, segment in enumerate(segments):
        owners = {i, *(store.owner[name] for name in segment.borrowed)}
        needs.append(sum(4 * store.layouts[j].size + 4096 for j in owners if store.placements[j] in tiers))
    return max((a + b for a, b in pairwise([*needs, 0])), default=0)


def no_cache(model: nn.Module) -> None:
    """Keys and values kept for generation have no use in training, and a block that runs twice would add to them twice."""
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "use_cache"):
            config.use_cache = False


def _split(batch: Mapping[str, Any], size: int | None, device: torch.device) -> list[dict[str, Any]]:
    tensors = {name: value.to(device) for name, value in batch.items() if isinstance(value, Tensor)}
    length = len(next(iter(tensors.values())))
    size = size or length
    return [
        {name: (tensors[name][a : a + size] if name in tensors else value) for name, value in batch.items()}
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
    pool_bytes: int | None = None,
    host_pool_bytes: int | None = None,
    held_gradient_bytes: int = 0,
    stage_bytes: int = 0,
    spill_bytes: int = 64 << 20,
    spill_host_bytes: int = 0,
    tidy_above_bytes: int | None = None,
    loss_of: Loss = model_loss,
    device: torch.device | None = None,
    autocast: Callable[[], Any] = nullcontext,
) -> StreamedModel:
    """A streamed model from a module. weights: values of a segment's parameters; None = those the module holds. device
    None: the CPU. autocast: arithmetic of forward and backward."""
    device = device or torch.device("cpu")
    for buffer in model.buffers():
        buffer.data = buffer.data.to(device)
    segments = segments_of(model)
    config = _config_to_save(model, optimizer)
    no_cache(model)
    places = list(placements(segments) if callable(placements) else placements)
    store = Store(
        segments,
        optimizer.rule,
        optimizer.no_decay,
        device,
        places,
        folder,
        held_gradient_bytes=held_gradient_bytes,
        stage_bytes=stage_bytes,
        eager=optimizer.eager,
        seed=seed,
    )
    for i, segment in enumerate(segments):
        if weights is not None:
            store.fill(i, weights(segments, i))
        elif store.placements[i] != "device":  # on the device they were taken over when the store was made
            store.fill(i, {name: parameter.detach() for name, parameter in segment.parameters.items()})
    running = Pass(seed)
    head = causal_head(model, segments)
    scratch = folder / "scratch" / "activations" if folder else None
    saved = Saved(scratch, spill_bytes, store.traffic, store.transfer, spill_host_bytes)
    chosen: list[Policy] = [policies] * len(segments) if isinstance(policies, str) else list(policies)
    if head is not None and loss_of is model_loss:
        chosen[head] = "at_once"
    if pool_bytes is None:
        pool_bytes = room_for_two(store, segments, ("ram", "disk"))
    if host_pool_bytes is None:
        host_pool_bytes = room_for_two(store, segments, ("disk",))
    streaming = Streaming(
        segments,
        store,
        running,
        saved,
        chosen,
        pool_bytes,
        host_pool_bytes,
        autocast=autocast,
        tidy_above_bytes=tidy_above_bytes,
    )
    install_segments(model, segments, streaming)
    return StreamedModel(model, segments, store, streaming, running, optimizer, microbatch, loss_of, config)


def _config_to_save(model: nn.Module, optimizer: Optimizer) -> PretrainedConfig | None:
    """The model's config as it came, with what the saved files are."""
    if not isinstance(model, PreTrainedModel):
        return None
    config = copy.deepcopy(model.config)
    config.architectures, config.dtype = [type(model).__name__], optimizer.rule.weight_dtype
    return config
