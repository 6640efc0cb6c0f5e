"""LoRA (Hu et al. 2021, https://arxiv.org/abs/2106.09685), through peft: small matrices that train beside frozen weights.

a model without weights -> add_lora -> the same model, its targets wrapped by peft; only what was added trains
"""

import copy
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from headrace.errors import UserError
from headrace.lora_params import LoraParams
from headrace.models.adapter_names import ADAPTER, CONFIG, has_adapter
from headrace.models.folder import open_weights
from headrace.models.segments import Segment
from headrace.text.random import key
from headrace.text.vocabulary import Extension


def add_lora(model: nn.Module, lora: LoraParams, folder: Path, extension: Extension | None = None) -> None:
    """Wrap the targets of a model on meta, and the modules that are trained in full; the rest is frozen. folder: of the
    weights under it. extension: as `open_weights`'.

    Raises UserError: an adapter there already, nothing to wrap, or a kind of model peft has no default for."""
    if (folder / CONFIG).is_file():
        raise UserError(
            f"{folder}: holds an adapter already, and LoRA puts one beside plain weights. Merge it first: "
            f"headrace merge {folder} OUT"
        )
    paths = [path for path, _ in model.named_modules()]
    for name in lora.train or ():
        if not any(path == name or path.endswith(f".{name}") for path in paths):
            raise UserError(f"training.lora.train: {type(model).__name__} has no module {name}")
    train = (
        lora.train
        if lora.train is not None
        else _whole_modules(open_weights(folder, model, extension=extension).new, model)
    )
    config = import_peft().LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
        modules_to_save=list(train) or None,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.modules()),
        base_model_name_or_path=str(folder.resolve()),
    )
    inject(model, config)


def inject(model: nn.Module, config: Any) -> None:
    """Put the adapter that a peft config describes into a model."""
    peft = import_peft()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of layers that hold their weights the other way round: it puts them right
            peft.inject_adapter_in_model(config, model)
    except (ValueError, KeyError) as error:
        raise UserError(
            f"training.lora: peft cannot wrap {type(model).__name__}: {' '.join(str(error).split())}. Name layers in "
            f"training.lora.targets, such as: {', '.join(_linear_names(model)[:8])}"
        ) from None


def adapter_config(folder: Path) -> Any:
    """The peft config of a folder; None where it holds no adapter. Raises UserError."""
    path = folder / CONFIG
    if not path.is_file():
        return None
    peft = import_peft()
    try:
        config = peft.PeftConfig.from_pretrained(str(folder))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    _refuse_others(config, str(path))
    return config


def _refuse_others(config: Any, where: str) -> None:
    """Of peft's many kinds of adapters, and of LoRA's, only the plain one is laid out and named as it is here."""
    peft = import_peft()
    if not isinstance(config, peft.LoraConfig):
        raise UserError(f"{where}: an adapter of the kind {config.peft_type.value}; only LoRA can be trained")
    for option in ("use_dora", "trainable_token_indices", "target_parameters"):
        if getattr(config, option, None):
            raise UserError(f"{where}: {option} = {getattr(config, option)}; only plain LoRA can be trained")


def base_model_of(model: nn.Module) -> nn.Module:
    """The model of transformers inside peft's, adapter included; any other as it is. Raises UserError for adapters that are
    not in the layers."""
    peft = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        return model
    wrapped: Any = model
    _refuse_others(wrapped.active_peft_config, type(model).__name__)
    return wrapped.get_base_model()


def save_adapter_config(model: nn.Module, folder: Path) -> None:
    """Write adapter_config.json, for a folder whose weights are there; nothing where the model has no adapter."""
    if (found := adapter_of(model)) is not None:
        config = copy.copy(found[1])
        config.inference_mode = True  # as peft itself saves it
        config.save_pretrained(str(folder))


def adapter_of(model: nn.Module) -> tuple[str, Any] | None:
    """Name and peft config of the adapter in a model; None where there is none. Raises UserError when there are several."""
    if not has_adapter(model):
        return None
    configs: dict[str, Any] = getattr(model, "peft_config", {})
    if len(configs) != 1:
        raise UserError(
            f"{type(model).__name__}: holds {len(configs)} adapters ({', '.join(configs)}); one can be trained"
        )
    return next(iter(configs.items()))


@torch.no_grad()
def adapter_weights(model: nn.Module, segment: Segment, seed: int) -> dict[str, Tensor]:
    """First weights of what peft put beside a segment's targets, by its own rule, in fp32 on the CPU: (seed, target's name)
    decides."""
    weights: dict[str, Tensor] = {}
    for path, layer in lora_layers(model, segment.modules):
        added = {
            name: p for name, p in layer.named_parameters(path) if ADAPTER.search(name) and name in segment.parameters
        }
        before = {name: parameter.data for name, parameter in added.items()}
        for parameter in added.values():
            parameter.data = torch.zeros(parameter.shape)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key("lora", seed, path))
            for name in layer.r:
                layer.reset_lora_parameters(name, True)
        for name, parameter in added.items():
            weights[name], parameter.data = parameter.data, before[name]
    return weights


def lora_layers(model: nn.Module, paths: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The wrapped targets inside these modules, with their paths."""
    tuners = sys.modules.get("peft.tuners.lora.layer")
    for path in paths if tuners is not None else ():
        for inner, module in model.get_submodule(path).named_modules(prefix=path):
            if isinstance(module, tuners.LoraLayer):  # pyright: ignore[reportOptionalMemberAccess]
                yield inner, module


def _whole_modules(new: Sequence[str], model: nn.Module) -> list[str]:
    """The largest modules that hold nothing but these parameters, and train."""
    wanted = {name for name, parameter in model.named_parameters() if name in set(new) and parameter.requires_grad}
    found: list[str] = []
    for path, module in model.named_modules():
        names = [f"{path}.{name}" for name, _ in module.named_parameters()]
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if path and names and not inside and wanted.issuperset(names):
            found.append(path)
    return found


def import_peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UserError("LoRA needs the package peft; install it: pip install 'headrace[lora]'") from None
    return peft


def _linear_names(model: nn.Module) -> list[str]:
    """Last parts of the names of the layers that can be wrapped."""
    return sorted({path.rpartition(".")[2] for path, m in model.named_modules() if isinstance(m, nn.Linear | Conv1D)})
