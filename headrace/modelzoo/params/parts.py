"""One phase of a file as checked sections, the same for all generations: trainer files are laid out as the PyTorch ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.modelzoo.params import trainer_tables
from headrace.modelzoo.params.keys import Given, Key, Notes, Taken, idle, located, nearest, section, shown, take, use
from headrace.modelzoo.params.optimizer_kinds import kind_of
from headrace.modelzoo.params.read import find, read_yaml, task_folder
from headrace.modelzoo.params.recognise import Kind
from headrace.modelzoo.params.run_tables import (
    PT_CSCONFIG,
    PT_INPUT,
    PT_OPTIMIZER,
    PT_RUN,
    SPARSITY,
    TF_CSCONFIG,
    TF_INPUT,
    TF_OPTIMIZER,
    TF_RUN,
)

TOP: tuple[Key, ...] = (
    use("train_input", "any", None, "see train_input"),
    use("eval_input", "any", None, "see eval_input"),
    use("predict_input", "any", None, "see predict_input"),
    use("inference_input", "any", None, "see predict_input"),
    use("model", "any", None, "see model"),
    use("optimizer", "any", None, "see optimizer"),
    use("runconfig", "any", None, "see runconfig"),
    use("csconfig", "any", None, "see csconfig"),
    use("sparsity", "any", None, "see sparsity"),
    use("initializer", "any", None, "model.initial (TensorFlow BERT reads it here, not in model)"),
    idle("description", "says what the file is"),
)


@dataclass
class Parts:
    """The checked sections of one phase."""

    kind: Kind
    yaml_path: Path
    model: Taken
    optimizer: Taken
    run: Taken
    train: Taken | None
    eval: Taken | None
    predict: Taken | None
    initializer: Given | None
    """The top-level initializer."""
    notes: Notes

    def unread(self) -> list[str]:
        taken = (self.model, self.optimizer, self.run, self.train, self.eval, self.predict)
        return [path for each in taken if each is not None for path in each.unread()]


def parts_of(tree: Mapping[str, Any], where: str, kind: Kind, yaml_path: Path, notes: Notes) -> Parts:
    """Check every section of one phase. Raises UserError for the first key or value that is not allowed."""
    if kind.style == "trainer":
        return _trainer(tree, where, kind, yaml_path, notes)
    tf = kind.tensorflow
    top = take(located(tree, ""), "params", TOP, notes)
    sections = {name: section(top[name], name) for name in ("model", "optimizer", "runconfig", "csconfig")}
    input_table = TF_INPUT if tf else PT_INPUT
    inputs = {
        name: take(located(section(top[name], name), name), name, input_table, notes) if top.has(name) else None
        for name in ("train_input", "eval_input", "predict_input", "inference_input")
    }
    take(located(sections["csconfig"], "csconfig"), "csconfig", TF_CSCONFIG if tf else PT_CSCONFIG, notes)
    _sparsity(top["sparsity"], "sparsity", notes)
    optimizer_table = TF_OPTIMIZER if tf else PT_OPTIMIZER
    if isinstance(name := sections["optimizer"].get("optimizer_type"), str):
        kind_of(name, "optimizer.optimizer_type")  # before its keys are found to be unknown
    run_table = TF_RUN if tf else PT_RUN
    return Parts(
        kind,
        yaml_path,
        _model(located(sections["model"], "model"), kind, yaml_path, notes),
        take(located(sections["optimizer"], "optimizer"), "optimizer", optimizer_table, notes),
        take(located(sections["runconfig"], "runconfig"), "runconfig", run_table, notes),
        inputs["train_input"],
        inputs["eval_input"],
        inputs["predict_input"] or inputs["inference_input"],
        top.given.get("initializer"),
        notes,
    )


def _model(entries: dict[str, Given], kind: Kind, yaml_path: Path, notes: Notes) -> Taken:
    """The model section, over the pretraining file's where it names one."""
    written = next((entries[n] for n in ("pretrain_params_path", "bert_pretrain_params_path") if n in entries), None)
    if written is None or not isinstance(written.value, str):
        return take(entries, "model", kind.model_table, notes)
    base = task_folder(yaml_path) / written.value
    pretrain = base if base.is_file() else find(written.value, yaml_path)
    if pretrain is None:
        raise UserError(
            f"{written.path} = {shown(written.value)}: no such file; it is looked for from {task_folder(yaml_path)}, the folder "
            f"of the task, and from here. Put the pretraining file there, or give its path: {written.path}=PATH"
        )
    tree, read = read_yaml(pretrain)
    for note in read:
        notes.add(note)
    below = section(tree.get("model") if isinstance(tree, dict) else None, f"{pretrain}: model")
    pretraining = Kind(kind.style, kind.family, "pretraining").model_table
    unknown = set(below) - {name for key in pretraining for name in (key.name, *key.also)}
    if unknown:
        raise UserError(
            f"{pretrain}: model.{min(unknown)}: unknown key{nearest(min(unknown), [k.name for k in pretraining])}"
        )
    # The tool drops use_vsl; keys of pretraining alone mean nothing to another head.
    skipped = {"use_vsl", "mlm_loss_weight", "disable_nsp", "num_cls_classes", "mlm_nonlinearity"}
    inherited = {
        name: Given(value, f"{pretrain.name}: model.{name}") for name, value in below.items() if name not in skipped
    }
    taken = take({**inherited, **entries}, "model", kind.model_table, notes)
    taken.has("pretrain_params_path")  # it is read here
    return taken


