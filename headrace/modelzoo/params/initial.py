"""Initialisers: the tool's specifications as our model.initial.

Sources: R_1.6.1 `common/tf/model_utils/create_initializer.py` and `transformers/tf/gptj/utils.py`, Release_1.8.0
`common/pytorch/model_utils/create_initializer.py`. Where TensorFlow cuts a normal distribution it does so at two standard
deviations.
"""

import math
from typing import Any

from headrace.errors import UserError
from headrace.modelzoo.params.draft import Draft
from headrace.modelzoo.params.keys import Given, nearest, shown, typed
from headrace.modelzoo.params.parts import Parts

# Name -> the keys that mean something to it.
_SPECS: dict[str, tuple[str, ...]] = {
    "constant": ("value", "val"),
    "zeros": (),
    "ones": (),
    "uniform": ("minval", "maxval", "a", "b"),
    "normal": ("mean", "stddev", "std"),
    "truncated_normal": ("mean", "stddev", "std", "a", "b"),
    "variance_scaling": ("scale", "scale_type", "mode", "distribution", "seed"),
    "scaled_init_normal": ("key", "mean", "sigma", "distribution"),
    "glorot_uniform": ("gain",),
    "glorot_normal": ("gain",),
    "xavier_uniform": ("gain",),
    "xavier_normal": ("gain",),
    "lecun_uniform": (),
    "lecun_normal": (),
}


def put_initial(draft: Draft, parts: Parts, vocabulary_size: int) -> None:
    """model.initial, complete: no initial weight is left to a default that could differ from the tool's."""
    model, tensorflow, family = parts.model, parts.kind.tensorflow, parts.kind.family
    layers = model["num_hidden_layers"]
    width = model.get("initializer_range", 0.02)
    usual = Given({"name": "truncated_normal", "std": width}, model.where("initializer_range"))

    def put(role: str, given: Given) -> None:
        for key, value in distribution(given, tensorflow, layers, vocabulary_size).items():
            draft.put(f"model.initial.{role}.{key}", value, given.path)

    if family == "bert":
        matrices = parts.initializer or (
            Given({"name": "truncated_normal", "std": 0.02}, "the tool's default of initializer")
            if tensorflow
            else usual
        )
        put("embeddings", model.given.get("embedding_initializer", matrices))
        model.has("embedding_initializer")
        put("matrices", matrices)
        return
    given = {
        name: model.given.get(name) for name in ("initializer", "embedding_initializer", "output_layer_initializer")
    }
    for name in given:
        model.has(name)
    matrices = given["initializer"] or usual
    put("embeddings", given["embedding_initializer"] or (matrices if tensorflow else usual))
    put("matrices", matrices)
    outputs = given["output_layer_initializer"]
    if outputs is None and family == "gpt2":
        scaled = {"name": "truncated_normal", "std": width / math.sqrt(2 * layers)}
        outputs = Given(scaled, model.where("output_layer_initializer"))
    if outputs is not None:
        put("outputs", outputs)


def distribution(given: Given, tensorflow: bool, layers: int, vocabulary_size: int) -> dict[str, Any]:
    """A specification as one of our distributions. Raises UserError for one that is not available."""
    spec, path = given.value, given.path
    if isinstance(spec, list) and len(spec) == 1:
        spec = spec[0]
    if isinstance(spec, str):
        spec = {"name": spec}
    if not isinstance(spec, dict) or not isinstance(spec.get("name"), str):
        raise UserError(f"{path} = {shown(given.value)}: should be a name, or a section with a name")
    name = spec["name"].lower()
    if name not in _SPECS:
        raise UserError(
            f"{path}.name = {name!r}: no such initializer{nearest(name, _SPECS)} (there are {', '.join(_SPECS)})"
        )
    for key in spec:
        if key != "name" and key not in _SPECS[name]:
            raise UserError(f"{path}.{key}: {name} has no such key{nearest(key, _SPECS[name])}")

    def number(*names: str, default: float) -> float:
        for each in names:
            if spec.get(each) is not None:
                return typed(spec[each], "float", f"{path}.{each}")
        return default

    match name:
        case "constant" | "zeros" | "ones":
            value = number("value", "val", default=1.0 if name == "ones" else 0.0)
            return {"kind": "constant", "mean": value}
        case "uniform":
            return {
                "kind": "uniform",
                "low": number("minval", "a", default=-0.05),
                "high": number("maxval", "b", default=0.05),
            }
        case "normal":
            return {"kind": "normal", "mean": number("mean", default=0.0), "std": number("stddev", "std", default=0.05)}
        case "truncated_normal":
            mean, std = number("mean", default=0.0), number("stddev", "std", default=0.05)
            low, high = number("a", default=mean - 2 * std), number("b", default=mean + 2 * std)
            return {"kind": "truncated_normal", "mean": mean, "std": std, "low": low, "high": high}
        case "scaled_init_normal":
            by = {None: 1.0, "num_hidden_layers": 2.0 * layers, "vocab_size": float(vocabulary_size)}
            if spec.get("key") not in by:
                raise UserError(f"{path}.key = {shown(spec['key'])}: should be num_hidden_layers or vocab_size")
            std, mean = number("sigma", default=1.0) / math.sqrt(by[spec.get("key")]), number("mean", default=0.0)
            if spec.get("distribution", "normal") == "normal":
                return {"kind": "normal", "mean": mean, "std": std}
            return {"kind": "truncated_normal", "mean": mean, "std": std, "low": mean - 2 * std, "high": mean + 2 * std}
        case "variance_scaling":
            return _variance_scaling(spec, path, tensorflow, layers, number)
    scale = number("gain", default=1.0) ** 2
    fan = "in" if name.startswith("lecun") else "average"
    if name.endswith("uniform"):
        return {"kind": "uniform", "scale": scale, "fan": fan}
    cut = tensorflow or name == "lecun_normal"
    return {"kind": "truncated_normal" if cut else "normal", "scale": scale, "fan": fan}


def _variance_scaling(spec: dict[str, Any], path: str, tensorflow: bool, layers: int, number: Any) -> dict[str, Any]:
    scale_type = spec.get("scale_type")
    scales = {"small_init": 2 / 5, "wang_init": 4 / layers**2}
    if scale_type is not None and spec.get("scale") is not None:
        raise UserError(f"{path}.scale and {path}.scale_type exclude each other; leave one out")
    if scale_type is not None and scale_type not in scales:
        raise UserError(f"{path}.scale_type = {shown(scale_type)}: should be small_init or wang_init")
    scale = scales[scale_type] if scale_type is not None else number("scale", default=1.0)
    fans = {"fan_in": "in", "fan_out": "out", "fan_avg": "average"}
    mode = spec.get("mode", "fan_in")
    kinds = {
        "truncated_normal": "truncated_normal", "untruncated_normal": "normal", "uniform": "uniform",
        "normal": "truncated_normal" if tensorflow else "normal",
    }  # fmt: skip
    shape = spec.get("distribution", "truncated_normal")
    if mode not in fans:
        raise UserError(f"{path}.mode = {shown(mode)}: should be {', '.join(fans)}")
    if shape not in kinds:
        raise UserError(f"{path}.distribution = {shown(shape)}: should be {', '.join(kinds)}")
    return {"kind": kinds[shape], "scale": scale, "fan": fans[mode]}
