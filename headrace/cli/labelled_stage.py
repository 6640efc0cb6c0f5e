"""A run on labelled rows: read -> encode -> train -> evaluate the best checkpoint -> predictions -> report."""

import json
import statistics
from collections.abc import Sequence
from typing import Any

from headrace.cli.prepare_stage import open_run
from headrace.errors import UserError
from headrace.evaluation.evaluate import describe
from headrace.evaluation.labelled import evaluate_labelled
from headrace.evaluation.open_checkpoint import open_to_evaluate
from headrace.params import Params, dump_params
from headrace.planning.device import choose_precision
from headrace.progress import say
from headrace.report.page import write_report
from headrace.run_folder import RunFolder, model_folder
from headrace.tasks import labelled_task_of
from headrace.text.make_vocabulary import make_vocabulary
from headrace.text.tokens import write_atomically
from headrace.training.checkpoint import list_checkpoints, read_manifest, recover
from headrace.training.labelled_rows import evaluation_length, open_labelled
from headrace.training.labelled_source import LabelledSource
from headrace.training.loop import train, training_done
from headrace.training.records import read_records, record_evaluation
from headrace.training.setup import check_model


def run_labelled(params: Params) -> None:
    """Everything that is not done yet, once for each seed; then the figures of the best checkpoint, or their mean."""
    if params.run.seeds is None:
        figures = _run_one(params)
        for line in _summary(params, RunFolder(params.run.folder), figures):
            say(line)
        return
    open_run(params)
    found = []
    for seed in params.run.seeds:
        tree = params.run.model_copy(update={"seed": seed, "seeds": None, "folder": params.run.folder / f"seed-{seed}"})
        say(f"Seed {seed}:")
        found.append(_run_one(params.model_copy(update={"run": tree})))
    summary = _over_seeds(found, params.run.seeds)
    write_atomically(params.run.folder / "seeds.json", json.dumps(summary, indent=1).encode())
    for line in _seed_lines(summary):
        say(line)


def train_labelled(params: Params) -> LabelledSource:
    """Train from where the run stands."""
    run = open_run(params)
    check_model(params)
    vocabulary = make_vocabulary(params, run, [], "")
    source = open_labelled(params, run, vocabulary)
    write_atomically(run.params, dump_params(source.params).encode())
    recover(run)
    if training_done(source.params, run, source):
        say(f"Training: done, {read_manifest(list_checkpoints(run)[-1])['state']['step']} steps")
    else:
        train(source.params, run, source)
    return source


def evaluate_labelled_stage(params: Params) -> list[dict[str, Any]]:
    """Evaluate the best checkpoint, or the newest; adds the figures to the records and writes the predictions."""
    run = open_run(params)
    source = open_labelled(params, run, make_vocabulary(params, run, [], ""))
    figures = _judge(source, run)
    if figures:
        record_evaluation(run, figures)
        say(f"{model_folder(run.root).name}: {describe(figures)}")
    write_report(source.params, run, {})
    return [figures] if figures else []


def _run_one(params: Params) -> dict[str, Any]:
    source = train_labelled(params)
    run = RunFolder(params.run.folder)
    figures = _judge(source, run)
    write_report(source.params, run, {})
    return figures


def _judge(source: LabelledSource, run: RunFolder) -> dict[str, Any]:
    """The figures of the best checkpoint; its predictions are written beside what is true."""
    if not list_checkpoints(run):
        raise UserError(f"{run.root}: holds no checkpoint to evaluate; run `headrace train` first")
    params, folder = source.params, model_folder(run.root)
    precision, length, task = choose_precision(params), evaluation_length(params), labelled_task_of(params)
    opened, room = open_to_evaluate(params, run, folder, precision, length)
    try:
        figures, predictions = evaluate_labelled(
            params,
            opened.model,
            source.held_out,
            precision,
            sequence_length=length,
            streaming=opened.streaming,
            room=room,
        )
    finally:
        opened.close()
    lines = [
        json.dumps({"source": example.source, **task.truth(example), **prediction}, ensure_ascii=False)
        for example, prediction in zip(source.held_out.examples, predictions, strict=True)
    ]
    write_atomically(run.predictions, "".join(f"{line}\n" for line in lines).encode())
    state = read_manifest(folder)["state"]
    return {"step": state["step"], "phase": state["phase"], **figures} if figures else {}


def _summary(params: Params, run: RunFolder, figures: dict[str, Any]) -> list[str]:
    lines = [""]
    if figures:
        shown = {name: value for name, value in figures.items() if name not in ("step", "phase", "sequence_length")}
        lines.append(f"Best checkpoint, step {figures['step']:,}: {describe(shown)}")
    speeds = sorted(record["tokens_per_s"] for record in read_records(run.metrics) if record.get("tokens_per_s"))
    if speeds:
        lines.append(f"{speeds[len(speeds) // 2]:,.0f} tokens/s in training (median)")
    return [
        *lines,
        f"Model       {model_folder(run.root)}  (a Hugging Face folder)",
        f"Predictions {run.predictions}",
        f"TensorBoard tensorboard --logdir {run.tensorboard}",
        f"Report      {run.report}",
    ]


def _over_seeds(found: Sequence[dict[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Mean and standard deviation (of a sample) of every figure over the seeds."""
    names = [name for name in found[0] if name.startswith("eval/")]
    values = {name: [figures[name] for figures in found if figures.get(name) is not None] for name in names}
    return {
        "seeds": list(seeds),
        "figures": {
            name: {
                "each": each,
                "mean": statistics.fmean(each),
                "deviation": statistics.stdev(each) if each[1:] else None,
            }
            for name, each in values.items()
            if len(each) == len(seeds)
        },
    }


def _seed_lines(summary: dict[str, Any]) -> list[str]:
    seeds = ", ".join(map(str, summary["seeds"]))
    lines = ["", f"Over seeds {seeds} (mean, deviation of a sample):"]
    for name, figure in summary["figures"].items():
        spread = f" ± {figure['deviation']:.4f}" if figure["deviation"] is not None else ""
        lines.append(f"  {name} {figure['mean']:.4f}{spread}")
    return lines