def _trainer(tree: Mapping[str, Any], where: str, kind: Kind, yaml_path: Path, notes: Notes) -> Parts:
    for key in tree:
        if key != "trainer":
            raise UserError(f"{key}: unknown key beside trainer; a file in the trainer style holds nothing else")

    def taken(value: Any, path: str, table: tuple[Key, ...]) -> Taken:
        return take(located(section(value, path), path), path, table, notes)

    trainer = taken(tree["trainer"], where, trainer_tables.TRAINER)
    at = f"{where}.init"
    init = taken(trainer["init"], at, trainer_tables.INIT)
    model = dict(section(init["model"], f"{at}.model"))
    model.pop("name", None)
    precision = taken(init["precision"], f"{at}.precision", trainer_tables.PRECISION)
    loop = taken(init["loop"], f"{at}.loop", trainer_tables.LOOP)
    checkpoint = taken(init["checkpoint"], f"{at}.checkpoint", trainer_tables.CHECKPOINT)
    logging = taken(init["logging"], f"{at}.logging", trainer_tables.LOGGING)
    backend = taken(init["backend"], f"{at}.backend", trainer_tables.BACKEND)
    _sparsity(init["sparsity"], f"{at}.sparsity", notes)
    fit = taken(trainer["fit"], f"{where}.fit", trainer_tables.FIT)
    validate = taken(trainer["validate"], f"{where}.validate", trainer_tables.VALIDATE)
    every = taken(trainer["validate_all"], f"{where}.validate_all", trainer_tables.VALIDATE_ALL)
    model_taken = take(located(model, f"{at}.model"), f"{at}.model", kind.model_table, notes)
    half = {"mixed_precision": Given(precision["enabled"], precision.where("enabled"))}
    if precision.has("fp16_type"):
        half["fp16_type"] = precision.given["fp16_type"]
    model_taken.given = {**half, **model_taken.given}
    run = Taken(at, {}, {key.name: None if key.default == "required" else key.default for key in PT_RUN})
    for part in (loop, checkpoint, logging, backend):
        run.given.update(part.given)
    for name in ("model_dir", "seed"):
        if init.has(name):
            run.given[name] = init.given[name]
    if init.has("device"):
        run.given["target_device"] = init.given["device"]
    for part, name, of_run in (
        (fit, "ckpt_path", "checkpoint_path"),
        (validate, "ckpt_path", "validate_path"),
        (every, "ckpt_paths", "validate_paths"),
    ):
        if part.has(name):
            run.given[of_run] = part.given[name]
    _callbacks(init, run, at, notes)
    train = _loader("train_dataloader", fit, notes)
    validated = [("val_dataloader", fit), ("val_dataloader", validate), ("val_dataloaders", every)]
    seen: list[Any] = []  # anchors make one loader stand in several places
    evaluation = None
    for name, part in validated:
        if part[name] is not None and part[name] not in seen:
            seen.append(part[name])
            found = _loader(name, part, notes)
            evaluation = evaluation or found
    return Parts(
        kind,
        yaml_path,
        model_taken,
        _trainer_optimizer(init, precision, at, notes),
        run,
        train,
        evaluation,
        None,
        None,
        notes,
    )


