"""A LoRA adapter added to the weights under it: a plain Hugging Face folder, made segment by segment.

read a segment, base and adapter -> peft's own merge -> one file; nothing else is in memory
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from headrace.errors import UserError
from headrace.models.adapter_names import CONFIG, PREFIX, base_folder, original_of
from headrace.models.adapters import adapter_config, inject, lora_layers
from headrace.models.blank import fill_blanks, placeholder
from headrace.models.folder import INDEX, FolderWeights, open_weights
from headrace.models.segments import Segment, segments_of
from headrace.store.files import aligned, header_of, write_slab
from headrace.store.layout import Entry
from headrace.store.placement import weight_file
from headrace.training.checkpoint import MANIFEST
from headrace.training.stream import class_of

LEFT = (".safetensors", ".bin", ".index.json")  # weights; everything else of the folders goes along
OURS = (CONFIG, MANIFEST, "README.md", "config.json")


def merge(folder: Path, out: Path) -> None:
    """Write the model of a folder with an adapter as one without. Raises UserError: no adapter, weights that two layers
    share, `out` exists, the disk refuses."""
    adapter = adapter_config(folder)
    if adapter is None:
        raise UserError(f"{folder}: holds no adapter ({CONFIG}); there is nothing to merge")
    if out.exists():
        raise UserError(f"{out}: exists already; choose another name")
    config = AutoConfig.from_pretrained(base_folder(folder))
    config.dtype = torch.float32
    with torch.device("meta"):
        model = class_of(config, False)(config)
        inject(model, adapter)
    fill_blanks(model, torch.device("cpu"))
    held, segments = open_weights(folder, model, complete=True), segments_of(model)
    _refuse_shared(model, segments)
    aside = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        where, total_bytes = {}, 0
        for i, segment in enumerate(segments):
            weights = _merged(model, segment, held)
            if weights:
                file = weight_file(i, len(segments))
                where |= dict.fromkeys(weights, file)
                total_bytes += _write(aside / file, weights)
        index = {"metadata": {"total_size": total_bytes}, "weight_map": where}
        (aside / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True))
        for path in {path.name: path for root in (base_folder(folder), folder) for path in root.iterdir()}.values():
            if path.is_file() and not path.name.endswith(LEFT) and path.name not in OURS:
                shutil.copy(path, aside)
        config.save_pretrained(aside)
        aside.rename(out)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None


@torch.no_grad()
def _merged(model: nn.Module, segment: Segment, held: FolderWeights) -> dict[str, Tensor]:
    """A segment's weights with its adapter added, by the names of files."""
    weights = held.tensors(segment.parameters)
    for name, parameter in segment.parameters.items():
        parameter.data = weights[name]
    for _, layer in lora_layers(model, segment.modules):
        layer.merge()
    replaced = {original_of(name) for name in segment.parameters}
    merged: dict[str, Tensor] = {}
    for name, parameter in segment.parameters.items():
        in_files = segment.stored_as.get(name, name)
        if original_of(name) is not None or (not in_files.startswith(PREFIX) and name not in replaced):
            merged[in_files.removeprefix(PREFIX)] = parameter.data
        parameter.data = placeholder(parameter.shape)
    return merged


def _refuse_shared(model: nn.Module, segments: list[Segment]) -> None:
    uses: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        uses.setdefault(id(parameter), []).append(name)
    for segment in segments:
        for path, layer in lora_layers(model, segment.modules):
            names = uses[id(layer.get_base_layer().weight)]
            if len(names) > 1:
                raise UserError(
                    f"{path} has an adapter, and its weights are also those of {', '.join(names[:2])}: adding it would change "
                    f"both. Keep base and adapter apart: peft loads them so"
                )


def _write(path: Path, weights: Mapping[str, Tensor]) -> int:
    entries, offset = [], 0
    for name, weight in weights.items():
        entries.append(Entry(name, weight.shape, offset, decays=False))
        offset += weight.numel()
    slab = aligned(4 * offset).view(torch.float32)[:offset]
    for entry in entries:
        entry.view(slab).copy_(weights[entry.name])
    write_slab(path, header_of(entries, torch.float32), slab)
    return slab.nbytes
