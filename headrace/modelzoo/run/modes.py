"""What each mode does. Everything is checked before anything is made: params, records against the params, the model."""

from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from headrace.errors import UserError
from headrace.evaluation.open_checkpoint import open_to_evaluate
from headrace.modelzoo.create.piece_list import is_piece_list, save_piece_list
from headrace.modelzoo.create.vocabulary import is_entry_list
from headrace.modelzoo.fine_tuning.feature_set import FeatureSet
from headrace.modelzoo.fine_tuning.judge import predict_features
from headrace.modelzoo.fine_tuning.source import FeatureSource
from headrace.modelzoo.run.evaluation import EvaluationSet, evaluate_set
from headrace.modelzoo.run.flags import Request
from headrace.modelzoo.run.job import Job, jobs_of
from headrace.modelzoo.run.prediction import predict_records
from headrace.modelzoo.run.put_aside import put_aside
from headrace.modelzoo.run.record_source import RecordSource
from headrace.modelzoo.run.records import OpenInput
from headrace.modelzoo.run.report import note_records, report
from headrace.params import Params, dump_params, validate_params
from headrace.planning.device import Precision, choose_precision
from headrace.planning.run import plan_run, planned_model
from headrace.progress import say
from headrace.text.tokens import write_atomically
from headrace.text.vocabulary.load import load_vocabulary
from headrace.training.checkpoint import MANIFEST, list_checkpoints, read_manifest, recover
from headrace.training.loop import train
from headrace.training.optimizers import update_rule
from headrace.training.plan_lines import say_plan
from headrace.training.records import record_evaluation
from headrace.training.setup import check_model


def run(request: Request) -> None:
    """Do what is asked. Raises UserError, InputError, and Stopped after a signal."""
    for line in request.without_effect:
        say(line)
    jobs = jobs_of(request)
    for i, job in enumerate(jobs):
        if len(jobs) > 1:
            say(f"Phase {i} of {len(jobs)}: {job.params.run.folder}")
        for note in job.translation.notes:
            say(f"note: {note}")
        check_model(job.params)
    if any(job.check_only for job in jobs):
        for job in jobs:
            _check(job)
        return
    for job in jobs:
        _MODES[job.mode](job)


def _check(job: Job) -> None:
    """--validate_only and --compile_only: everything that would be refused later, and the plan."""
    if job.mode in ("train", "train_and_eval"):
        _say_input(job.open_train())
    if job.mode == "predict":
        _say_input(job.open_predict().input)
    elif job.mode != "train" or job.translation.eval_input is not None:
        _say_input(job.open_eval().input)
    size = job.params.text.vocabulary.size
    model, segments = planned_model(job.params, size)
    plan = plan_run(job.params, model, segments, update_rule(job.params), choose_precision(job.params))
    say_plan(plan, job.params, size)
    say("Everything fits together; nothing was trained")


def _say_input(opened: OpenInput | FeatureSet) -> None:
    """What is read."""
    for line in opened.lines():
        say(line)


def _train(job: Job, held_out: EvaluationSet | None = None) -> None:
    records = job.open_train()
    _say_input(records)
    run = job.run
    run.create()
    recover(run)
    if not job.autoload and list_checkpoints(run):
        put_aside(run)
    checkpoints = list_checkpoints(run)
    beginning = job.beginning
    step = 0
    if checkpoints:
        step = read_manifest(checkpoints[-1])["state"]["step"]
    elif beginning is not None and beginning.step and (beginning.folder / MANIFEST).is_file():
        step = read_manifest(beginning.folder)["state"]["step"]
    params = _until(job, step)
    write_atomically(run.params, dump_params(params).encode())
    _put_vocabulary(job)
    if checkpoints and beginning is not None:
        say(
            f"{beginning.folder}: it is not read; {run.root} has checkpoints of its own, and the newest of them goes on"
        )
    if step >= params.total_steps:
        say(f"Training: done, step {step} of {params.total_steps}; --max_steps or --steps asks for more")
        return
    evaluates = partial(_figures, job, params, held_out) if held_out is not None else None
    if isinstance(records, OpenInput):
        source = RecordSource(params, records, evaluates)
    else:
        source = FeatureSource(params, records, evaluates)
    note_records(run, records)
    if held_out is not None:
        note_records(run, held_out.input)
    train(params, run, source, beginning, checkpoint_first=job.checkpoint_first)
    report(job)
    say(f"Checkpoints: {run.checkpoints}; the newest is {run.model}, a Hugging Face folder. Report: {run.report}")