def _sparsity(value: Any, path: str, notes: Notes) -> None:
    """One section, or a list of them; its keys are checked, and told to be without effect."""
    entries = [(f"{path}[{i}]", each) for i, each in enumerate(value)] if isinstance(value, list) else [(path, value)]
    for at, entry in entries:
        take(located(section(entry, at), at), at, SPARSITY, notes)


def _loader(name: str, part: Taken, notes: Notes) -> Taken | None:
    """A dataloader; of several to validate on, the first, and the others are named."""
    value, path = part[name], f"{part.path}.{name}"
    if value is None:
        return None
    if isinstance(value, list):
        if len(value) > 1:
            notes.add(f"{path}: the first of {len(value)} is taken; evaluate the others with a file of their own")
        value = value[0] if value else {}
        path += "[0]"
    return take(located(section(value, path), path), path, PT_INPUT, notes)


def _trainer_optimizer(init: Taken, precision: Taken, at: str, notes: Notes) -> Taken:
    """The optimizer as the PyTorch files have it: its type, its keys, its schedules, clipping and loss scale."""
    given = section(init["optimizer"], f"{at}.optimizer")
    if len(given) > 1:
        raise UserError(f"{at}.optimizer: should hold one optimizer, not {' and '.join(given)}")
    optimizer = Taken(at, {}, {key.name: None if key.default == "required" else key.default for key in PT_OPTIMIZER})
    for name, keys in given.items():
        path = f"{at}.optimizer.{name}"
        optimizer.path = path
        kind_of(name, path)
        own = take(located(section(keys, path), path), path, trainer_tables.OPTIMIZER, notes)
        optimizer.given = {"optimizer_type": Given(name, path), **own.given}
    optimizer.given.update({n: g for n, g in precision.given.items() if n not in ("enabled", "fp16_type")})
    precision.read |= set(precision.given)
    if init["schedulers"] is not None:
        optimizer.given["learning_rate"] = Given(init["schedulers"], init.where("schedulers"))
    optimizer.given.setdefault("correct_bias", Given(True, "the tool's default of correct_bias in 2.x"))
    return optimizer


def _callbacks(init: Taken, run: Taken, at: str, notes: Notes) -> None:
    """Refuse callbacks that would change the training."""
    for name in ("callbacks", "loggers"):
        entries = init[name] or []
        if not isinstance(entries, list):
            raise UserError(f"{at}.{name}: should be a list")
        for i, entry in enumerate(entries):
            called = next(iter(entry), "") if isinstance(entry, dict) else str(entry)
            path = f"{at}.{name}[{i}].{called}"
            if name == "loggers":
                notes.no_effect(path, init_words("loggers"))
            elif called == "KeepNCheckpoints" and isinstance(entry, dict):
                number = section(entry[called], path).get("n")
                run.given["keep_checkpoint_max"] = Given(int(number or 0), f"{path}.n")
            elif called == "LoadCheckpointStates" and isinstance(entry, dict):
                states = section(entry[called], path).get("load_checkpoint_states", "all")
                states = ",".join(map(str, states)) if isinstance(states, list) else str(states)
                run.given["load_checkpoint_states"] = Given(states, f"{path}.load_checkpoint_states")
            elif called in trainer_tables.CALLBACKS:
                notes.no_effect(path, trainer_tables.CALLBACKS[called])
            else:
                allowed = ", ".join(sorted(trainer_tables.CALLBACKS))
                raise UserError(f"{path}: this callback is not available; leave it out (accepted: {allowed})")


def init_words(name: str) -> str:
    return next(key.words for key in trainer_tables.INIT if key.name == name)
