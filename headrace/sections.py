"""What every section of the params is made of: a strict, frozen model, and the types of its numbers."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

PositiveInt = Annotated[int, Field(gt=0)]
NonNegativeInt = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
BelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]

_UNITS = {"": 1, "B": 1} | {f"{p}{u}": b**k for u, b in (("B", 1000), ("iB", 1024)) for k, p in enumerate("KMGT", 1)}


def parse_bytes(value: Any) -> Any:
    """A number of bytes from text such as 8GiB, 500MiB or 8GB; anything but text stays what it is."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", value)
    unit = match and {name.lower(): size for name, size in _UNITS.items()}.get(match[2].lower())
    if not match or not unit:
        raise ValueError("should be a number of bytes or a size such as 8GiB, 500MiB or 8GB")
    return round(float(match[1]) * unit)


ByteSize = Annotated[int, BeforeValidator(parse_bytes), Field(gt=0)]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic takes true for 1, and YAML reads a bare yes, no, on or off as true or false."""
        wanted = str(cls.model_fields[info.field_name or ""].annotation)
        if isinstance(value, bool) and "bool" not in wanted and "Literal" not in wanted:
            raise ValueError("should not be true or false")
        return value
