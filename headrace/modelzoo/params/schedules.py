"""Learning rates: the tool's schedules as ours.

    TensorFlow and 1.x      learning_rate: a number, {scheduler: Linear, ...}, or a list of them
    trainer files           schedulers: [{SequentialLR: {schedulers: [{LinearLR: {...}}, ...]}}]

The place in a list moves on after the sum of the earlier lengths; whether a schedule then sees its own steps or the run's
is disable_lr_steps_reset, our training.schedule_clock. Sources: R_1.6.1 `common/tf/optimizers/Trainer.py`
(get_learning_rate), Release_1.8.0 `common/pytorch/PyTorchBaseModel.py` (_configure_lr_scheduler), cerebras_pytorch 2.10.
"""

from typing import Any

from headrace.errors import UserError
from headrace.modelzoo.params.draft import Draft
from headrace.modelzoo.params.keys import Given, Notes, Taken, located, nearest, shown, take, typed
from headrace.modelzoo.params.run_tables import SCHEDULE

KINDS = {
    "constant": "constant",
    "linear": "linear",
    "polynomial": "polynomial",
    "cosine": "cosine",
    "cosinedecay": "cosine",
    "exponential": "exponential",
    "piecewiseconstant": "piecewise",
}
_NAMES = "Constant, Linear, Polynomial, Cosine, CosineDecay, Exponential, PiecewiseConstant"


def put_learning_rate(draft: Draft, given: Given, tensorflow: bool, notes: Notes) -> None:
    """training.learning_rate. Raises UserError for a schedule that is not available or lacks a key."""
    path = "training.learning_rate"
    if not isinstance(given.value, dict | list):
        draft.put(path, typed(given.value, "float", given.path), given.path)
        return
    schedules = _schedules(given.value, given.path, notes)
    single = len(schedules) == 1
    for i, (taken, lasts) in enumerate(schedules):
        piece = _piece(taken, lasts, tensorflow, last=i == len(schedules) - 1, notes=notes)
        below = path if single else f"{path}.{i}"
        for name, (value, origin) in piece.items():
            draft.put(f"{below}.{name}", value, origin)


def _schedules(value: Any, path: str, notes: Notes) -> list[tuple[Taken, Given | None]]:
    """Each schedule's keys, and how long it lasts where milestones say so."""
    entries = value if isinstance(value, list) else [value]
    if not entries:
        raise UserError(f"{path}: is an empty list; give at least one schedule")
    found: list[tuple[Taken, Given | None]] = []
    for i, entry in enumerate(entries):
        at = f"{path}[{i}]" if isinstance(value, list) else path
        if not isinstance(entry, dict):
            raise UserError(f"{at} = {shown(entry)}: should be a schedule with keys of its own")
        if "scheduler" in entry:
            found.append((take(located(entry, at), at, SCHEDULE, notes), None))
        elif len(entry) == 1:
            name, keys = next(iter(entry.items()))
            if not isinstance(keys, dict):
                raise UserError(f"{at}.{name} = {shown(keys)}: should be a section with keys of its own")
            if str(name).lower() in ("sequentiallr", "sequential"):
                if len(entries) > 1:
                    raise UserError(f"{path}: only one scheduler of the learning rate can be given, not {len(entries)}")
                return _sequence(keys, f"{at}.{name}", notes)
            taken = take(
                {**located(keys, f"{at}.{name}"), "scheduler": Given(name, at)}, f"{at}.{name}", SCHEDULE, notes
            )
            if len(entries) > 1:
                raise UserError(
                    f"{path}: only one scheduler of the learning rate can be given; put them in a SequentialLR"
                )
            found.append((taken, None))
        else:
            raise UserError(f"{at}.scheduler: is required and not given; it may be {_NAMES}")
    return found


def _sequence(keys: dict[str, Any], path: str, notes: Notes) -> list[tuple[Taken, Given | None]]:
    for name in keys:
        if name not in ("schedulers", "milestones"):
            known = ("schedulers", "milestones")
            raise UserError(f"{path}.{name}: unknown key{nearest(name, known)} (valid keys: {', '.join(known)})")
    inner = keys.get("schedulers")
    if not isinstance(inner, list) or not inner:
        raise UserError(f"{path}.schedulers: should be a list of schedules")
    # Each entry of its own, so that the check for one scheduler concerns the outer list only.
    found = []
    for i, entry in enumerate(inner):
        at = f"{path}.schedulers[{i}]"
        if not isinstance(entry, dict) or len(entry) != 1 or not isinstance(next(iter(entry.values())), dict):
            raise UserError(f"{at} = {shown(entry)}: should be one schedule with keys of its own")
        name, values = next(iter(entry.items()))
        found.append(
            take({**located(values, f"{at}.{name}"), "scheduler": Given(name, at)}, f"{at}.{name}", SCHEDULE, notes)
        )
    milestones = keys.get("milestones")
    if milestones is None:
        return [(taken, None) for taken in found]
    ends = typed(milestones, "ints", f"{path}.milestones")
    if len(ends) != len(found) - 1:
        raise UserError(f"{path}.milestones has {len(ends)} entries for {len(found)} schedulers; give {len(found) - 1}")
    lengths = [b - a for a, b in zip([0, *ends], ends, strict=False)]
    return [
        (taken, Given(lengths[i], f"{path}.milestones[{i}]") if i < len(lengths) else None)
        for i, taken in enumerate(found)
    ]


