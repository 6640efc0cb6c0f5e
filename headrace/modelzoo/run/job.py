"""A request and its params file as jobs: one for each phase of the file, every one checked before any begins."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.errors import UserError
from headrace.modelzoo.fine_tuning.feature_set import FeatureSet
from headrace.modelzoo.fine_tuning.open import open_features
from headrace.modelzoo.params import InputFacts, Translation, translate
from headrace.modelzoo.params.read import read_phases
from headrace.modelzoo.run.evaluation import EvaluationSet
from headrace.modelzoo.run.flags import Request
from headrace.modelzoo.run.records import OpenInput, open_input
from headrace.params import Params, apply_override, validate_params
from headrace.run_folder import RunFolder
from headrace.training.checkpoint import list_checkpoints
from headrace.training.resume import Beginning


@dataclass(frozen=True)
class Job:
    """One phase of a params file, and what is asked of it."""

    translation: Translation
    params: Params
    mode: str
    eval_steps: int | None  # batches; None: all
    named: Path | None  # what --checkpoint_path or the params file names; an earlier phase may have to make it first
    checkpoints: tuple[Path, ...]  # that eval_all takes; none: those of model_dir
    states: frozenset[str]  # of STATES: what of the checkpoint a new run begins with
    autoload: bool
    """False: a run begins anew, whatever model_dir holds."""
    checkpoint_first: bool
    steps: int | None
    predict_steps: int | None  # records; None: all
    check_only: bool

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.params.run.folder)

    @property
    def checkpoint(self) -> Path | None:
        """The model folder that is named. Raises UserError."""
        return model_folder(self.named) if self.named is not None else None

    @property
    def beginning(self) -> Beginning | None:
        """What a new run begins with."""
        folder = self.checkpoint
        if folder is None:
            return None
        return Beginning(
            folder,
            moments="optimizer" in self.states,
            step="global_step" in self.states,
            position="dataloader" in self.states,
            loss_scale="grad_scaler" in self.states,
        )

    def open_train(self) -> OpenInput | FeatureSet:
        facts = self.translation.train_input
        if facts is None:
            raise UserError(f"--mode {self.mode}: the params file has no train_input to train on")
        return self._open("train_input", facts)

    def open_eval(self) -> EvaluationSet:
        """eval_input, or train_input where there is none, as in the tool."""
        facts, where = self.translation.eval_input, "eval_input"
        if facts is None:
            facts, where = self.translation.train_input, "train_input"
        assert facts is not None
        return self._evaluation_set(facts, where)

    def open_predict(self) -> EvaluationSet:
        """predict_input, or else what would be evaluated. Keys that predict_input leaves out are the training's."""
        facts = self.translation.predict_input
        if facts is None or not facts.data_dir:
            return self.open_eval()
        trained = self.translation.train_input
        if facts.data_processor is None and trained is not None:
            facts = replace(facts, data_processor=trained.data_processor)
        return self._evaluation_set(facts, "predict_input")

    def _evaluation_set(self, facts: InputFacts, where: str) -> EvaluationSet:
        size = facts.batch_size or self.params.training.phases[0].batch_size
        return EvaluationSet(self._open(where, facts), size, self.eval_steps)

    def _open(self, where: str, facts: InputFacts) -> OpenInput | FeatureSet:
        if self.translation.fine_tuning is not None:
            return open_features(where, facts, self.params)
        return open_input(where, facts, self.params)

    @property
    def eval_length(self) -> int:
        return self.params.evaluation.sequence_length or self.params.training.phases[0].sequence_length


STATES = ("model", "optimizer", "dataloader", "grad_scaler", "lr_scheduler", "global_step")
"""Names of load_checkpoint_states."""

OUR_SECTIONS = ("run", "text", "data", "task", "training", "evaluation", "device")
"""Of our params, whose names no section of theirs has: a change of one of their keys is made after translating."""


def jobs_of(request: Request) -> list[Job]:
    """The jobs of a request. Raises UserError: what translating raises, and flags that do not fit the file."""
    phases, _ = read_phases(request.params)
    is_trainer = "trainer" in phases[0][1]
    overrides = [each for each in request.overrides if not _is_ours(each)]
    if request.max_steps is not None:
        overrides.append(f"{'loop' if is_trainer else 'runconfig'}.max_steps={request.max_steps}")
    translations = translate(request.params, overrides)
    jobs: list[Job] = []
    for number in range(len(translations)):
        jobs.append(_job(request, translations, number, jobs))
    return jobs