def _until(job: Job, step: int) -> Params:
    """The params, with --steps counted from the step where the run stands."""
    if job.steps is None:
        return job.params
    tree = job.params.model_dump(mode="json")
    phase = tree["training"]["phases"][0]
    phase["steps"] = min(phase["steps"], step + job.steps)
    return validate_params(tree)


def _put_vocabulary(job: Job) -> None:
    """The tokenizer of vocab_file, for checkpoints that any transformers program opens; records do not need it."""
    folder = job.run.tokenizer
    if folder.is_dir():
        return
    facts = job.translation.train_input
    name = facts.vocab_file if facts is not None else None
    if facts is not None and name is not None and Path(name).exists():
        try:
            _save_tokenizer(Path(name), folder, facts.lowercase, job.params.task.kind == "causal_lm")
            return
        except UserError as error:
            say(f"note: checkpoints have no tokenizer: {error}")
    folder.mkdir(parents=True)


def _save_tokenizer(path: Path, folder: Path, lowercase: bool, causal: bool) -> None:
    if is_entry_list(path) and is_piece_list(path):
        save_piece_list(path, folder, lowercase, strip_accents=False)
    else:
        load_vocabulary(path, folder, lowercase=lowercase, causal=causal)


def _train_and_eval(job: Job) -> None:
    held_out = job.open_eval()
    _say_input(held_out.input)
    _train(job, held_out)


def _evaluate(job: Job) -> None:
    folder = job.checkpoint
    if folder is None:
        folder = _checkpoints(job)[-1]
    _evaluate_folder(job, folder, _opened(job))


def _evaluate_all(job: Job) -> None:
    data = _opened(job)
    for folder in job.checkpoints or _checkpoints(job):
        _evaluate_folder(job, folder, data)


def _opened(job: Job) -> EvaluationSet:
    data = job.open_eval()
    _say_input(data.input)
    return data


def _checkpoints(job: Job) -> list[Path]:
    if not job.autoload and job.mode != "eval_all":
        raise UserError(
            f"--mode {job.mode}: autoload_last_checkpoint is False, so --checkpoint_path must name a checkpoint"
        )
    recover(job.run)
    if found := list_checkpoints(job.run):
        return found
    raise UserError(
        f"--model_dir = {job.run.root}: holds no checkpoint; train first, or name one with --checkpoint_path"
    )


def _evaluate_folder(job: Job, folder: Path, data: EvaluationSet) -> None:
    """Evaluate one checkpoint; the figures join the records of model_dir."""
    state: dict[str, Any] = {"step": 0, "phase": 0}
    if (folder / MANIFEST).is_file():
        state = read_manifest(folder)["state"]
    precision = choose_precision(job.params)
    opened, room = open_to_evaluate(job.params, job.run, folder, precision, job.eval_length)
    say(f"{folder}: step {state['step']}")
    try:
        figures = _figures(
            job,
            job.params,
            data,
            opened.model,
            precision,
            step=state["step"],
            sequence_length=job.eval_length,
            streaming=opened.streaming,
            room=room,
        )
    finally:
        opened.close()
    job.run.create()
    note_records(job.run, data.input)
    record_evaluation(job.run, {"step": state["step"], "phase": state["phase"], **figures})
    report(job)


def _figures(
    job: Job, params: Params, data: EvaluationSet, model: PreTrainedModel, precision: Precision, **more: Any
) -> dict[str, Any]:
    """more: step, sequence_length, streaming, room."""
    translation = job.translation
    return evaluate_set(
        params,
        data,
        model,
        precision,
        tensorflow=translation.kind.tensorflow,
        fine_tuning=translation.fine_tuning,
        **more,
    )


def _predict(job: Job) -> None:
    """Predictions on every record, into MODEL_DIR/predict."""
    folder = job.checkpoint or _checkpoints(job)[-1]
    data = job.open_predict()
    _say_input(data.input)
    precision = choose_precision(job.params)
    opened, room = open_to_evaluate(job.params, job.run, folder, precision, job.eval_length)
    say(f"{folder}: predicting")
    job.run.create()
    try:
        path = job.run.root / "predict" / "predictions.jsonl"
        more: dict[str, Any] = {
            "sequence_length": job.eval_length,
            "most": job.predict_steps,
            "streaming": opened.streaming,
            "room": room,
        }
        head = job.translation.fine_tuning
        if isinstance(data.input, OpenInput):
            predict_records(job.params, data.input, data.batch_size, opened.model, precision, path, **more)
        else:
            assert head is not None
            predict_features(
                job.params, data.input, data.batch_size, opened.model, precision, path, job=head.job, **more
            )
    finally:
        opened.close()


_MODES = {
    "train": _train,
    "train_and_eval": _train_and_eval,
    "eval": _evaluate,
    "eval_all": _evaluate_all,
    "predict": _predict,
}
