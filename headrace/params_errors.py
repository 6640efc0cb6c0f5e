"""What is wrong with a user's params, in words of YAML and not of pydantic."""

import difflib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel


def explain(problem: Any, root: type[BaseModel]) -> str:
    """One line for one of pydantic's errors in a model of root."""
    loc: tuple[int | str, ...] = problem["loc"]
    # A union's loc carries the name of the variant, which is no YAML key; tags are dropped by walking the models.
    path = ".".join(str(part) for part in loc if not _is_union_tag(part)) or "params"
    value, kind = problem["input"], problem["type"]
    if kind == "extra_forbidden":
        valid = sorted(_keys_beside(loc, root))
        near = difflib.get_close_matches(str(loc[-1]), valid, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return f"{path}: unknown key{hint} (valid keys: {', '.join(valid)})"
    if kind == "missing":
        return f"{path}: is required and not given"
    message = _requirement(problem, root)
    if kind == "value_error" and isinstance(value, dict | BaseModel):
        return message if "." in message.split(" ")[0] else f"{path}: {message}"
    shown = repr(value)
    return f"{path} = {shown if len(shown) <= 80 else shown[:77] + '...'}: {message}"


def _requirement(problem: Any, root: type[BaseModel]) -> str:
    """What a value should be, in words of YAML and not of pydantic."""
    kind, context = problem["type"], problem.get("ctx", {})
    match kind:
        case "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size":
            return "should be a whole number"
        case "float_type" | "float_parsing":
            return "should be a number"
        case "finite_number":
            return "should be a finite number"
        case "bool_type" | "bool_parsing":
            return "should be true or false"
        case "string_type":
            return "should be text"
        case "path_type":
            return "should be a path"
        case "list_type" | "tuple_type":
            return "should be a list"
        case "too_short":
            return (
                f"should have at least {context['min_length']} {'entry' if context['min_length'] == 1 else 'entries'}"
            )
        case "too_long":
            return f"should have at most {context['max_length']} entries"
        case "model_type" | "model_attributes_type" | "dict_type":
            keys = ", ".join(sorted(_keys_beside((*problem["loc"], ""), root)))
            return f"should be a section with keys of its own ({keys})"
        case "invalid_key":
            return "is no key; keys are words"
        case "greater_than":
            return f"should be more than {context['gt']:g}"
        case "greater_than_equal":
            return f"should be {context['ge']:g} or more"
        case "less_than":
            return f"should be less than {context['lt']:g}"
        case "less_than_equal":
            return f"should be {context['le']:g} or less"
        case "literal_error":
            return f"should be {context['expected']}"
    return problem["msg"].removeprefix("Value error, ")


_UNION_TAGS = {"constant", "linear", "polynomial", "cosine", "exponential", "piecewise"}


def _is_union_tag(part: int | str) -> bool:
    return isinstance(part, str) and (part in _UNION_TAGS or "[" in part or part in ("float", "int"))


def _keys_beside(loc: tuple[int | str, ...], root: type[BaseModel]) -> set[str]:
    """The keys the innermost model on the way to loc knows."""
    models: list[type[BaseModel]] = [root]
    for part in loc[:-1]:
        if not isinstance(part, str):
            continue
        following = [
            m for model in models if part in model.model_fields for m in _models_in(model.model_fields[part].annotation)
        ]
        if part in _UNION_TAGS:
            following = [m for m in models if _tag_of(m) == part]
        models = following or models
    return {name for model in models for name in model.model_fields}


def _tag_of(model: type[BaseModel]) -> str | None:
    field = model.model_fields.get("kind")
    return get_args(field.annotation)[0] if field is not None and get_args(field.annotation) else None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models_in(argument)
