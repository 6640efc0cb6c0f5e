"""Checkpoints: Hugging Face model folders that training can also go on from.

    checkpoints/step-00001000/
        config.json, model-*.safetensors, model.safetensors.index.json, tokenizer files    any transformers program
        adapter_config.json, adapter_model.safetensors                                     of a LoRA run: peft
        optimizer/*.safetensors                                                          the moments
        headrace.json                 step, data position, loss scale; size and SHA-256 or sum of every file

Written aside and renamed: a folder with the final name is complete. All randomness is a function of (seed, step), so
there is no generator state to keep.
"""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import nn
from transformers import PretrainedConfig

from headrace.errors import UserError
from headrace.models.adapters import save_adapter_config
from headrace.optim import LossScale
from headrace.run_folder import RunFolder
from headrace.store.files import file_sum
from headrace.store.snapshot import write_snapshot
from headrace.store.store import Store
from headrace.text.examples import Cursor
from headrace.text.tokens import sha256_of

MANIFEST = "headrace.json"
VERSION = 1


@dataclass(frozen=True)
class TrainingState:
    """Everything besides weights and moments that decides how training goes on."""

    step: int = 0  # optimizer steps done
    updates: int = 0  # of these, steps that updated weights; fewer only under fp16 loss scaling
    phase: int = 0
    phase_step: int = 0
    cursor: Cursor = field(default_factory=Cursor)  # next example of the phase
    loss_scale: LossScale = field(default_factory=lambda: LossScale.static(1.0))

    def state(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "updates": self.updates,
            "phase": self.phase,
            "phase_step": self.phase_step,
            "cursor": self.cursor.state(),
            "loss_scale": self.loss_scale.state(),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "TrainingState":
        rest = {key: state[key] for key in ("step", "updates", "phase", "phase_step")}
        return cls(
            **rest, cursor=Cursor.from_state(state["cursor"]), loss_scale=LossScale.from_state(state["loss_scale"])
        )


def write_checkpoint(
    run: RunFolder,
    store: Store,
    config: PretrainedConfig,
    state: TrainingState,
    decides: dict[str, Any],
    keep: int,
    model: nn.Module | None = None,
) -> Path:
    """Write checkpoints/step-N, point `model` at it and delete all but the `keep` newest.

    decides: the params that the numbers depend on; resuming compares them. model: it may hold an adapter, whose config goes
    along. Raises UserError when the disk refuses.
    """
    final = run.checkpoints / f"step-{state.step:08d}"
    aside = _aside(final)
    earlier = next(reversed(list_checkpoints(run)), None)
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        config.save_pretrained(aside)
        if model is not None:
            save_adapter_config(model, aside)
        shutil.copytree(run.tokenizer, aside, dirs_exist_ok=True)
        sums = write_snapshot(store, aside, earlier=earlier, earlier_sums=_sums_of(earlier))
        files = {}
        for path in sorted(path for path in aside.rglob("*") if path.is_file()):
            name = path.relative_to(aside).as_posix()
            files[name] = (path.stat().st_size, sums.get(name) or sha256_of(path))
        manifest = {"version": VERSION, "state": state.state(), "params": decides, "files": files}
        (aside / MANIFEST).write_text(json.dumps(manifest, indent=1), "utf-8")
        for path in aside.rglob("*"):
            _flush(path)
        shutil.rmtree(final, ignore_errors=True)
        aside.rename(final)
        _flush(run.checkpoints)
        _point(run.model, final)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(aside, ignore_errors=True)
        # copytree collects (from, to, reason) of each file in an error of its own.
        reason = error.args[0][0][2] if isinstance(error, shutil.Error) else getattr(error, "strerror", error)
        raise UserError(
            f"{final}: cannot be written ({reason}); earlier checkpoints are untouched. Free space, then run "
            f"again: it goes on from the last one"
        ) from None
    for old in [each for each in list_checkpoints(run)[:-keep] if each.resolve() != run.best.resolve()]:
        shutil.rmtree(old.rename(_aside(old)))  # renamed first: half of a checkpoint never has a final name
    return final


def keep_best(run: RunFolder, checkpoint: Path) -> None:
    """Let `best` be this checkpoint: it stays when it is no longer among the newest."""
    _point(run.best, checkpoint)


def list_checkpoints(run: RunFolder) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in run.checkpoints.glob("step-*") if (path / MANIFEST).is_file())


def _sums_of(checkpoint: Path | None) -> dict[str, str]:
    """The sum of each file of a checkpoint, as its manifest says; none where it cannot be read."""
    if checkpoint is None:
        return {}
    try:
        files = json.loads((checkpoint / MANIFEST).read_text("utf-8"))["files"]
    except ValueError:
        return {}
    return {name: stamp for name, (_, stamp) in files.items()}


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """The manifest, after comparing every file with it; raises UserError naming what is missing or damaged."""
    remedy = f"delete {checkpoint} to go on from the checkpoint before it"
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text("utf-8"))
    except ValueError as error:
        raise UserError(f"{checkpoint / MANIFEST}: damaged ({error}); {remedy}") from None
    for name, (size_bytes, stamp) in manifest["files"].items():
        path = checkpoint / name
        if not path.is_file() or path.stat().st_size != size_bytes:
            found = f"{path.stat().st_size:,} bytes" if path.is_file() else "no such file"
            raise UserError(f"{path}: damaged: {found}, {size_bytes:,} bytes expected; {remedy}")
        if not is_intact(path, stamp):
            raise UserError(f"{path}: damaged: its checksum is not the one written in {MANIFEST}; {remedy}")
    return manifest


def is_intact(path: Path, stamp: str) -> bool:
    """Whether a file still is what a manifest says: SHA-256, or for slabs the sum of `headrace.store.files`."""
    try:
        return (file_sum(path) if stamp.startswith("sum:") else sha256_of(path)) == stamp
    except UserError:  # not even a slab file
        return False


def recover(run: RunFolder) -> None:
    """Put in order what a killed run left: delete what is half written or half deleted, and let `model` be the newest
    checkpoint."""
    for aside in run.checkpoints.glob(".step-*.tmp"):
        shutil.rmtree(aside)
    checkpoints = list_checkpoints(run)
    if checkpoints and run.model.resolve() != checkpoints[-1].resolve():
        _point(run.model, checkpoints[-1])


def _aside(final: Path) -> Path:
    return final.with_name(f".{final.name}.tmp")


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _point(link: Path, target: Path) -> None:
    aside = link.with_name(link.name + ".tmp")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target.relative_to(link.parent))
    aside.replace(link)
