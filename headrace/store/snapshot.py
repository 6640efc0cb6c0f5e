"""A store's state as a folder: weights as a Hugging Face model, the optimizer's state beside them.

    model-00001-of-0000N.safetensors, ..., model.safetensors.index.json      any transformers program
    model-00001-of-0000N-frozen.safetensors                                  what does not train of a segment
    adapter_model.safetensors                                                of a model with an adapter: all of it, for peft
    optimizer/000-embeddings.exp_avg.safetensors, ...                        one file a segment and role

Segments on disk give their own files by hard link: nothing is copied, and the next update leaves a linked file alone.
Segments on the device and in host memory are written, but for frozen weights that an earlier snapshot of the run holds: those
are linked from there. The folder is the same either way, so a run can go on with another placement.
"""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open

from headrace.errors import UserError
from headrace.models.adapter_names import PREFIX
from headrace.models.folder import FolderWeights, stored_tensors
from headrace.progress import say
from headrace.store.adapter_file import write_adapter
from headrace.store.disk import DiskSegment
from headrace.store.files import header_of, slab_sum, write_slab
from headrace.store.layout import Part
from headrace.store.placement import SegmentState
from headrace.store.roles import Role
from headrace.store.store import Store


def write_snapshot(
    store: Store,
    folder: Path,
    optimizer: bool = True,
    earlier: Path | None = None,
    earlier_sums: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Write or link everything into an existing folder; returns the sum of each slab file. Nothing may be fetching.
    earlier: a snapshot of the same run, with its sums."""
    store.flush(sums=True)
    if optimizer:
        (folder / "optimizer").mkdir()
    sums: dict[str, str] = {}
    where: dict[str, str] = {}
    trainable: dict[Path, Part] = {}
    for i, (layout, state) in enumerate(zip(store.layouts, store.states, strict=True)):
        for part in layout.parts:
            name = store.weight_file(i, part.trains)
            where |= {e.file_name: name for e in part.entries if not e.file_name.startswith(PREFIX)}
            known = (earlier / name, earlier_sums.get(name)) if earlier and earlier_sums and not part.trains else None
            sums[name] = _put_weights(state, part, folder / name, known)
            if part.trains:
                trainable[folder / name] = part
        for role in state.roles if optimizer else ():
            name = state_file(i, store, role)
            sums[name] = _put_state(state, role, folder / name)
    write_adapter(folder, trainable, store.weight_dtype)
    for path, part in trainable.items() if not optimizer else ():
        if all(entry.file_name.startswith(PREFIX) for entry in part.entries):
            path.unlink()  # the adapter's file says it all
            del sums[path.name]
    sizes = [entry.size for layout in store.layouts for entry in layout.entries if entry.file_name in where]
    index = {"metadata": {"total_size": sum(sizes) * store.weight_dtype.itemsize}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1, sort_keys=True))
    return sums


def _put_weights(state: SegmentState, part: Part, target: Path, known: tuple[Path, str | None] | None) -> str:
    """Link a part's file, or write it; returns its sum. known: a file of an earlier snapshot that may be the same, and its
    sum."""
    if isinstance(state, DiskSegment):
        file = state.weights if part.trains else state.frozen
        _link(file, target)
        return state.sum_of(file)
    header = header_of(part.entries, state.weight_dtype)
    stored = state.weight[part.start : part.stop].to(state.weight_dtype).cpu()
    if known is not None and known[0].is_file() and known[1] == (found := slab_sum(header, stored)):
        _link(known[0], target)
        return found
    return write_slab(target, header, stored)


def _put_state(state: SegmentState, role: Role, target: Path) -> str:
    """Link a role's file, or write it; returns its sum."""
    if isinstance(state, DiskSegment):
        _link(state.state[role.name], target)
        return state.sum_of(state.state[role.name])
    return write_slab(target, header_of(role.entries, role.dtype, f".{role.name}"), state.state[role.name].cpu())


def read_snapshot(store: Store, folder: Path) -> None:
    """Go on from a snapshot of the same model and optimizer, whatever the placement was; raises UserError."""
    stored = stored_tensors(folder)
    for i, (layout, state) in enumerate(zip(store.layouts, store.states, strict=True)):
        if not layout.entries:
            continue
        files: list[tuple[Path, bytes]] = []
        ours = True
        for part in layout.parts:
            path, first = folder / store.weight_file(i, part.trains), stored.get(part.entries[0].file_name)
            files.append((path, header_of(part.entries, store.weight_dtype)))
            in_adapter = part.entries[0].file_name.startswith(PREFIX)  # it has all weights once more, in one file
            ours = ours and (in_adapter or (first is not None and first.file == path))
        files += [
            (folder / state_file(i, store, role), header_of(role.entries, role.dtype, f".{role.name}"))
            for role in state.roles
        ]
        ours = ours and all(_begins_with(*file) for file in files)
        if isinstance(state, DiskSegment) and ours:
            store.forget(i)
            for (source, _), target in zip(files, state.files, strict=True):
                target.unlink(missing_ok=True)
                _link(source, target)
            continue
        named = {entry.name: stored[entry.file_name] for entry in layout.entries if entry.file_name in stored}
        store.fill(i, FolderWeights(folder, named).tensors(store.segments[i].parameters))
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
                tensor = file.get_tensor(f"{entry.file_name}.{role.name}")
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
