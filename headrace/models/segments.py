"""A model as an ordered list of segments: what is fetched, computed and updated together.

    embeddings -> block 0 -> ... -> block L-1 -> head

A weight used by several segments (BERT's word embeddings are also its output layer) belongs to the first of them.
"""

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedModel

from headrace.errors import UserError


@dataclass(frozen=True)
class Family:
    """Where a family of transformers models keeps its parts, as module paths."""

    embeddings: tuple[str, ...]
    blocks: str
    head: tuple[str, ...]


FAMILIES = {
    "bert": Family(embeddings=("bert.embeddings",), blocks="bert.encoder.layer", head=("bert.pooler", "cls")),
}


@dataclass(frozen=True)
class Segment:
    """One segment: its modules' paths, and the parameters it owns by their Hugging Face names, in model order."""

    name: str
    modules: tuple[str, ...]
    parameters: dict[str, nn.Parameter]


def segments_of(model: PreTrainedModel) -> list[Segment]:
    """The segments of an untouched transformers model, in forward order; every parameter is in exactly one."""
    model_type = model.config.model_type
    family = FAMILIES.get(model_type)
    if family is None:
        raise UserError(f"model type {model_type!r} is not known here; known: {', '.join(FAMILIES)}")
    num_blocks = len(list(model.get_submodule(family.blocks).children()))
    paths = [
        ("embeddings", family.embeddings),
        *((f"block-{i:03d}", (f"{family.blocks}.{i}",)) for i in range(num_blocks)),
        ("head", family.head),
    ]
    owned: set[int] = set()
    segments = []
    for name, modules in paths:
        parameters = {
            f"{path}.{key}": parameter
            for path in modules
            for key, parameter in model.get_submodule(path).named_parameters()
            if id(parameter) not in owned
        }
        owned |= {id(parameter) for parameter in parameters.values()}
        segments.append(Segment(name, modules, parameters))
    left_over = [name for name, parameter in model.named_parameters() if id(parameter) not in owned]
    assert not left_over, f"parameters outside every segment: {left_over}"
    return segments
