"""The Estimator of the Model Zoo's users, in PyTorch terms, on `headrace.stream`.

from headrace.modelzoo import CerebrasEstimator, CSRunConfig
est_config = CSRunConfig(cs_ip=params["cs_ip"], cs_config=cs_config)
est = CerebrasEstimator(model_fn=model_fn, model_dir="./out", config=est_config, params=params, use_cs=True)
est.train(input_fn, max_steps=100000, use_cs=True)

input_fn(params) returns something to iterate over, a torch DataLoader for instance: each item is a batch, (features, labels)
or features alone. Features are a tensor or a dict of tensors, labels a tensor, a dict of tensors or None; examples lie along
the first dimension. The same params must give the same batches, so that a run can go on where it stopped.

model_fn(features, labels, mode, params) is called once, with the first batch, and returns an EstimatorSpec.
"""

import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import PretrainedConfig

from headrace.errors import UserError
from headrace.progress import progress, say
from headrace.run_folder import RunFolder
from headrace.training.loop import Stopped, stop_on_signals
from headrace.training.optimizers import Optimizer
from headrace.training.records import append_record, keep_until
from headrace.training.stream import stream
from headrace.training.streamed_model import SNAPSHOT, StreamedModel

Features = Tensor | Mapping[str, Tensor]
Labels = Tensor | Mapping[str, Tensor] | None
InputFn = Callable[[Any], Iterable[Any]]


class ModeKeys:
    """What model_fn's `mode` says."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"


@dataclass(frozen=True)
class EstimatorSpec:
    """What model_fn returns, the same model and optimizer in every mode.

    model: what `headrace.stream` takes: a module with a list of blocks, a transformers config (new weights), a preset's name,
    or a Hugging Face folder. loss: (model, features, labels) -> mean loss of a batch (); None: model(**features,
    labels=labels).loss, for models of transformers. metrics: (model, features, labels) -> numbers by name, each the mean over
    the batch's examples. predictions: (model, features) -> tensors by name, examples along the first dimension; None: the
    model's logits, or what else it returns."""

    model: str | Path | nn.Module | PretrainedConfig
    optimizer: Optimizer
    loss: Callable[[nn.Module, Any, Any], Tensor] | None = None
    metrics: Callable[[nn.Module, Any, Any], Mapping[str, Any]] | None = None
    predictions: Callable[[nn.Module, Any], Mapping[str, Tensor]] | None = None


@dataclass(frozen=True)
class RunConfig:
    """How to train. memory, store, microbatch: as for `headrace.stream`; store: default model_dir/store."""

    cs_ip: str | None = None
    """Accepted, without effect, as cs_config is: training runs on this machine."""
    cs_config: Any = None
    model_dir: str | Path | None = None
    save_checkpoints_steps: int = 1000
    keep_checkpoint_max: int = 5
    """0: all of them."""
    save_summary_steps: int = 100
    """Steps between records in metrics.jsonl."""
    tf_random_seed: int | None = None
    memory: str | int | None = None
    store: str | Path | None = None
    microbatch: int | None = None


