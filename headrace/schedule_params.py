"""How a learning rate is written in YAML: a number, one schedule, or a list of schedules that follow each other.

    learning_rate: 1.0e-4
    learning_rate: {kind: cosine, start: 1.0e-4, end: 1.0e-5, steps: 100000}
    learning_rate:
      - {kind: linear, start: 0.0, end: 1.0e-4, steps: 10000}
      - {kind: linear, start: 1.0e-4, end: 0.0, steps: 900000}

Enters: plain data from YAML. Leaves: frozen models. Their arithmetic is in `headrace.optim.schedules`; it is kept apart
so that reading params needs no torch. Steps count optimizer updates from 0; rates are per update.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

Rate = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Steps = Annotated[int, Field(gt=0)]


class _ScheduleParams(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ConstantSchedule(_ScheduleParams):
    kind: Literal["constant"] = "constant"
    value: Rate
    """The learning rate of every step."""
    steps: Steps | None = None
    """How long this lasts when another schedule follows in a list."""


class LinearSchedule(_ScheduleParams):
    kind: Literal["linear"] = "linear"
    start: Rate
    """Learning rate at step 0."""
    end: Rate
    """Learning rate at step `steps` and, when nothing follows, from then on."""
    steps: Steps
    """Steps from start to end."""
    lasts: Steps | None = None
    """Steps until the next schedule of a list begins; default: `steps`."""


class PolynomialSchedule(_ScheduleParams):
    kind: Literal["polynomial"] = "polynomial"
    start: Rate
    """Learning rate at step 0."""
    end: Rate
    """Learning rate at step `steps` and, when nothing follows, from then on."""
    steps: Steps
    """Steps from start to end."""
    lasts: Steps | None = None
    """Steps until the next schedule of a list begins; default: `steps`."""
    power: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Exponent of the remaining share of the steps; 1 = linear, 2 = fast first, then slow."""
    cycle: bool = False
    """After `steps`, jump up and decay again over ever longer spans of 2, 3, ... times `steps` counted from step 0."""


class CosineSchedule(_ScheduleParams):
    kind: Literal["cosine"] = "cosine"
    start: Rate
    """Learning rate at step 0."""
    end: Rate
    """Learning rate at step `steps` and, when nothing follows, from then on."""
    steps: Steps
    """Steps from start to end: half a wave."""
    lasts: Steps | None = None
    """Steps until the next schedule of a list begins; default: `steps`."""


class ExponentialSchedule(_ScheduleParams):
    kind: Literal["exponential"] = "exponential"
    start: Rate
    """Learning rate at step 0."""
    decay_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
    """The rate is multiplied by this once every `decay_steps` steps."""
    decay_steps: Steps
    """Steps for one multiplication by `decay_rate`."""
    staircase: bool = False
    """Multiply at once every `decay_steps` steps, instead of a little at each step."""
    steps: Steps | None = None
    """How long this lasts when another schedule follows; as the last one, the rate is held from then on."""


class PiecewiseSchedule(_ScheduleParams):
    kind: Literal["piecewise"] = "piecewise"
    boundaries: Annotated[tuple[Steps, ...], Field(min_length=1)]
    """Steps at which the next value begins: boundary 100 means that steps 0 to 99 have the value before it."""
    values: tuple[Rate, ...]
    """Learning rates between the boundaries; one more than there are boundaries."""
    steps: Steps | None = None
    """How long this lasts when another schedule follows; as the last one, the rate is held from then on."""

    @model_validator(mode="after")
    def _one_value_between_boundaries(self) -> "PiecewiseSchedule":
        if any(b <= a for a, b in zip(self.boundaries, self.boundaries[1:], strict=False)):
            raise ValueError(f"boundaries = {list(self.boundaries)} must rise")
        if len(self.values) != len(self.boundaries) + 1:
            raise ValueError(
                f"values has {len(self.values)} entries for {len(self.boundaries)} boundaries; "
                f"give {len(self.boundaries) + 1}, one more than boundaries"
            )
        return self


def duration(piece: Any) -> int | None:
    """Steps until the schedule after this one begins; None: it does not say."""
    return getattr(piece, "lasts", None) or piece.steps


def _kind(value: Any) -> Any:
    return value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)


SchedulePiece = Annotated[
    Annotated[ConstantSchedule, Tag("constant")]
    | Annotated[LinearSchedule, Tag("linear")]
    | Annotated[PolynomialSchedule, Tag("polynomial")]
    | Annotated[CosineSchedule, Tag("cosine")]
    | Annotated[ExponentialSchedule, Tag("exponential")]
    | Annotated[PiecewiseSchedule, Tag("piecewise")],
    Discriminator(
        _kind,  # and not "kind", for which pydantic has messages of its own that name no remedy
        custom_error_type="schedule_kind",
        custom_error_message="should have kind: constant, linear, polynomial, cosine, exponential or piecewise",
    ),
]


def _all_but_the_last_end(pieces: tuple[SchedulePiece, ...]) -> tuple[SchedulePiece, ...]:
    if not pieces:
        raise ValueError("is an empty list; give at least one schedule")
    for i, piece in enumerate(pieces[:-1]):
        if piece.steps is None:
            raise ValueError(
                f"entry {i} ({piece.kind}) needs steps (how long it lasts); only the last entry may go without"
            )
    return pieces


def _form(value: Any) -> str:
    if isinstance(value, dict | BaseModel):
        return "one[kind]"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "list[kind]"
    return "float"


# Choosing the form first gives one error about what was written; a plain union gives one for each form it could have
# been. The brackets in a tag tell readers of pydantic's error location that it is no YAML key.
Schedule = Annotated[
    Annotated[Rate, Tag("float")]
    | Annotated[SchedulePiece, Tag("one[kind]")]
    | Annotated[tuple[SchedulePiece, ...], AfterValidator(_all_but_the_last_end), Tag("list[kind]")],
    Discriminator(_form),
]
