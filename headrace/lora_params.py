"""The keys of training.lora: what is trained beside a frozen model."""

from typing import Annotated

from pydantic import Field

from headrace.sections import BelowOne, PositiveInt, Section


class LoraParams(Section):
    rank: PositiveInt = 8
    """Width of what is put beside each target: its update is a product of two matrices of this rank."""
    alpha: Annotated[float, Field(gt=0.0)] = 16.0
    """The product is scaled by alpha / rank."""
    dropout: BelowOne = 0.0
    """On what goes into the product."""
    targets: Annotated[list[str], Field(min_length=1)] | None = None
    """Ends of the names of the layers that get one, such as [query, value]; default: peft's for the kind of model."""
    train: list[str] | None = None
    """Modules that are trained in full, such as [classifier]; default: those that model.init_from has no weights for."""
