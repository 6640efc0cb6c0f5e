"""Going on from a checkpoint: what must be the same as before, and what may change."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.optimizer_params import OptimizerParams
from headrace.params import Params, TaskParams
from headrace.progress import say
from headrace.run_folder import RunFolder
from headrace.store.snapshot import read_snapshot
from headrace.store.store import Store
from headrace.training.checkpoint import MANIFEST, TrainingState, list_checkpoints, read_manifest


@dataclass(frozen=True)
class Beginning:
    """A model folder that a new run starts from: its weights, and what else is asked for of the run that wrote it."""

    folder: Path
    moments: bool = False
    """The optimizer's state."""
    step: bool = False
    """Else the new run begins at step 0."""
    position: bool = False
    """The place in the data; else from the first example."""
    loss_scale: bool = False


def resume(params: Params, run: RunFolder, store: Store) -> TrainingState | None:
    """Fill the store from the newest checkpoint; None when there is none."""
    checkpoints = list_checkpoints(run)
    if not checkpoints:
        return None
    newest = checkpoints[-1]
    manifest = read_manifest(newest)
    state = TrainingState.from_state(manifest["state"])
    before, now = _with_defaults(manifest["params"]), decisive_params(params)
    _compare_optimizers(before, now, str(newest))
    _compare(before, now, str(newest), state)
    read_snapshot(store, newest)
    say(f"Going on from {newest}")
    return state


def begin(params: Params, beginning: Beginning, store: Store, fresh: TrainingState) -> TrainingState:
    """The state that is asked for of another run's checkpoint, the rest as in `fresh`; moments, with the weights, go into the
    store. Its params may differ: a new run has its own. Raises UserError where it is damaged, no checkpoint of a run, or of
    another optimizer."""
    folder = beginning.folder
    if not (beginning.moments or beginning.step or beginning.position or beginning.loss_scale):
        return fresh
    if not (folder / MANIFEST).is_file():
        raise UserError(f"{folder}: holds a model and no state of a run that could go on; begin with its weights alone")
    manifest = read_manifest(folder)
    saved = TrainingState.from_state(manifest["state"])
    if beginning.moments:
        _compare_optimizers(_with_defaults(manifest["params"]), decisive_params(params), str(folder))
        read_snapshot(store, folder)
    say(f"Beginning with {folder}, step {saved.step}")
    return TrainingState(
        step=saved.step if beginning.step else fresh.step,
        updates=saved.updates if beginning.moments else fresh.updates,
        phase=saved.phase if beginning.step else fresh.phase,
        phase_step=saved.phase_step if beginning.step else fresh.phase_step,
        cursor=saved.cursor if beginning.position else fresh.cursor,
        loss_scale=saved.loss_scale if beginning.loss_scale else fresh.loss_scale,
    )


def decisive_params(params: Params) -> dict[str, Any]:
    """The params that the numbers of a run depend on."""
    tree = params.model_dump(mode="json")
    return {
        "run": {"seed": tree["run"]["seed"]},
        **{section: tree[section] for section in ("model", "task")},
        "training": {
            key: tree["training"][key] for key in ("phases", "learning_rate", "schedule_clock", "optimizer", "lora")
        },
    }


def _with_defaults(params: dict[str, Any]) -> dict[str, Any]:
    """A checkpoint's decisive params. Keys it lacks are newer than it, and had their defaults."""
    before = json.loads(json.dumps(params))
    optimizer = OptimizerParams.model_validate(before["training"]["optimizer"])
    before["training"]["optimizer"] = optimizer.model_dump(mode="json")
    before["task"] = TaskParams.model_validate(before["task"]).model_dump(mode="json")
    return before


def _compare_optimizers(before: dict[str, Any], now: dict[str, Any], checkpoint: str) -> None:
    """Refuse moments of another form."""
    for key in ("kind", "weights"):  # decides the form of the state; what else differs follows from it
        a, b = before["training"]["optimizer"][key], now["training"]["optimizer"][key]
        if a != b:
            raise UserError(
                f"{checkpoint} holds the state of training.optimizer.{key} = {a}, and the params now say {b}: neither can "
                f"go on from the other's. Undo the change, or choose another run.folder"
            )


def _compare(before: dict[str, Any], now: dict[str, Any], checkpoint: str, state: TrainingState) -> None:
    """Refuse changes that would rewrite the past. Steps and phases that are still ahead may change, and so may what a run
    that diverged needs changed to go on: learning rate and clipping."""
    before, now = json.loads(json.dumps(before)), json.loads(json.dumps(now))
    phases_before, phases_now = before["training"].pop("phases"), now["training"].pop("phases")
    changed: list[str] = []

    def judge(path: str, a: Any, b: Any) -> None:
        if ".learning_rate" in path or path.endswith((".max_gradient_norm", ".max_gradient_value")):
            say(f"From step {state.step} on: {path} was {a!r}, now {b!r}")
        else:
            changed.append(f"{path} was {a!r}, now {b!r}")

    for difference in _differences(before, now):
        judge(*difference)
    for i in range(min(state.phase + 1, len(phases_before))):
        if i >= len(phases_now):
            changed.append(f"training.phases.{i} is gone")
            continue
        for path, a, b in _differences(phases_before[i], phases_now[i], f"training.phases.{i}"):
            if i == state.phase and path.endswith(".steps") and b is not None and b >= state.phase_step:
                continue
            if i == state.phase:
                judge(path, a, b)
            else:
                changed.append(f"{path} was {a!r}, now {b!r}")
    if changed:
        raise UserError(
            f"{checkpoint} was trained with other params: {'; '.join(changed)}. Undo the change, or choose another "
            f"run.folder"
        )


def _differences(a: Any, b: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(a, dict) and isinstance(b, dict):
        for key in a.keys() | b.keys():
            yield from _differences(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    elif a != b:
        yield path, a, b
