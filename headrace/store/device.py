"""The store whose every slab is on the device that computes: the placement `device`.

Parameters of the model are views of the weight slabs and their .grad views of the gradient slabs, so backward adds up
microbatches in place, in order. On disk a snapshot is one safetensors file a segment with Hugging Face names, and one
with the optimizer state.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from headrace.errors import UserError
from headrace.models.segments import Segment
from headrace.optim import AdamW, join_norms, tensor_norms
from headrace.store.layout import Entry, Layout, bind, layout_of

ROLES = ("weight", "gradient", "exp_avg", "exp_avg_sq")
MOMENTS = ("exp_avg", "exp_avg_sq")


class DeviceStore:
    """Slabs of all segments on one device. Invariant: every trainable parameter and its .grad are views of them."""

    def __init__(self, segments: Sequence[Segment], no_decay: Sequence[str], device: torch.device):
        self.segments = segments
        self.layouts = [layout_of(segment, no_decay) for segment in segments]
        self.slabs: list[dict[str, Tensor]] = []
        for segment, layout in zip(segments, self.layouts, strict=True):
            slabs = {role: torch.zeros(layout.size, device=device) for role in ROLES}
            for entry in layout.entries:
                bind(segment.parameters[entry.name], entry.view(slabs["weight"]), entry.view(slabs["gradient"]))
            for parameter in segment.parameters.values():
                if not parameter.requires_grad:
                    parameter.data = parameter.data.to(device)
            self.slabs.append(slabs)

    @property
    def num_parameters(self) -> int:
        return sum(entry.size for layout in self.layouts for entry in layout.entries)

    def zero_gradients(self) -> None:
        for slabs in self.slabs:
            slabs["gradient"].zero_()

    def gradient_norm(self) -> Tensor:
        """Global L2 norm of the gradients, a Tensor ()."""
        return join_norms([norm for _, views in self._views() for norm in tensor_norms(views["gradient"])])

    def update(self, rule: AdamW, *, step: int, lr: float, gradient_scale: float | Tensor) -> None:
        """One optimizer update of every segment. step counts from 1."""
        for entries, views in self._views():
            for decays in (True, False):
                chosen = [i for i, entry in enumerate(entries) if entry.decays is decays]
                rule.update(
                    *([views[role][i] for i in chosen] for role in ROLES),
                    step=step,
                    lr=lr,
                    weight_decay=None if decays else 0.0,
                    gradient_scale=gradient_scale,
                )

    def _views(self) -> list[tuple[tuple[Entry, ...], dict[str, list[Tensor]]]]:
        return [
            (layout.entries, {role: [entry.view(slabs[role]) for entry in layout.entries] for role in ROLES})
            for layout, slabs in zip(self.layouts, self.slabs, strict=True)
        ]

    def write_weights(self, folder: Path) -> None:
        """model-00001-of-0000N.safetensors and model.safetensors.index.json, as transformers reads them."""
        names = [f"model-{i + 1:05d}-of-{len(self.segments):05d}.safetensors" for i in range(len(self.segments))]
        weight_map: dict[str, str] = {}
        total_bytes = 0
        for name, segment in zip(names, self.segments, strict=True):
            tensors = {key: parameter.detach().contiguous() for key, parameter in segment.parameters.items()}
            _write(tensors, folder / name)
            weight_map |= dict.fromkeys(tensors, name)
            total_bytes += sum(tensor.nbytes for tensor in tensors.values())
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True))

    def write_optimizer(self, folder: Path) -> None:
        """One safetensors file a segment with the moments, named <parameter>.exp_avg and .exp_avg_sq."""
        folder.mkdir()
        for path, layout, slabs in self._optimizer_files(folder):
            _write({f"{e.name}.{role}": e.view(slabs[role]) for e in layout.entries for role in MOMENTS}, path)

    def read_weights(self, folder: Path) -> None:
        """Fill the weights from a snapshot or any Hugging Face folder of the same model; raises UserError on mismatch."""
        weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
        for segment in self.segments:
            targets = {name: parameter.detach() for name, parameter in segment.parameters.items()}
            for file in sorted({weight_map.get(name, "") for name in targets}):
                if not file:
                    missing = [name for name in targets if name not in weight_map]
                    raise UserError(f"{folder}: holds no weights for {missing[0]} ({len(missing)} missing)")
                _read_into(folder / file, {name: t for name, t in targets.items() if weight_map[name] == file})

    def read_optimizer(self, folder: Path) -> None:
        for path, layout, slabs in self._optimizer_files(folder):
            _read_into(path, {f"{e.name}.{role}": e.view(slabs[role]) for e in layout.entries for role in MOMENTS})

    def _optimizer_files(self, folder: Path) -> list[tuple[Path, Layout, dict[str, Tensor]]]:
        return [
            (folder / f"{i:03d}-{layout.segment}.safetensors", layout, slabs)
            for i, (layout, slabs) in enumerate(zip(self.layouts, self.slabs, strict=True))
            if layout.entries
        ]


def _write(tensors: dict[str, Tensor], path: Path) -> None:
    path.touch()
    permissions = path.stat().st_mode  # the user's; safetensors would leave the file to its owner alone
    # One entry only: safetensors writes several in random order, and equal weights should be equal files.
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(permissions)


def _read_into(path: Path, targets: dict[str, Tensor]) -> None:
    with safe_open(path, framework="pt") as file:
        held = set(file.keys())
        for name, target in targets.items():
            if name not in held:
                raise UserError(f"{path}: holds no tensor {name}")
            tensor = file.get_tensor(name)
            if tensor.shape != target.shape or tensor.dtype != target.dtype:
                raise UserError(
                    f"{path}: {name} is {tuple(tensor.shape)} {tensor.dtype}, "
                    f"{tuple(target.shape)} {target.dtype} expected"
                )
            target.copy_(tensor)