@dataclass
class Estimator:
    """Trains, evaluates and predicts from `model_dir`: each call goes on from the newest checkpoint there."""

    model_fn: Callable[[Any, Any, str, Any], EstimatorSpec]
    model_dir: str | Path | None = None
    config: RunConfig = field(default_factory=RunConfig)
    params: Any = None
    use_cs: bool = False
    _said: bool = field(default=False, init=False, repr=False)

    def train(
        self, input_fn: InputFn, steps: int | None = None, max_steps: int | None = None, use_cs: bool = False
    ) -> "Estimator":
        """Train `steps` more steps, or until step `max_steps`, or with neither once through the input.

        Batches that the run has trained on are passed over; where the input ends it begins anew. Raises Stopped after SIGTERM
        or Ctrl-C, with a checkpoint, and UserError: empty input, a loss that is not finite, what `headrace.stream` raises."""
        self._say_cs(use_cs)
        for name, value in (("steps", steps), ("max_steps", max_steps)):
            if value is not None and value < 1:
                raise UserError(f"train({name}={value}): should be 1 or more")
        self._run.create()
        with self._open(input_fn, ModeKeys.TRAIN) as (model, _):
            done = model.updates
            if max_steps is not None and done >= max_steps:
                say(f"Training: done, step {done} of {max_steps}")
                return self
            last = min(x for x in (max_steps, done + steps if steps else None, math.inf) if x is not None)
            keep_until(self._run.metrics, done)
            self._train(model, _endless(input_fn, self.params, done, last == math.inf), last)
        return self

    def _train(self, model: StreamedModel, batches: Iterator[Any], last: float) -> None:
        config, since_s, since = self.config, time.perf_counter(), model.updates
        total = last if last < math.inf else None
        with progress("Training", total, "steps", done=model.updates) as meter, stop_on_signals() as stop_asked:
            for batch in batches if last == math.inf else islice(batches, int(last) - model.updates):
                loss = model.step(_flat(*_pair(batch)))
                step, is_last = model.updates, model.updates == last
                meter.advance(note=f"loss {loss:.3f}")
                if step % config.save_summary_steps == 0 or is_last:
                    rate = (step - since) / (time.perf_counter() - since_s)
                    record = {"step": step, "loss": loss, "gradient_norm": model.gradient_norm, "steps_per_s": rate}
                    append_record(self._run.metrics, record)
                    say(f"global step {step}: loss = {loss:.8g} ({rate:.3g} steps/sec)")
                    since_s, since = time.perf_counter(), step
                if stop_asked():
                    self._save(model)
                    raise Stopped(f"Stopped at step {step}; the same call goes on from there")
                if step % config.save_checkpoints_steps == 0:
                    self._save(model)
        if model.updates % config.save_checkpoints_steps:
            self._save(model)

    def evaluate(
        self,
        input_fn: InputFn,
        steps: int | None = None,
        checkpoint_path: str | Path | None = None,
        use_cs: bool = False,
    ) -> dict[str, float]:
        """Loss and metrics over the input, or its first `steps` batches, each weighted by its examples."""
        self._say_cs(use_cs)
        sums: dict[str, float] = {}
        num_examples, started_s = 0, time.perf_counter()
        with self._open(input_fn, ModeKeys.EVAL, checkpoint_path) as (model, spec):
            for k, batch in enumerate(islice(iter(input_fn(self.params)), steps)):
                features, labels = _pair(batch)
                flat = _flat(features, labels)
                found: dict[str, Any] = {"loss": model.evaluate(flat)}
                if spec.metrics is not None:
                    with model.evaluating() as module:
                        found |= spec.metrics(module, features, labels)
                size = len(next(iter(flat.values())))
                for name, value in found.items():
                    sums[name] = sums.get(name, 0.0) + float(value) * size
                num_examples += size
                say(f"Evaluation [{k + 1}/{steps if steps is not None else '?'}]")
            step = model.updates
        elapsed_s = time.perf_counter() - started_s
        say(
            f"Evaluation finished with {num_examples} samples in {elapsed_s:.2f} seconds, "
            f"{num_examples / elapsed_s:.2f} samples/second."
        )
        figures = {name: value / num_examples for name, value in sums.items()}
        shown = ", ".join(f"{name} = {value:.8g}" for name, value in sorted(figures.items()))
        say(f"Saving dict for global step {step}: {shown}")
        append_record(self._run.evaluations, {"step": step, **figures})
        return {**figures, "global_step": step}

    def predict(
        self, input_fn: InputFn, checkpoint_path: str | Path | None = None, use_cs: bool = False
    ) -> Iterator[dict[str, Tensor]]:
        """The predictions of each example, one after the other."""
        self._say_cs(use_cs)
        with self._open(input_fn, ModeKeys.PREDICT, checkpoint_path) as (model, spec):
            for batch in input_fn(self.params):
                features, _ = _pair(batch)
                with model.evaluating() as module:
                    if spec.predictions is not None:
                        found = dict(spec.predictions(module, features))
                    else:
                        found = _outputs(module(**features) if isinstance(features, Mapping) else module(features))
                for i in range(len(next(iter(found.values())))):
                    yield {name: value[i] for name, value in found.items()}

    # ---- inside

    @property
    def _run(self) -> RunFolder:
        folder = self.model_dir or self.config.model_dir
        if folder is None:
            raise UserError("model_dir: is required, here or in the config; give a folder for checkpoints")
        return RunFolder(Path(folder))

    def _say_cs(self, use_cs: bool) -> None:
        if not self._said and (use_cs or self.use_cs or self.config.cs_ip or self.config.cs_config is not None):
            say("use_cs, cs_ip, cs_config: no effect: training runs on this machine")
            self._said = True

    def _checkpoints(self) -> list[Path]:
        return sorted(path for path in self._run.checkpoints.glob("step-*") if (path / SNAPSHOT).is_file())

    def _open(self, input_fn: InputFn, mode: str, checkpoint_path: str | Path | None = None) -> "_Opened":
        """The model as the newest checkpoint, or the one named, has it; new weights only to train."""
        folders = [Path(checkpoint_path)] if checkpoint_path is not None else self._checkpoints()
        if not folders and mode != ModeKeys.TRAIN:
            raise UserError(f"{self._run.checkpoints}: holds no checkpoint; train first, or give checkpoint_path")
        first = next(iter(input_fn(self.params)), None)
        if first is None:
            raise UserError("input_fn(params): gives no batch")
        features, labels = _pair(first)
        spec = self.model_fn(features, labels, mode, self.params)
        if not isinstance(spec, EstimatorSpec):
            raise UserError(f"model_fn: returned {type(spec).__name__}; an EstimatorSpec is expected")
        flat = _flat(features, labels)
        config = self.config
        made = stream(
            spec.model,
            optimizer=spec.optimizer,
            memory=config.memory,
            store=None if config.memory is None else (config.store or self._run.root / "store"),
            batch=flat,
            microbatch=config.microbatch,
            loss=_loss_of(spec, features, labels),
            seed=config.tf_random_seed or 0,
        )
        if folders:
            made.resume(folders[-1])
            say(f"Going on from {folders[-1]}")
        return _Opened(made, spec)

    def _save(self, model: StreamedModel) -> None:
        run = self._run
        run.checkpoints.mkdir(parents=True, exist_ok=True)
        target = run.checkpoints / f"step-{model.updates:08d}"
        if not target.exists():
            model.snapshot(target)
        kept = self.config.keep_checkpoint_max
        for old in self._checkpoints()[: -kept if kept else 0]:
            shutil.rmtree(old)


