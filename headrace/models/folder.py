"""The weights of a Hugging Face folder: which tensor of which file is which parameter, read straight to where it goes.

    model.safetensors, or the files of model.safetensors.index.json  ->  Stored, by name in the file
    names as transformers itself maps them, prefixes, old names and tied weights included  ->  FolderWeights, by parameter

Files are read piece by piece, not mapped: what is read of a mapped file counts as the process's memory.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from headrace.errors import UserError
from headrace.models.adapter_names import PREFIX, WEIGHTS, base_folder, file_names, original_of
from headrace.text.vocabulary import Extension

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Those whose numbers fp32 holds exactly."""
PIECE_BYTES = 16 << 20
_OTHER_FORMATS = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.h5", "*.msgpack")


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file."""

    name: str
    file: Path
    offset: int
    """Of its first byte, from the beginning of the file."""
    shape: tuple[int, ...]
    dtype: str  # as the file says it


@dataclass(frozen=True)
class FolderWeights:
    """Where each parameter's values are. Names are the model's own."""

    folder: Path
    stored: Mapping[str, Stored]
    new: Sequence[str] = field(default=())
    """Parameters that the folder has no values for."""
    left: Sequence[str] = field(default=())
    """Tensors of the folder that the model has no use for, as the files call them."""
    extension: Extension | None = None
    """What the vocabulary has more than the folder's: rows that begin as the means of those of the pieces before."""

    def read(self, name: str, into: Tensor) -> None:
        """Fill `into`, contiguous fp32 in CPU memory, with a parameter's values. Raises UserError on another shape or
        type, or a file that ends too early."""
        found = self.stored.get(name)
        if found is None:
            raise UserError(f"{self.folder}: holds no weights for {name}")
        if grows(found, tuple(into.shape), self.extension):
            assert self.extension is not None
            rows = into[: self.extension.size_before]
            self._read(found, rows)
            for row, pieces in zip(into[len(rows) :], self.extension.pieces, strict=True):
                row.copy_(rows[list(pieces)].mean(0))
            return
        self._read(found, into)

    def _read(self, found: Stored, into: Tensor) -> None:
        dtype = DTYPES.get(found.dtype)
        if tuple(into.shape) != found.shape or dtype is None:
            raise UserError(
                f"{found.file}: {found.name} is {found.shape} {found.dtype}, {tuple(into.shape)} in "
                f"{', '.join(DTYPES)} expected"
            )
        flat = into.view(-1)
        with found.file.open("rb", buffering=0) as file:
            if dtype is torch.float32:
                _fill(file.fileno(), found, 0, flat)
                return
            staging = torch.empty(min(PIECE_BYTES // dtype.itemsize, len(flat)), dtype=dtype)
            for start in range(0, len(flat), max(len(staging), 1)):
                piece = flat[start : start + len(staging)]
                _fill(file.fileno(), found, start * dtype.itemsize, staging[: len(piece)])
                piece.copy_(staging[: len(piece)])

    def tensors(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """New tensors with the values of these parameters, in fp32 on the CPU."""
        values = {name: torch.empty(parameter.shape) for name, parameter in parameters.items()}
        for name, value in values.items():
            self.read(name, value)
        return values

    @torch.no_grad()
    def fill_buffers(self, model: nn.Module) -> None:
        """Give an untouched model the buffers that its folder holds values of."""
        for name, buffer in model.named_buffers():
            if name in self.stored and buffer.is_floating_point():
                value = torch.empty(buffer.shape)
                self.read(name, value)
                buffer.copy_(value)

    def summary(self) -> str:
        """What was found, what is new and what is left, in a line."""
        line = f"{self.folder}: {len(self.stored)} weights loaded"
        given = self.extension
        if given is not None and any(tensor.shape[:1] == (given.size_before,) for tensor in self.stored.values()):
            line += f", {len(given.pieces)} new rows of the vocabulary begun as means of the pieces before"
        if self.new:
            line += f"; {len(self.new)} are not in its files: {_some(self.new)}"
        if self.left:
            line += f"; {len(self.left)} of its tensors have no place in the model: {_some(self.left)}"
        return line


def grows(stored: Stored, shape: tuple[int, ...], extension: Extension | None) -> bool:
    """Whether a parameter of this shape is the stored one with a row more for every new entry of the vocabulary."""
    if extension is None:
        return False
    before = (extension.size_before, *shape[1:])
    return stored.shape == before and shape[:1] == (extension.size_before + len(extension.pieces),)


def open_weights(
    folder: Path, model: nn.Module, complete: bool = False, extension: Extension | None = None
) -> FolderWeights:
    """Find the weights of an untouched model, without values, in a folder. complete: every one must be there. extension: by
    which the model's vocabulary is larger than the folder's.

    Raises UserError when there are no safetensors files, when nothing in them is the model's, and when what is there cannot
    be taken as it is."""
    stored = stored_tensors(folder)
    in_files = file_names(model)
    taken = _names_as_transformers(folder, stored, model, in_files) if isinstance(model, PreTrainedModel) else stored
    has_adapter = (folder / WEIGHTS).is_file()
    if has_adapter and not in_files:
        raise UserError(
            f"{folder}: holds an adapter, which {type(model).__name__} has no place for here. Add it to the weights under it "
            f"first: headrace merge {folder} OUT"
        )
    groups: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        group = groups.setdefault(id(parameter), [])
        group.append(in_files.get(name, name))
        if (original := original_of(name)) is not None and not has_adapter:
            group.append(in_files.get(original, original))
    found: dict[str, Stored] = {}
    new: list[str] = []
    for name, parameter in model.named_parameters():
        tensor = next((taken[other] for other in groups[id(parameter)] if other in taken), None)
        if tensor is None:
            if has_adapter or not in_files.get(name, name).startswith(PREFIX):  # an adapter begins with its run
                new.append(in_files.get(name, name))
        elif tensor.dtype not in DTYPES or (
            tensor.shape != tuple(parameter.shape) and not grows(tensor, tuple(parameter.shape), extension)
        ):
            raise UserError(
                f"{tensor.file}: {tensor.name} is {tensor.shape} {tensor.dtype}, but {name} of {type(model).__name__} is "
                f"{tuple(parameter.shape)}, to be read from {', '.join(DTYPES)}"
            )
        else:
            found[name] = tensor
    buffers = {name for name, _ in model.named_buffers()}
    found |= {name: taken[name] for name in buffers & taken.keys()}
    used = {name for names in groups.values() for name in names} | buffers
    left = [tensor.name for name, tensor in taken.items() if name not in used]
    weights = FolderWeights(folder, found, tuple(new), tuple(_worth_telling(left, model)), extension)
    if not found.keys() - buffers:
        raise UserError(
            f"{folder}: none of its tensors ({_some(sorted(stored))}) is a weight of {type(model).__name__} "
            f"({_some(new)}); is it the folder of another model?"
        )
    if complete and new:
        raise UserError(weights.summary())
    return weights


def stored_tensors(folder: Path) -> dict[str, Stored]:
    """Every tensor of a folder's safetensors files, by its name there; of an adapter's folder also those of the model under
    it, wherever they are. Raises UserError."""
    stored = _model_tensors(base_folder(folder))
    return stored | _in_file(folder / WEIGHTS) if (folder / WEIGHTS).is_file() else stored


def _model_tensors(folder: Path) -> dict[str, Stored]:
    index = folder / INDEX
    if not index.is_file():
        if (folder / SINGLE).is_file():
            return _in_file(folder / SINGLE)
        others = sorted(path.name for pattern in _OTHER_FORMATS for path in folder.glob(pattern))
        if others:
            raise UserError(
                f"{folder}: holds its weights as {others[0]}, and only safetensors files can be read piece by piece. Write "
                f"them once: model = transformers.{_class_name(folder)}.from_pretrained({str(folder)!r}); "
                f"model.save_pretrained('OTHER_FOLDER')"
            )
        raise UserError(f"{folder}: holds neither {SINGLE} nor {INDEX}")
    try:
        where = json.loads(index.read_text("utf-8"))["weight_map"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{index}: damaged: no JSON with a weight_map ({error})") from None
    stored: dict[str, Stored] = {}
    for file in sorted(set(where.values())):
        if not (folder / file).is_file():
            raise UserError(f"{folder / file}: is missing, and {INDEX} names it; the download is not complete")
        held = _in_file(folder / file)
        for name in (name for name in where if where[name] == file):
            if name not in held:
                raise UserError(f"{folder / file}: holds no tensor {name}, which {INDEX} looks for there")
            stored[name] = held[name]
    return stored


def _in_file(path: Path) -> dict[str, Stored]:
    """The tensors of one safetensors file: 8 bytes with the header's length, JSON, data."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            start = 8 + int.from_bytes(file.read(8), "little")
            tree = json.loads(file.read(start - 8)) if start <= size else None
        assert tree is not None
        tree.pop("__metadata__", None)
        found = {
            name: (Stored(name, path, start + tensor["data_offsets"][0], tuple(tensor["shape"]), tensor["dtype"]))
            for name, tensor in tree.items()
        }
        stop = start + max((tensor["data_offsets"][1] for tensor in tree.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, AssertionError):
        raise UserError(f"{path}: damaged: it does not begin as a safetensors file does") from None
    if size < stop:
        raise UserError(f"{path}: ends at byte {size:,}, {stop:,} expected; the download is not complete")
    return found


def _names_as_transformers(
    folder: Path, stored: Mapping[str, Stored], model: PreTrainedModel, in_files: Mapping[str, str]
) -> dict[str, Stored]:
    """Tensors by the names that files of the model have for them now; those it has none for keep theirs."""
    names = {in_files.get(name, name): value for name, value in model.state_dict().items()}
    rules = get_model_conversion_mapping(model)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    taken = {name: tensor for name, tensor in stored.items() if name in names}
    parts: list[str] = []
    for name in sorted(stored.keys() - taken.keys()):
        renamed, part_of = rename_source_key(name, renamings, converters, model.base_model_prefix, names)
        if part_of is not None and renamed in names:
            parts.append(name)
        taken.setdefault(renamed if renamed in names else name, stored[name])
    if parts:
        raise UserError(
            f"{folder}: {len(parts)} of its tensors ({_some(parts)}) are parts of weights, which transformers puts together "
            f"when it loads them; that is not done here. Write it once with model.save_pretrained('OTHER_FOLDER', "
            f"save_original_format=False)"
        )
    return taken


def _worth_telling(left: Iterable[str], model: nn.Module) -> list[str]:
    """Without tables and masks that older files hold and models now compute, by transformers' own list."""
    patterns = [r"rotary_emb\.inv_freq$", r"(^|\.)position_ids$"]
    patterns += getattr(model, "_keys_to_ignore_on_load_unexpected", None) or []
    return [name for name in left if not any(re.search(pattern, name) for pattern in patterns)]


def _fill(handle: int, stored: Stored, start: int, into: Tensor) -> None:
    """Read bytes of a tensor's data, from byte `start` of it on, into contiguous memory."""
    view, done = memoryview(into.view(torch.uint8).numpy()), 0  # pyright: ignore[reportArgumentType]
    while done < len(view):
        count = os.preadv(handle, [view[done : done + PIECE_BYTES]], stored.offset + start + done)
        if not count:
            raise UserError(f"{stored.file}: ends inside of {stored.name}: damaged")
        done += count


def _class_name(folder: Path) -> str:
    """What its config says the model is."""
    try:
        return json.loads((folder / "config.json").read_text("utf-8"))["architectures"][0]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return "AutoModelForPreTraining"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
