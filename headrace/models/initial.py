"""Initial weights of one segment at a time, seeded by (seed, segment name): they do not depend on where segments live,
and a model larger than memory never exists whole."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headrace.errors import UserError
from headrace.model_params import InitialParams
from headrace.models.adapter_names import original_of
from headrace.models.adapters import adapter_weights
from headrace.models.distributions import distribution_of, draw
from headrace.models.folder import FolderWeights
from headrace.models.segments import Segment
from headrace.text.random import key


@torch.no_grad()
def initial_weights(
    model: PreTrainedModel, segments: Sequence[Segment], i: int, seed: int, initial: InitialParams | None = None
) -> dict[str, Tensor]:
    """New weights of what segment i owns, in fp32 on the CPU; the model stays as it is. By the model's own rule, or where
    initial has a distribution, from that."""
    segment = segments[i]
    with torch.random.fork_rng(devices=[]), _room_for(model, segment):
        torch.manual_seed(key("weights", seed, segment.name))
        for path in segment.modules:
            model.get_submodule(path).apply(model._init_weights)
        if not segment.modules:
            raise UserError(f"{type(model).__name__}: no rule for the first values of {', '.join(segment.parameters)}")
        weights = {name: parameter.data for name, parameter in segment.parameters.items()}
    if initial is None:
        return weights
    for name in weights:
        module = model.get_submodule(name.rpartition(".")[0])
        given = distribution_of(name, weights[name], module, model.config.model_type, initial)
        if given is not None:
            weights[name] = draw(given, name, weights[name].shape, module, seed)
    return weights


def first_weights(
    model: PreTrainedModel,
    segments: Sequence[Segment],
    i: int,
    seed: int,
    held: FolderWeights | None = None,
    initial: InitialParams | None = None,
) -> dict[str, Tensor]:
    """What segment i begins training with: weights of a folder as far as it holds them, adapters as peft begins them, the
    rest as `initial_weights`."""
    wanted = segments[i].parameters
    found = held.tensors({name: p for name, p in wanted.items() if name in held.stored}) if held is not None else {}
    found = adapter_weights(model, segments[i], seed) | found
    if len(found) < len(wanted):
        new = initial_weights(model, segments, i, seed, initial)
        for name in new:  # a copy that is trained in full begins as what it is a copy of
            new[name] = new.get(original_of(name) or name, new[name])
        found = new | found
    return found


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