@dataclass(frozen=True)
class _Opened:
    model: StreamedModel
    spec: EstimatorSpec

    def __enter__(self) -> tuple[StreamedModel, EstimatorSpec]:
        return self.model, self.spec

    def __exit__(self, *_: object) -> None:
        self.model.close()


def _pair(batch: Any) -> tuple[Any, Any]:
    """(features, labels) of an item of the input."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, None


def _flat(features: Features, labels: Labels) -> dict[str, Tensor]:
    """All tensors of a batch by name. A tensor that is no dict's is called `features` or `labels`."""
    named = dict(features) if isinstance(features, Mapping) else {"features": features}
    more = dict(labels) if isinstance(labels, Mapping) else {} if labels is None else {"labels": labels}
    if both := named.keys() & more.keys():
        raise UserError(f"input_fn: features and labels both have {', '.join(sorted(both))}; give them other names")
    for name, value in (named | more).items():
        if not isinstance(value, Tensor):
            raise UserError(f"input_fn: {name} is a {type(value).__name__}; tensors are expected")
    return named | more


def _loss_of(spec: EstimatorSpec, features: Features, labels: Labels) -> Callable[..., Tensor] | None:
    """The spec's loss as `headrace.stream` calls it: on the named tensors of a microbatch."""
    loss = spec.loss
    if loss is None:
        return None
    features_named, labels_named = isinstance(features, Mapping), isinstance(labels, Mapping)
    names = set(labels) if isinstance(labels, Mapping) else set() if labels is None else {"labels"}

    def loss_of(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
        theirs = {name: value for name, value in inputs.items() if name not in names}
        of_labels = {name: inputs[name] for name in names}
        return loss(
            model,
            theirs if features_named else theirs["features"],
            of_labels if labels_named else of_labels.get("labels"),
        )

    return loss_of


def _outputs(output: Any) -> dict[str, Tensor]:
    if isinstance(output, Tensor):
        return {"predictions": output}
    return {name: value for name, value in output.items() if isinstance(value, Tensor)}


def _endless(input_fn: InputFn, params: Any, done: int, once: bool) -> Iterator[Any]:
    """The batches after the first `done`, pass after pass over the input; once: to the end of the pass."""
    if done:
        say(f"The input's first {done} batches are passed over: the run has trained on them")
    passed = 0
    while True:
        before = passed
        for batch in input_fn(params):
            passed += 1
            if passed > done:
                yield batch
        if passed == before:
            raise UserError("input_fn(params): gives no batch")
        if once and passed > done:
            return
