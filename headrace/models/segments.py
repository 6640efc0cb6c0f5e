"""A model as an ordered list of segments: what is fetched, computed and updated together.

    embeddings -> block 0 -> ... -> block L-1 -> head

Found in the model itself: the lists of equal blocks, and outside them the largest modules that hold no such list. A
weight used by several segments (BERT's word embeddings are also its output layer) belongs to the first of them; the
others borrow it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import nn

from headrace.errors import UserError
from headrace.models.adapter_names import file_names

# What cannot be found: modules outside the blocks that one function of the task runs together.
TOGETHER = {"bert": {"head": ("bert.pooler", "cls")}}


@dataclass(frozen=True)
class Segment:
    """One segment: its modules' paths, the parameters it owns by their Hugging Face names, in model order, and the names
    of those it uses and others own."""

    name: str
    modules: tuple[str, ...]
    parameters: dict[str, nn.Parameter]
    borrowed: tuple[str, ...] = ()
    stored_as: Mapping[str, str] = field(default_factory=dict)
    """What files call those of its parameters that they do not call as the model does."""


def segments_of(model: nn.Module) -> list[Segment]:
    """The segments of an untouched model, in forward order; every parameter is in exactly one.

    Raises UserError when there is no list of blocks.
    """
    lists = _block_lists(model)
    if not lists:
        seen = [path for path, module in model.named_modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
        raise UserError(
            f"{type(model).__name__}: no nn.ModuleList of equal blocks was found, so there is nothing to fetch piece by "
            f"piece. Looked for an nn.ModuleList whose members are of one class and hold modules themselves"
            + (f"; there are {', '.join(seen[:8])}, which are not that" if seen else "; there is no list at all")
        )
    owner: dict[int, str] = {}
    segments = []
    in_files = file_names(model)
    for name, paths in _merged(model, lists):
        parameters: dict[str, nn.Parameter] = {}
        borrowed: list[str] = []
        for path in paths:
            for key, parameter in model.get_submodule(path).named_parameters(f"{path}" if path else ""):
                if id(parameter) not in owner:
                    owner[id(parameter)] = key
                    parameters[key] = parameter
                elif owner[id(parameter)] not in parameters:
                    borrowed.append(owner[id(parameter)])
        stored_as = {key: in_files[key] for key in parameters if key in in_files}
        segments.append(Segment(name, paths, parameters, tuple(dict.fromkeys(borrowed)), stored_as))
    rest = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in owner}
    if rest:  # owned by modules around the blocks (a class token, say): used between segments, so always at hand
        segments.append(Segment("rest", (), rest, stored_as={key: in_files[key] for key in rest if key in in_files}))
    return segments


def _block_lists(model: nn.Module) -> list[str]:
    """Paths of the outermost lists of blocks, in model order."""
    found: list[str] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if isinstance(module, nn.ModuleList) and not inside:
            kinds = {type(child) for child in module}
            if len(kinds) == 1 and all(any(True for _ in child.children()) for child in module):
                found.append(path)
    return found


def _units(model: nn.Module, lists: list[str], path: str = "") -> Iterator[str]:
    """Blocks, and the largest modules with parameters that hold no blocks."""
    module = model.get_submodule(path)
    if path in lists:
        yield from (f"{path}.{i}" for i in range(len(list(module.children()))))
    elif any(not path or inner.startswith(f"{path}.") for inner in lists):
        for name, _ in module.named_children():
            yield from _units(model, lists, f"{path}.{name}" if path else name)
    elif any(True for _ in module.parameters()):
        yield path


def _merged(model: nn.Module, lists: list[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Names and module paths of the segments; modules that run together come where the last of them stands."""
    together = TOGETHER.get(getattr(getattr(model, "config", None), "model_type", ""), {})
    group_of = {path: name for name, paths in together.items() for path in paths}
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    named: dict[str, tuple[str, ...]] = {}
    for path in _units(model, lists):
        if path in group_of:
            named[group_of[path]] = (*named.pop(group_of[path], ()), path)
            continue
        outer, _, number = path.rpartition(".")
        if outer in lists:
            where = "" if len(lists) == 1 else outer.removeprefix(prefix).partition(".")[0] + "-"
            named[f"{where}block-{int(number):03d}"] = (path,)
        else:
            named[path.removeprefix(prefix)] = (path,)
    return list(named.items())
