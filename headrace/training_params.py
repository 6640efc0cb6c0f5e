"""The section training: phases of optimizer steps."""

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from headrace.lora_params import LoraParams
from headrace.optimizer_params import OptimizerParams
from headrace.schedule_params import Schedule
from headrace.sections import BelowOne, NonNegativeInt, PositiveInt, Section

Scale = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class PhaseParams(Section):
    sequence_length: Annotated[int, Field(ge=8)]
    """Longest example in tokens, special tokens included."""
    batch_size: PositiveInt
    """Sequences (examples) per optimizer step; split into microbatches automatically, with the same result."""
    steps: PositiveInt = 0
    """Optimizer steps of this phase; required, but for tasks on `data`, which may have epochs instead."""
    epochs: Annotated[float, Field(gt=0.0)] | None = None
    """How often every training row is seen, in place of steps; tasks on `data`."""
    max_predictions: PositiveInt | None = None
    """Most tokens predicted in one example; default mask_rate x sequence_length, rounded up."""
    learning_rate: Schedule | None = None
    """Schedule on the steps of this phase; without it `training.learning_rate` goes on, on the run's steps."""
    packing: bool | None = None
    """Lay several short examples in one row, isolated from each other; the numbers do not change, only the speed.
    Default: in each batch, whichever costs less."""
    buckets: list[PositiveInt] | None = None
    """Row lengths to pad to; default: to the longest row of the microbatch. The numbers do not change."""

    @field_validator("buckets")
    @classmethod
    def _buckets_fit(cls, value: list[int] | None, info: ValidationInfo) -> list[int] | None:
        length = info.data.get("sequence_length", 0)  # missing when that key is wrong itself, which is reported
        if value is not None and length and (not value or sorted(set(value)) != value or value[-1] > length):
            raise ValueError(f"should rise and end at or below sequence_length = {length}")
        return value

    @model_validator(mode="after")
    def _as_long_as_one_says(self) -> "PhaseParams":
        if not self.steps and self.epochs is None:
            raise ValueError("steps is required and not given (tasks on `data` may have epochs instead)")
        if self.steps and self.epochs is not None:
            raise ValueError(f"steps = {self.steps} and epochs = {self.epochs:g} exclude each other; leave one out")
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_not_given(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is written down is what may be read again."""
        return {key: value for key, value in plain(self).items() if key not in ("steps", "epochs") or value}


class LossScaleParams(Section):
    dynamic: bool = True
    """Halve the scale and skip the step when a gradient overflows, double it after growth_steps good steps; false: it never
    changes, and an overflow stops the run."""
    initial: Scale = 2.0**15
    """The scale of the first step."""
    growth_steps: PositiveInt = 2000
    min: Scale = 2.0**-14
    """An overflow at this scale stops the run."""
    max: Scale = 2.0**15

    @model_validator(mode="after")
    def _in_order(self) -> "LossScaleParams":
        if self.dynamic and not self.min <= self.initial <= self.max:
            raise ValueError(
                f"training.loss_scale.initial = {self.initial:g} should be between training.loss_scale.min = {self.min:g} and "
                f"training.loss_scale.max = {self.max:g}"
            )
        return self


class TrainingParams(Section):
    phases: Annotated[list[PhaseParams], Field(min_length=1)]
    learning_rate: Schedule | None = None
    """Schedule on the steps of the whole run, for phases that have none of their own."""
    peak_learning_rate: Scale | None = None
    """For tasks on `data` without learning_rate: it rises to this over the first `warmup` of all steps and falls to 0 at
    their end, in straight lines; default by task and size: see docs/fine-tuning.md."""
    warmup: BelowOne = 0.1
    """Share of all steps until the peak."""
    schedule_clock: Literal["in_sequence", "global_step"] = "in_sequence"
    """A list of schedules: each piece counts from its own start (in_sequence) or from the schedule's (global_step)."""
    optimizer: OptimizerParams = OptimizerParams()
    lora: LoraParams | None = None
    """Train small matrices beside the weights of model.init_from, which stay as they are (LoRA); default: train all weights.
    `{}` takes the defaults of its keys."""
    loss_scale: LossScaleParams = LossScaleParams()
    """In effect where device.precision is fp16."""
    microbatch_tokens: PositiveInt | None = None
    """Most token slots (padding included) that go through the model at once; default: chosen from the device."""
    input_workers: NonNegativeInt = 1
    """Processes that make batches ahead of training; 0 = made by the training process itself."""
    checkpoint_every: PositiveInt = 1000
    """Optimizer steps between checkpoints; one is also written at the end of a phase and on SIGTERM or Ctrl-C."""
    keep: PositiveInt = 3
    """Newest checkpoints that stay."""
    log_every: PositiveInt = 10
    """Optimizer steps between records in metrics.jsonl and TensorBoard."""