def _piece(taken: Taken, lasts: Given | None, tensorflow: bool, last: bool, notes: Notes) -> dict[str, tuple[Any, str]]:
    """One of our schedules: its keys, each with where the value stands."""
    written = str(taken["scheduler"])
    kind = KINDS.get(written.lower().removesuffix("lr"))
    if kind is None:
        raise UserError(
            f"{taken.at('scheduler')} = {written!r}: no such schedule here{nearest(written, _NAMES.split(', '))} "
            f"(there are {_NAMES})"
        )
    piece: dict[str, tuple[Any, str]] = {"kind": (kind, taken.at("scheduler"))}

    def need(name: str, *others: str) -> tuple[Any, str]:
        for each in (name, *others):
            if taken.has(each):
                return taken[each], taken.at(each)
        raise UserError(f"{taken.path}.{name}: is required for {written} and not given")

    def length() -> tuple[int, str] | None:
        for name in ("steps", "total_iters", "decay_steps"):
            if taken.has(name):
                if taken[name] <= 0:
                    raise UserError(f"{taken.at(name)} = {taken[name]}: should be more than 0")
                return taken[name], taken.at(name)
        return None

    if kind in ("linear", "polynomial", "cosine"):
        piece["start"] = need("initial_learning_rate", "learning_rate")
        piece["end"] = _end(taken, piece["start"][0], kind, need)
        steps = length()
        if steps is None:
            raise UserError(f"{taken.path}.steps: is required for {written} and not given")
        piece["steps"] = steps
        if taken.has("decay_steps") and taken.has("steps") and taken["decay_steps"] != taken["steps"]:
            _two_lengths(piece, taken, kind, tensorflow, notes)
        if lasts is not None:
            piece["lasts"] = (lasts.value, lasts.path)
        if kind == "polynomial":
            for name in ("power", "cycle"):
                if taken.has(name):
                    piece[name] = (taken[name], taken.at(name))
    elif kind == "constant":
        piece["value"] = need("learning_rate", "initial_learning_rate")
        steps = (lasts.value, lasts.path) if lasts is not None else length()
        if steps is not None and not last:
            piece["steps"] = steps
        elif steps is not None:
            notes.no_effect(steps[1], "the last schedule holds its rate to the end")
    elif kind == "exponential":
        piece["start"] = need("initial_learning_rate", "learning_rate")
        piece["decay_rate"] = need("decay_rate")
        if tensorflow:
            piece["decay_steps"] = need("decay_steps")
            steps = (taken["steps"], taken.at("steps")) if taken.has("steps") else None
        else:
            steps = length()
            piece["decay_steps"] = steps or (1, taken.where("decay_steps"))
        if taken.has("staircase"):
            piece["staircase"] = (taken["staircase"], taken.at("staircase"))
        steps = (lasts.value, lasts.path) if lasts is not None else steps
        if steps is not None and not last:
            piece["steps"] = steps
    else:
        boundaries, origin = need("boundaries")
        # TensorFlow's value changes after the step that is a boundary, PyTorch's and ours at it.
        piece["boundaries"] = ([each + 1 for each in boundaries] if tensorflow else boundaries, origin)
        piece["values"] = need("values")
        steps = (lasts.value, lasts.path) if lasts is not None else length()
        if steps is not None and not last:
            piece["steps"] = steps
    if not last and "steps" not in piece:
        raise UserError(f"{taken.path}.steps: is required where another schedule follows, and not given")
    for path in taken.unread():
        notes.no_effect(path, f"a {written} schedule has no such key")
    return piece


def _end(taken: Taken, start: float, kind: str, need: Any) -> tuple[Any, str]:
    if kind == "cosine" and not taken.has("end_learning_rate"):
        alpha = taken.get("alpha", 0.0)
        return start * typed(alpha, "float", taken.at("alpha")), taken.where("alpha")
    return need("end_learning_rate")


def _two_lengths(piece: dict[str, tuple[Any, str]], taken: Taken, kind: str, tensorflow: bool, notes: Notes) -> None:
    """steps and decay_steps that differ: TensorFlow's Cosine has one for the switch and one for the curve."""
    at = f"{taken.at('steps')} = {taken['steps']} and {taken.at('decay_steps')} = {taken['decay_steps']} differ"
    if tensorflow and kind == "cosine":
        piece["steps"] = (taken["decay_steps"], taken.at("decay_steps"))
        piece["lasts"] = (taken["steps"], taken.at("steps"))
        notes.add(f"{at}: the curve takes decay_steps, the next schedule begins after steps, as in the tool")
    else:
        notes.add(f"{at}: steps is taken for both, as in the tool")
