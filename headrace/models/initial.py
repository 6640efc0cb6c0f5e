"""Initial weights of one segment at a time, seeded by (seed, segment name): they do not depend on where segments live,
and a model larger than memory never exists whole."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming

from headrace.errors import UserError
from headrace.models.segments import Segment
from headrace.text.random import key


@torch.no_grad()
def initial_weights(model: PreTrainedModel, segments: Sequence[Segment], i: int, seed: int) -> dict[str, Tensor]:
    """New weights of what segment i owns, by the model's own rule, in fp32 on the CPU; the model stays as it is."""
    segment = segments[i]
    with torch.random.fork_rng(devices=[]), _room_for(model, segment):
        torch.manual_seed(key("weights", seed, segment.name))
        for path in segment.modules:
            model.get_submodule(path).apply(model._init_weights)
        if not segment.modules:
            raise UserError(f"{type(model).__name__}: no rule for the first values of {', '.join(segment.parameters)}")
        return {name: parameter.data for name, parameter in segment.parameters.items()}


@contextmanager
def _room_for(model: nn.Module, segment: Segment) -> Iterator[None]:
    """Memory for all weights the segment's modules use, borrowed ones included, for as long as this lasts."""
    used = {id(p): p for path in segment.modules for p in model.get_submodule(path).parameters()}
    before = {number: parameter.data for number, parameter in used.items()}
    for parameter in used.values():
        parameter.data = torch.zeros(parameter.shape)
    try:
        yield
    finally:
        for number, parameter in used.items():
            parameter.data = before[number]


def weights_from_folder(folder: Path, segment: Segment) -> dict[str, Tensor]:
    """What segment owns, from the safetensors files of a Hugging Face folder, in fp32; raises UserError on a mismatch."""
    where = weight_map(folder)
    weights: dict[str, Tensor] = {}
    for file in sorted({where.get(name, "") for name in segment.parameters}):
        names = [name for name in segment.parameters if where.get(name, "") == file]
        if not file:
            raise UserError(f"{folder}: holds no weights for {names[0]} ({len(names)} missing)")
        with safe_open(folder / file, framework="pt") as opened:
            held = set(opened.keys())
            for name in names:
                if name not in held:
                    raise UserError(f"{folder / file}: holds no tensor {name}")
                tensor = opened.get_tensor(name)
                if tensor.shape != segment.parameters[name].shape or not tensor.is_floating_point():
                    raise UserError(
                        f"{folder / file}: {name} is {tuple(tensor.shape)} {tensor.dtype}, "
                        f"{tuple(segment.parameters[name].shape)} torch.float32 expected"
                    )
                weights[name] = tensor.float()
    return weights


def names_in_folder(folder: Path, model: PreTrainedModel) -> dict[str, str]:
    """What a folder calls parameters whose names differ: a folder of the base model alone leaves its prefix out, and
    transformers gives some models' weights other names in files (GPT-NeoX: embed_out for lm_head)."""
    held, prefix = weight_map(folder), f"{model.base_model_prefix}."
    renamings = [rule for rule in get_model_conversion_mapping(model) if isinstance(rule, WeightRenaming)]
    found: dict[str, str] = {}
    for in_file in held:
        name = in_file
        for rule in renamings:
            name = rule.rename_source_key(name)[0]
        found[name] = in_file
    names = {name: found.get(name) or found.get(name.removeprefix(prefix)) for name, _ in model.named_parameters()}
    return {name: other for name, other in names.items() if other is not None and name not in held}


def weight_map(folder: Path) -> dict[str, str]:
    """Which file of a Hugging Face folder holds which tensor; raises UserError when there are none."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        return json.loads(index.read_text("utf-8"))["weight_map"]
    if single.is_file():
        with safe_open(single, framework="pt") as opened:
            return dict.fromkeys(opened.keys(), single.name)
    raise UserError(f"{folder}: holds neither model.safetensors nor model.safetensors.index.json")
