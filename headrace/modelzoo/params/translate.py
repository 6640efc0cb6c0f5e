"""A params file of the Model Zoo as our params.

P.yaml + overrides -> read_phases -> recognise -> parts_of -> the put_... functions -> Translation, one for each phase
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import UserError
from headrace.modelzoo.params.draft import Draft
from headrace.modelzoo.params.initial import put_initial
from headrace.modelzoo.params.inputs import InputFacts, buckets, input_facts, vocabulary_size
from headrace.modelzoo.params.keys import Notes, Taken
from headrace.modelzoo.params.losses import masked_loss, put_causal_loss, with_own_loss
from headrace.modelzoo.params.model import FineTuning, fine_tuning_of, put_model
from headrace.modelzoo.params.optimizer import put_optimizer
from headrace.modelzoo.params.parts import Parts, parts_of
from headrace.modelzoo.params.read import read_phases
from headrace.modelzoo.params.recognise import Kind, recognise
from headrace.modelzoo.params.rows import put_rows
from headrace.params import Params, validate_params

DEVICES = {"CPU": "cpu", "GPU": "cuda", "CSX": "auto"}


@dataclass(frozen=True)
class RunFacts:
    """What the file says about a run that our params have no place for."""

    mode: str | None
    eval_steps: int | None
    """Batches to evaluate on; None: all."""
    predict_steps: int | None
    checkpoint_path: str | None
    is_pretrained_checkpoint: bool
    autoload_last_checkpoint: bool
    save_initial_checkpoint: bool
    load_checkpoint_states: str | None
    validate_path: str | None
    """The checkpoint that an evaluation takes, where it is not the one that training begins with."""
    validate_paths: tuple[str, ...]
    """Those that eval_all takes; none: all of model_dir."""
    check_only: bool
    """validate_only or compile_only: say what would be done."""


@dataclass(frozen=True)
class Translation:
    """One phase: our params, where each value comes from, and what our params cannot hold."""

    params: Params
    origins: dict[str, str]
    """Our dotted path -> where its value stands in the file."""
    notes: tuple[str, ...]
    kind: Kind
    model_class: str
    """The class of transformers."""
    train_input: InputFacts | None
    eval_input: InputFacts | None
    predict_input: InputFacts | None
    run: RunFacts
    fine_tuning: FineTuning | None


def translate(path: Path, overrides: Sequence[str] = ()) -> list[Translation]:
    """The phases of a params file: one, or those of a list of `- trainer:` entries.

    Raises UserError, naming the YAML path, the value, what is allowed and what to do: unknown keys, wrong values,
    variations that cannot be expressed, files that are missing.
    """
    phases, read = read_phases(path, overrides)
    return [_translate(tree, where, path, Notes(list(read))) for where, tree in phases]


def _translate(tree: dict, where: str, path: Path, notes: Notes) -> Translation:
    draft = Draft()
    kind = recognise(tree, path)
    parts = parts_of(tree, where, kind, path, notes)
    source = parts.train or parts.eval
    if source is None:
        raise UserError(f"{path}: has neither train_input nor eval_input; give at least train_input")
    vocabulary = vocabulary_size(parts, source)
    longest = (
        (source["max_sequence_length"], source.at("max_sequence_length")) if source.has("max_sequence_length") else None
    )
    train, evaluation = input_facts(parts.train, parts, True), input_facts(parts.eval, parts, False)
    prediction = input_facts(parts.predict, parts, False)
    evaluation = with_own_loss(evaluation, parts, source)
    _put_run(draft, parts)
    head = fine_tuning_of(parts)
    if head is None:
        _put_text(draft, source, train or evaluation, vocabulary)
    else:
        put_rows(draft, parts, head, source, train, evaluation, vocabulary)
    model_class = put_model(draft, parts, vocabulary, longest)
    put_initial(draft, parts, vocabulary[0])
    if head is None:
        _put_task(draft, parts, source)
    _put_phase(draft, parts, source, longest)
    put_optimizer(draft, parts)
    _put_intervals(draft, parts)
    _put_evaluation(draft, parts, longest)
    _put_device(draft, parts)
    run = _run_facts(parts)
    if parts.kind.style == "pytorch" and parts.optimizer.given.get("epsilon") is not None:
        notes.add("optimizer.epsilon: read as eps")
    for unread in parts.unread():
        notes.no_effect(unread, "this model and task do not need it")
    params = validate_params(draft.tree)
    return Translation(params, draft.origins, notes.all(), kind, model_class, train, evaluation, prediction, run, head)


def _put_run(draft: Draft, parts: Parts) -> None:
    run = parts.run
    draft.put("run.folder", run["model_dir"], run.where("model_dir"))
    name = "tf_random_seed" if parts.kind.tensorflow else "seed"
    seed = run[name]
    if seed is not None and seed < 0:
        raise UserError(f"{run.at(name)} = {seed}: should be 0 or more")
    draft.put("run.seed", 1 if seed is None else seed, run.at(name) if seed is not None else "Headrace's default")


def _put_text(draft: Draft, source: Taken, facts: InputFacts | None, vocabulary: tuple[int, str]) -> None:
    assert facts is not None
    if not facts.data_dir:
        raise UserError(f"{source.path}.data_dir: is required and not given")
    name = "data_dir" if source.has("data_dir") else "data_file"
    draft.put("text.input", list(facts.data_dir), source.at(name))
    if source.has("do_lower"):
        draft.put("text.lowercase", facts.lowercase, source.at("do_lower"))
    draft.put("text.vocabulary.size", vocabulary[0], vocabulary[1])
    if facts.vocab_file is not None:
        draft.put("text.vocabulary.load", facts.vocab_file, source.at("vocab_file"))


def _put_task(draft: Draft, parts: Parts, source: Taken) -> None:
    model, notes = parts.model, parts.notes
    if parts.kind.family != "bert":
        draft.put("task.kind", "causal_lm", f"{model.path} (a GPT)")
        put_causal_loss(draft, parts)
        return
    draft.put("task.kind", "masked_lm", f"{model.path} (a BERT)")
    alone = model["disable_nsp"]
    draft.put("task.examples", "documents" if alone else "sentence_pairs", model.where("disable_nsp"))
    draft.put("task.mask_rate", source["masked_lm_prob"], source.where("masked_lm_prob"))
    draft.put("task.whole_words", source["mask_whole_word"], source.where("mask_whole_word"))
    loss = masked_loss(parts, source)
    if loss.weight_ignored:
        notes.no_effect(
            model.at("mlm_loss_weight"), f"with {loss.where} the loss is the mean over masked tokens, as in the tool"
        )
    draft.put("task.loss_per", loss.per, loss.where)
    draft.put("task.loss_weight", loss.weight, loss.where if loss.weight_ignored else model.where("mlm_loss_weight"))


def _steps(parts: Parts) -> tuple[int, str]:
    run = parts.run
    for name in ("max_steps", "num_steps"):
        if run.has(name):
            return run[name], run.at(name)
    if run.has("num_epochs") and run.has("steps_per_epoch"):
        return run["num_epochs"] * run["steps_per_epoch"], f"{run.at('num_epochs')} x {run.at('steps_per_epoch')}"
    hint = "; num_epochs needs steps_per_epoch beside it" if run.has("num_epochs") else ""
    raise UserError(f"{run.path}.max_steps: is required and not given{hint}")


def _put_phase(draft: Draft, parts: Parts, source: Taken, longest: tuple[int, str] | None) -> None:
    at, bert = "training.phases.0", parts.kind.family == "bert"
    model = parts.model
    length = longest or (model["max_position_embeddings"], model.where("max_position_embeddings"))
    draft.put(f"{at}.sequence_length", *length)
    if not source.has("batch_size"):
        raise UserError(f"{source.path}.batch_size: is required and not given")
    size, origin = source["batch_size"], source.at("batch_size")
    for taken in (parts.optimizer, parts.run):
        times = taken.get("grad_accum_steps", 1)
        if times > 1:
            size, origin = size * times, f"{origin} x {taken.at('grad_accum_steps')}"
            parts.notes.add(
                f"{taken.at('grad_accum_steps')} = {times}: one step takes {size} examples; microbatches are chosen automatically"
            )
    draft.put(f"{at}.batch_size", size, origin)
    draft.put(f"{at}.steps", *_steps(parts))
    if bert and parts.kind.job == "pretraining" and source.has("max_predictions_per_seq"):
        draft.put(f"{at}.max_predictions", source["max_predictions_per_seq"], source.at("max_predictions_per_seq"))
    rows = buckets(source, length[0])
    if rows is not None and bert:
        draft.put(f"{at}.buckets", rows, source.at("buckets"))
        parts.notes.add(
            f"{source.at('buckets')}: rows are padded to these lengths; batches are drawn at random, not from one bucket each"
        )
    if parts.eval is not None and parts.eval is not source:
        parts.eval.has("buckets")


def _put_intervals(draft: Draft, parts: Parts) -> None:
    run, steps = parts.run, draft.tree["training"]["phases"][0]["steps"]
    name = "save_checkpoints_steps" if parts.kind.tensorflow else "checkpoint_steps"
    every = run[name]
    if not every:
        parts.notes.add(f"{run.at(name)}: no checkpoints in between; one is written at the end")
    every = every or steps
    draft.put("training.checkpoint_every", every, run.where(name))
    kept, origin = run["keep_checkpoint_max"], run.where("keep_checkpoint_max")
    # 0 keeps all: as many as the run writes, its last one included, and its first one where that is asked for.
    all_of_them = math.ceil(steps / every) + 1 + bool(run.get("save_initial_checkpoint"))
    draft.put("training.keep", kept or all_of_them, origin)
    name = "save_summary_steps" if parts.kind.tensorflow else "log_steps"
    if run[name]:
        draft.put("training.log_every", run[name], run.where(name))


def _put_evaluation(draft: Draft, parts: Parts, longest: tuple[int, str] | None) -> None:
    run, steps = parts.run, draft.tree["training"]["phases"][0]["steps"]
    if run.has("eval_frequency") and run["eval_frequency"]:
        every = run["eval_frequency"]
        if isinstance(every, float) and 0 < every <= 1:  # 2.4 and later: a share of the run
            every = max(1, round(every * steps))
        draft.put("evaluation.every", int(every), run.at("eval_frequency"))
    taken = parts.eval
    if taken is None:
        return
    size = taken.get("batch_size") or draft.tree["training"]["phases"][0]["batch_size"]
    batches = run.get("eval_steps")
    if batches and batches > 0:
        draft.put("evaluation.examples", batches * size, f"{run.at('eval_steps')} x {taken.at('batch_size')}")
    if taken.has("max_sequence_length"):
        draft.put("evaluation.sequence_length", taken["max_sequence_length"], taken.at("max_sequence_length"))


def _put_device(draft: Draft, parts: Parts) -> None:
    model, run = parts.model, parts.run
    device = run.get("target_device")
    if device is not None:
        draft.put("device.kind", DEVICES[device], run.at("target_device"))
    half = [name for name in ("mixed_precision", "use_bfloat16", "fp16_type") if model.get(name)]
    off = model.has("mixed_precision") and not model["mixed_precision"]
    if half and not off:
        draft.put("device.precision", "auto", ", ".join(model.at(name) for name in half))
        if model.get("fp16_type") == "float16":
            parts.notes.add(
                f"{model.at('fp16_type')} = float16: device.precision=fp16 asks for it; auto takes bf16 where there is any"
            )
    else:
        draft.put("device.precision", "fp32", model.where("mixed_precision"))


def _run_facts(parts: Parts) -> RunFacts:
    run = parts.run
    steps = run.get("eval_steps")
    return RunFacts(
        mode=run.get("mode"),
        eval_steps=steps if steps and steps > 0 else None,
        predict_steps=run.get("predict_steps"),
        checkpoint_path=run.get("checkpoint_path"),
        is_pretrained_checkpoint=run.get("is_pretrained_checkpoint", False),
        autoload_last_checkpoint=run.get("autoload_last_checkpoint", True),
        save_initial_checkpoint=run.get("save_initial_checkpoint", False),
        load_checkpoint_states=run.get("load_checkpoint_states"),
        validate_path=run.get("validate_path"),
        validate_paths=tuple(run.get("validate_paths") or ()),
        check_only=bool(run.get("validate_only") or run.get("compile_only")),
    )
