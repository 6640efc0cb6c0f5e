"""A store's state as a folder: weights as a Hugging Face model, the optimizer's state beside them.

    model-00001-of-0000N.safetensors, ..., model.safetensors.index.json      any transformers program
    optimizer/000-embeddings.exp_avg.safetensors, ...                        one file a segment and role

Segments on disk give their own files by hard link: nothing is copied, and the next update leaves a linked file alone.
Segments on the device and in host memory are written. The folder is the same either way, so a run can go on with another placement.
"""

import json
import os
import shutil
from pathlib import Path

import torch
from safetensors import safe_open

from headrace.errors import UserError
from headrace.models.folder import FolderWeights, stored_tensors
from headrace.progress import say
from headrace.store.disk import DiskSegment
from headrace.store.files import header_of, write_slab
from headrace.store.roles import Role
from headrace.store.store import Store


def write_snapshot(store: Store, folder: Path, optimizer: bool = True) -> dict[str, str]:
    """Write or link everything into an existing folder; returns the sum of each slab file. Nothing may be fetching."""
    store.flush(sums=True)
    if optimizer:
        (folder / "optimizer").mkdir()
    sums: dict[str, str] = {}
    where: dict[str, str] = {}
    for i, (layout, state) in enumerate(zip(store.layouts, store.states, strict=True)):
        if not layout.entries:
            continue
        weights = store.weight_file(i)
        where |= dict.fromkeys((entry.name for entry in layout.entries), weights)
        roles = state.roles if optimizer else ()
        if isinstance(state, DiskSegment):
            sums[weights] = state.sum_of(state.weights)
            _link(state.weights, folder / weights)
            for role in roles:
                sums[state_file(i, store, role)] = state.sum_of(state.state[role.name])
                _link(state.state[role.name], folder / state_file(i, store, role))
            continue
        stored = state.weight.to(store.weight_dtype).cpu()
        sums[weights] = write_slab(folder / weights, header_of(layout.entries, store.weight_dtype), stored)
        for role in roles:
            header = header_of(role.entries, role.dtype, f".{role.name}")
            name = state_file(i, store, role)
            sums[name] = write_slab(folder / name, header, state.state[role.name].cpu())
    total_bytes = sum(store.weight_dtype.itemsize * layout.size for layout in store.layouts)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True))
    return sums


def read_snapshot(store: Store, folder: Path) -> None:
    """Go on from a snapshot of the same model and optimizer, whatever the placement was; raises UserError."""
    weights = FolderWeights(folder, stored_tensors(folder))
    for i, (segment, layout, state) in enumerate(zip(store.segments, store.layouts, store.states, strict=True)):
        if not layout.entries:
            continue
        files = [(folder / store.weight_file(i), header_of(layout.entries, store.weight_dtype))]
        files += [
            (folder / state_file(i, store, role), header_of(role.entries, role.dtype, f".{role.name}"))
            for role in state.roles
        ]
        first = weights.stored.get(layout.entries[0].name)
        ours = first is not None and first.file == files[0][0] and all(_begins_with(*f) for f in files)
        if isinstance(state, DiskSegment) and ours:
            store.forget(i)
            for (source, _), target in zip(files, state.files, strict=True):
                target.unlink(missing_ok=True)
                _link(source, target)
            continue
        store.fill(i, weights.tensors(segment.parameters))
        for role in state.roles:
            slab = (
                torch.zeros(role.size, dtype=role.dtype) if isinstance(state, DiskSegment) else state.state[role.name]
            )
            _read_role(folder / state_file(i, store, role), role, slab)
            if isinstance(state, DiskSegment):
                state.state[role.name].unlink()
                write_slab(state.state[role.name], header_of(role.entries, role.dtype, f".{role.name}"), slab)


def state_file(i: int, store: Store, role: Role) -> str:
    return f"optimizer/{i:03d}-{store.layouts[i].segment}.{role.name}.safetensors"


def _begins_with(path: Path, header: bytes) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(header)) == header


def _read_role(path: Path, role: Role, slab: torch.Tensor) -> None:
    try:
        with safe_open(path, framework="pt") as file:
            for entry in role.entries:
                tensor = file.get_tensor(f"{entry.name}.{role.name}")
                if tensor.shape != entry.shape or tensor.dtype != role.dtype:
                    raise UserError(
                        f"{path}: {entry.name} is {tuple(tensor.shape)} {tensor.dtype}, "
                        f"{tuple(entry.shape)} {role.dtype} expected"
                    )
                entry.view(slab).copy_(tensor)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error})") from None


_told: set[str] = set()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if isinstance(error, FileExistsError | FileNotFoundError):
            raise
        if str(target.parent) not in _told:
            _told.add(str(target.parent))
            say(f"{target.parent}: no hard links to {source.parent} ({error.strerror}); checkpoints are full copies")
        shutil.copyfile(source, target)