def _job(request: Request, translations: Sequence[Translation], number: int, earlier: Sequence[Job]) -> Job:
    translation, run = translations[number], translations[number].run
    mode = request.mode or run.mode
    if mode is None:
        raise UserError("--mode: is required (train, eval, eval_all, train_and_eval or predict), or runconfig.mode")
    tree = translation.params.model_dump(mode="json")
    for override in filter(_is_ours, request.overrides):
        apply_override(tree, override)
    tree["run"]["folder"] = str(_folder(request, translations, number))
    if request.device is not None:
        tree["device"]["kind"] = request.device
    if mode == "train_and_eval" and tree["evaluation"]["every"] is None:
        tree["evaluation"]["every"] = tree["training"]["checkpoint_every"]
    asked = request.eval_steps if request.eval_steps is not None else run.eval_steps
    written = None
    if request.checkpoint_path and (number == 0 or mode not in ("train", "train_and_eval")):
        written = str(request.checkpoint_path)
    if written is None and mode in ("eval", "predict"):
        written = run.validate_path
    named, awaited = _named(written or run.checkpoint_path, translation, mode, earlier)
    if named is not None and not awaited:
        model_folder(named)
    weights_only = translation.kind.tensorflow or request.is_pretrained_checkpoint or run.is_pretrained_checkpoint
    return Job(
        translation=translation,
        params=validate_params(tree),
        mode=mode,
        eval_steps=asked or None,
        named=named,
        checkpoints=tuple(model_folder(Path(path)) for path in run.validate_paths) if mode == "eval_all" else (),
        states=states_of("model" if weights_only else request.load_checkpoint_states or run.load_checkpoint_states),
        autoload=run.autoload_last_checkpoint,
        checkpoint_first=run.save_initial_checkpoint,
        steps=request.steps,
        predict_steps=run.predict_steps,
        check_only=request.check_only or run.check_only,
    )


def _folder(request: Request, translations: Sequence[Translation], number: int) -> Path:
    """Where the run of a phase lies: phases of one model_dir each in a folder of their own."""
    written = [each.params.run.folder for each in translations]
    if request.model_dir is not None:
        return request.model_dir if len(written) == 1 else request.model_dir / f"phase-{number}"
    own = Path(written[number])
    return own / f"phase-{number}" if written.count(written[number]) > 1 else own


def _named(
    written: str | None, translation: Translation, mode: str, earlier: Sequence[Job]
) -> tuple[Path | None, bool]:
    """The checkpoint that is named, and whether an earlier phase makes it first: one in its model_dir, or its last where
    both phases have the same model_dir, as in the tool."""
    if written is None:
        is_next = earlier and earlier[-1].translation.params.run.folder == translation.params.run.folder
        if is_next and mode in ("train", "train_and_eval") and translation.run.autoload_last_checkpoint:
            return earlier[-1].run.root, True
        return None, False
    path = Path(written)
    for job in reversed(earlier):
        folder = Path(job.translation.params.run.folder)
        if path.is_relative_to(folder):
            return job.run.root / path.relative_to(folder), mode in ("train", "train_and_eval")
    return path, False


def _is_ours(override: str) -> bool:
    return override.split(".")[0] in OUR_SECTIONS


def states_of(written: str | None) -> frozenset[str]:
    """load_checkpoint_states, all of them where nothing is said. Raises UserError naming what cannot be taken apart."""
    given = frozenset(each.strip() for each in (written or "all").split(",") if each.strip())
    if given == {"all"}:
        return frozenset(STATES)
    name = f"load_checkpoint_states = {written!r}"
    if unknown := sorted(given - set(STATES)):
        raise UserError(f"{name}: no such state: {', '.join(unknown)}; there are {', '.join(STATES)}, or all")
    if "model" not in given:
        raise UserError(f"{name}: without model: a checkpoint gives at least its weights; leave --checkpoint_path out")
    if ("global_step" in given) != ("lr_scheduler" in given):
        raise UserError(
            f"{name}: the learning rate is a function of the step here, so global_step and lr_scheduler go together; name both "
            f"or neither"
        )
    return given


_TOOLS_NAME = re.compile(r"(?:model\.ckpt-|checkpoint_)(\d+)")


def model_folder(given: Path) -> Path:
    """The folder with the weights that a path names: itself, the newest checkpoint of a model_dir, or that of the step in a
    name as the tool gives them (D/model.ckpt-N, D/checkpoint_N.mdl). Raises UserError."""
    if (given / "config.json").is_file():
        return given
    if checkpoints := list_checkpoints(RunFolder(given)):
        return checkpoints[-1]
    if (name := _TOOLS_NAME.match(given.name)) is not None:
        found = RunFolder(given.parent).checkpoints / f"step-{int(name[1]):08d}"
        if (found / "config.json").is_file():
            return found
    what = "holds neither a config.json nor checkpoints" if given.is_dir() else "is no folder"
    raise UserError(
        f"--checkpoint_path = {given}: {what}; give a model_dir, one of its checkpoints/step-N, or a Hugging Face folder. "
        f"TensorFlow checkpoints and .mdl files are not read"
    )
