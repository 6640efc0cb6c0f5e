"""Every key of the params with its type, default and meaning, from the models that check them."""

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from headrace import schedule_params
from headrace.model_params import DistributionParams
from headrace.params import Params
from headrace.sections import Section


def reference() -> str:
    """docs/params.md: one table a section."""
    lines = [
        "# Params",
        "",
        "Every key of a run's YAML, made by `headrace params`. Any of them can be changed on the command line:",
        "`headrace run P.yaml training.phases.0.steps=100`. Unknown keys are refused.",
    ]
    for path, model in _sections("", Params):
        lines += _table(path or "top level", model)
    lines += ["", "# Learning rates", "", "A number, one of these, or a list of them."]
    for model in (
        schedule_params.ConstantSchedule,
        schedule_params.LinearSchedule,
        schedule_params.PolynomialSchedule,
        schedule_params.CosineSchedule,
        schedule_params.ExponentialSchedule,
        schedule_params.PiecewiseSchedule,
    ):
        lines += _table(f"kind: {model.model_fields['kind'].default}", model)
    lines += ["", "# Distributions"]
    lines += _table("of initial weights", DistributionParams)
    return "\n".join(lines) + "\n"


def _table(title: str, model: type[BaseModel]) -> list[str]:
    lines = ["", f"## {title}", "", "| key | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        if not _inner(field.annotation):
            meaning = " ".join((field.description or "").split())
            lines.append(
                f"| `{name}` | {_type(field.annotation)} | {_default(field)} | {meaning} |".replace("|  |", "| |")
            )
    return lines if len(lines) > 5 else []


def _sections(path: str, model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    yield path, model
    for name, field in model.model_fields.items():
        if inner := _inner(field.annotation):
            many = ".N" if get_origin(_bare(field.annotation)) is list else ""
            yield from _sections(f"{path}.{name}{many}".lstrip("."), inner)


def _bare(annotation: Any) -> Any:
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _inner(annotation: Any) -> type[BaseModel] | None:
    """The params model an annotation holds, schedules aside."""
    annotation = _bare(annotation)
    if get_origin(annotation) is list:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):  # a section that may be left out
        sections = [each for each in get_args(annotation) if each is not type(None)]
        annotation = sections[0] if len(sections) == 1 else annotation
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation is not DistributionParams:
        return annotation if issubclass(annotation, Section) else None
    return None


def _type(annotation: Any) -> str:
    if "Schedule" in str(annotation):
        return "learning rate"
    annotation = _bare(annotation)
    if annotation is DistributionParams:
        return "distribution"
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join("null" if each is type(None) else _type(each) for each in arguments)
    if origin is list:
        return f"list of {_type(arguments[0])}"
    if origin is tuple:
        return f"{len(arguments)} x {_type(arguments[0])}"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true or false", "Path": "path"}.get(
        getattr(annotation, "__name__", ""), str(annotation)
    )


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "null"
    value = list(field.default) if isinstance(field.default, tuple) else field.default
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
