"""From params and a vocabulary to a model whose weights lie in a store."""

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PretrainedConfig, PreTrainedModel

from headrace.errors import UserError
from headrace.models.folder import open_weights
from headrace.models.initial import first_weights
from headrace.models.segments import segments_of
from headrace.optim import LossScale
from headrace.params import Params
from headrace.planning.device import Precision
from headrace.planning.plan import Plan
from headrace.planning.run import new_model, plan_run, store_folder
from headrace.progress import say
from headrace.run_folder import RunFolder, model_folder
from headrace.store.store import Store
from headrace.streaming.activations import Policy, Saved
from headrace.streaming.executor import Pass, Streaming
from headrace.streaming.segment import install_segments
from headrace.tasks import Task, task_of
from headrace.text.vocabulary import Vocabulary
from headrace.training.optimizers import update_rule


@dataclass
class Trainable:
    """A model with its weights in a store. `config` is what a checkpoint saves."""

    task: Task
    model: PreTrainedModel
    config: PretrainedConfig
    store: Store
    streaming: Streaming
    vocabulary_weight: torch.Tensor
    """A row a token (V, H): the output layer's where the model has one, else the embeddings'."""
    plan: Plan | None = None
    """None: everything on the device, without a look at what fits."""

    def close(self) -> None:
        """End the threads that move data."""
        self.streaming.close()
        self.store.close()


def build_trainable(
    params: Params,
    vocabulary: Vocabulary | None,
    precision: Precision,
    run: RunFolder | None = None,
    initialize: bool = True,
    weights: Path | None = None,
) -> Trainable:
    """The model with its initial weights, every segment placed where the plan says. run None: all on the device, no plan.

    vocabulary None: the params say how large it is. initialize False: a checkpoint will give the weights. weights: a Hugging
    Face folder to take initial weights from, by default model.init_from; what it has none for begins anew. Raises UserError
    where they do not fit."""
    task = task_of(params)
    config = task.config(params, vocabulary)
    if weights is None and initialize and params.model.init_from is not None:
        weights = model_folder(params.model.init_from)
    extension = vocabulary.extension if vocabulary is not None else None
    model = new_model(params, config, precision.device, extension)
    held = open_weights(weights, model, extension=extension) if weights is not None else None
    if held is not None:
        held.fill_buffers(model)
        say(held.summary() + ("; those not in its files begin anew" if held.new else ""))
    vocabulary_layer = model.get_output_embeddings() or model.get_input_embeddings()
    vocabulary_weight = vocabulary_layer.weight
    assert isinstance(vocabulary_weight, torch.Tensor)
    segments = segments_of(model)
    head = next((i for i, segment in enumerate(segments) if segment.name == task.HEAD), -1)
    rule, plan = update_rule(params), None
    if run is not None:
        plan = plan_run(params, model, segments, rule, precision)
    folder = store_folder(params)
    if plan is not None and plan.streams:
        folder.mkdir(parents=True, exist_ok=True)
    store = Store(
        segments,
        rule,
        params.training.optimizer.no_decay,
        precision.device,
        plan.placements if plan is not None else None,
        folder,
        held_gradient_bytes=plan.held_gradient_bytes if plan is not None else 0,
        stage_bytes=plan.stage_bytes if plan is not None else 0,
        eager=params.training.optimizer.eager,
        seed=params.run.seed,
    )
    for i in range(len(segments) if initialize else 0):
        store.fill(i, first_weights(model, segments, i, params.run.seed, held, params.model.initial))
    policies: list[Policy] = plan.policies if plan is not None else ["keep"] * len(segments)
    streaming = Streaming(
        segments,
        store,
        Pass(params.run.seed),
        Saved(
            folder / "scratch" / "activations",
            plan.spill_bytes if plan is not None else 0,
            store.traffic,
            store.transfer,
            plan.spill_host_bytes if plan is not None else 0,
        ),
        policies,
        plan.pool_bytes if plan is not None else 0,
        plan.host_pool_bytes if plan is not None else 0,
        autocast=precision.autocast,
        head=head,
        tidy_above_bytes=plan.tidy_above_bytes if plan is not None else None,
    )
    install_segments(model, segments, streaming, run_by_task=[task.HEAD])
    return Trainable(task, model, config, store, streaming, vocabulary_weight, plan)


def check_model(params: Params) -> None:
    """Refuse, before anything is made, a model that transformers, the task or the sequence lengths do not fit."""
    positions = getattr(task_of(params).config(params, None), "max_position_embeddings", None)
    for i, phase in enumerate(params.training.phases):
        if positions is not None and phase.sequence_length > positions:
            raise UserError(
                f"training.phases.{i}.sequence_length = {phase.sequence_length} is over the model's "
                f"max_position_embeddings = {positions}; lower the one or raise the other"
            )


def initial_loss_scale(params: Params, precision: Precision) -> LossScale:
    given = params.training.loss_scale
    if precision.dtype is not torch.float16:
        return LossScale.static(1.0)
    if not given.dynamic:
        return LossScale.static(given.initial)
    return LossScale(given.initial, growth_steps=given.growth_steps, min_scale=given.min, max_scale=given.max)
