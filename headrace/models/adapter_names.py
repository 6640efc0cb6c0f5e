"""What files call the weights of a model with an adapter: as other programs expect it, so that a folder is a model of
transformers and an adapter of peft at once.

    in the model                                              in files
    transformer.h.0.attn.c_attn.base_layer.weight             transformer.h.0.attn.c_attn.weight
    transformer.h.0.attn.c_attn.lora_A.default.weight         base_model.model.transformer.h.0.attn.c_attn.lora_A.weight
    classifier.original_module.weight                         classifier.weight
    classifier.modules_to_save.default.weight                 base_model.model.classifier.weight
"""

import json
import re
import sys
from pathlib import Path

from torch import nn

from headrace.errors import UserError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What peft begins the names in its files with."""
_WRAPPED = re.compile(r"\.(base_layer|original_module)(?=\.)")
_COPY = re.compile(r"\.modules_to_save\.[^.]+(?=\.)")
ADAPTER = re.compile(r"(\.lora_\w+)\.[^.]+")


def base_folder(folder: Path) -> Path:
    """Where the weights under an adapter are: in its own folder, or where its config says. Raises UserError."""
    if (folder / "config.json").is_file() or not (folder / CONFIG).is_file():
        return folder
    try:
        named = json.loads((folder / CONFIG).read_text("utf-8")).get("base_model_name_or_path")
    except ValueError as error:
        raise UserError(f"{folder / CONFIG}: damaged ({error})") from None
    if named is None or not (Path(named) / "config.json").is_file():
        raise UserError(
            f"{folder / CONFIG}: the adapter of the model {named!r}, which is no folder with a config.json here; write the "
            f"folder of that model into base_model_name_or_path"
        )
    return Path(named)


def file_names(model: nn.Module) -> dict[str, str]:
    """What files call the parameters of a model with an adapter, where that is not what the model calls them."""
    if not has_adapter(model):
        return {}
    names = {name: _file_name(name) for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: found for name, found in names.items() if found != name}


def _file_name(name: str) -> str:
    if _COPY.search(name):
        return PREFIX + _COPY.sub("", name)
    if ADAPTER.search(name):
        return PREFIX + ADAPTER.sub(r"\1", name)
    return _WRAPPED.sub("", name)


def original_of(name: str) -> str | None:
    """The weight that a copy which is trained in full begins as; None for anything else."""
    return _COPY.sub(".original_module", name) if _COPY.search(name) else None


def has_adapter(model: nn.Module) -> bool:
    """Whether peft has put anything into the model."""
    tuners, other = sys.modules.get("peft.tuners.tuners_utils"), sys.modules.get("peft.utils.other")
    if tuners is None or other is None:
        return False
    return any(isinstance(module, tuners.BaseTunerLayer | other.ModulesToSaveWrapper) for module in model.modules())
