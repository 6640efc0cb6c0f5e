"""A request and its params file as jobs: one for each phase of the file, every one checked before any begins."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import UserError
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
    checkpoint: Path | None  # of --checkpoint_path, a model folder
    weights_only: bool
    steps: int | None
    check_only: bool

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.params.run.folder)

    @property
    def beginning(self) -> Beginning | None:
        return Beginning(self.checkpoint, self.weights_only) if self.checkpoint is not None else None

    def open_train(self) -> OpenInput:
        facts = self.translation.train_input
        if facts is None:
            raise UserError(f"--mode {self.mode}: the params file has no train_input to train on")
        return open_input("train_input", facts, self.params)

    def open_eval(self) -> EvaluationSet:
        """eval_input, or train_input where there is none, as in the tool."""
        facts, where = self.translation.eval_input, "eval_input"
        if facts is None:
            facts, where = self.translation.train_input, "train_input"
        assert facts is not None
        return self._evaluation_set(facts, where)

    def _evaluation_set(self, facts: InputFacts, where: str) -> EvaluationSet:
        size = facts.batch_size or self.params.training.phases[0].batch_size
        return EvaluationSet(open_input(where, facts, self.params), size, self.eval_steps)

    @property
    def eval_length(self) -> int:
        return self.params.evaluation.sequence_length or self.params.training.phases[0].sequence_length


OUR_SECTIONS = ("run", "text", "task", "training", "evaluation", "device")
"""Of our params, whose names no section of theirs has: a change of one of their keys is made after translating."""


def jobs_of(request: Request) -> list[Job]:
    """The jobs of a request. Raises UserError: what translating raises, and flags that do not fit the file."""
    phases, _ = read_phases(request.params)
    is_trainer = "trainer" in phases[0][1]
    overrides = [each for each in request.overrides if not _is_ours(each)]
    if request.max_steps is not None:
        overrides.append(f"{'loop' if is_trainer else 'runconfig'}.max_steps={request.max_steps}")
    translations = translate(request.params, overrides)
    return [_job(request, translations, i) for i in range(len(translations))]


def _job(request: Request, translations: Sequence[Translation], number: int) -> Job:
    translation, run = translations[number], translations[number].run
    mode = request.mode or run.mode
    if mode is None:
        raise UserError("--mode: is required (train, eval, eval_all, train_and_eval or predict), or runconfig.mode")
    if translation.fine_tuning is not None:
        raise UserError(
            f"{request.params}: fine-tunes a {translation.model_class}, and the data sets of fine-tuning cannot be read here; "
            f"`headrace.stream` trains such a model from Python: docs/from-model-zoo.md"
        )
    tree = translation.params.model_dump(mode="json")
    for override in filter(_is_ours, request.overrides):
        apply_override(tree, override)
    if request.model_dir is not None:
        alone = len(translations) == 1
        tree["run"]["folder"] = str(request.model_dir if alone else request.model_dir / f"phase-{number}")
    if request.device is not None:
        tree["device"]["kind"] = request.device
    if mode == "train_and_eval" and tree["evaluation"]["every"] is None:
        tree["evaluation"]["every"] = tree["training"]["checkpoint_every"]
    asked = request.eval_steps if request.eval_steps is not None else run.eval_steps
    states = request.load_checkpoint_states or run.load_checkpoint_states
    named = request.checkpoint_path or (Path(run.checkpoint_path) if run.checkpoint_path else None)
    return Job(
        translation=translation,
        params=validate_params(tree),
        mode=mode,
        eval_steps=asked or None,
        checkpoint=model_folder(named) if named is not None else None,
        weights_only=(
            translation.kind.tensorflow
            or request.is_pretrained_checkpoint
            or run.is_pretrained_checkpoint
            or states == "model"
        ),
        steps=request.steps,
        check_only=request.check_only or run.check_only,
    )


def _is_ours(override: str) -> bool:
    return override.split(".")[0] in OUR_SECTIONS


def model_folder(given: Path) -> Path:
    """The folder with the weights that a path names: itself, or the newest checkpoint of a model_dir. Raises UserError."""
    if (given / "config.json").is_file():
        return given
    if checkpoints := list_checkpoints(RunFolder(given)):
        return checkpoints[-1]
    what = "holds neither a config.json nor checkpoints" if given.is_dir() else "is no folder"
    raise UserError(
        f"--checkpoint_path = {given}: {what}; give a model_dir, one of its checkpoints/step-N, or a Hugging Face folder. "
        f"TensorFlow checkpoints and .mdl files are not read"
    )
