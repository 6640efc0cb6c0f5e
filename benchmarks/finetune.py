"""Fine-tuning beside transformers.Trainer: the same features, model, epochs, learning rates and seeds; figures and time.

    python benchmarks/finetune.py configs/jsts.yaml model.init_from=FOLDER --seeds 1 2 3 --rows 2000

Both begin with the folder's weights and a new head of their own, and see the rows in an order of their own, so they agree
within what seeds make of it. --untrained starts ours from new weights of the same shape as well: what pretraining is worth.
Time is that of training steps, without reading and evaluating. Both are judged by one function. The last line is JSON.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, Trainer, TrainingArguments, set_seed

from headrace.evaluation.labelled import evaluate_labelled
from headrace.labelled.features import Feature
from headrace.params import Params, load_params, validate_params
from headrace.planning.device import choose_precision
from headrace.run_folder import RunFolder, model_folder
from headrace.tasks import labelled_task_of
from headrace.tasks.labelled import HEADS, LabelledSet
from headrace.text.make_vocabulary import make_vocabulary
from headrace.training.best import is_smaller_better
from headrace.training.labelled_rows import evaluation_length, open_labelled
from headrace.training.labelled_source import LabelledSource
from headrace.training.loop import train
from headrace.training.records import read_records

OF_A_FOLDER = {"architectures", "dtype", "transformers_version", "id2label", "label2id"}
"""What a folder's config says that is not the model's shape."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("params", type=Path)
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--rows", type=int, help="train on so many; default: all")
    parser.add_argument("--untrained", action="store_true", help="ours from new weights as well")
    arguments = parser.parse_intermixed_args()
    params = load_params(arguments.params, arguments.overrides)
    runs: dict[str, list[dict[str, Any]]] = {"ours": [], "trainer": []}
    if arguments.untrained:
        runs["untrained"] = []
    for seed in arguments.seeds:
        for name, found in runs.items():
            with tempfile.TemporaryDirectory() as folder:
                source = opened(params, Path(folder) / "run", seed, arguments.rows, untrained=name == "untrained")
                found.append(by_trainer(source, Path(folder)) if name == "trainer" else by_ours(source))
            print(f"{name}, seed {seed}: {found[-1]}", flush=True)
    print(json.dumps(summary(params, runs)))


def opened(params: Params, folder: Path, seed: int, rows: int | None, untrained: bool) -> LabelledSource:
    tree = params.model_dump(mode="json")
    tree["run"] = {"folder": str(folder), "seed": seed}
    tree["evaluation"]["every"] = 10**9  # at the end alone
    if untrained:
        assert params.model.init_from is not None
        start = model_folder(params.model.init_from)
        config = json.loads((start / "config.json").read_text())
        known = {field.name for field in fields(type(AutoConfig.from_pretrained(start)))} - OF_A_FOLDER
        tree["model"] = {"config": {key: config[key] for key in config if key in known | {"model_type"}}}
        tree["text"]["vocabulary"]["load"] = str(start)
    given, run = validate_params(tree), RunFolder(folder)
    run.create()
    source = open_labelled(given, run, make_vocabulary(given, run, [], ""))
    if rows is None or rows >= len(source.train.examples):
        return source
    kept = [feature for feature in source.train.features if feature.example < rows]
    train_set = LabelledSet(source.train.examples[:rows], kept, source.train.notes)
    count = sum(phase.steps for phase in source.params.training.phases)
    share = len(kept) / len(source.train.features)
    return LabelledSource(_fewer_steps(source.params, count, share), source.vocabulary, train_set, source.held_out)


def _fewer_steps(params: Params, steps: int, share: float) -> Params:
    """A single phase of `share` of the steps, its learning rate over these."""
    tree = params.model_dump(mode="json")
    [phase] = tree["training"]["phases"]
    phase["steps"] = max(2, round(steps * share))
    schedule = tree["training"]["learning_rate"]
    if isinstance(schedule, list):
        warm = max(1, round(schedule[0]["steps"] * share))
        schedule[0]["steps"], schedule[-1]["steps"] = warm, max(1, phase["steps"] - warm)
    return validate_params(tree)


def by_ours(source: LabelledSource) -> dict[str, Any]:
    run = RunFolder(source.params.run.folder)
    train(source.params, run, source)
    seconds = sum(record["interval_s"] for record in read_records(run.metrics))
    return {**figures_of(read_records(run.evaluations)[-1]), "training_s": round(seconds, 2)}


def by_trainer(source: LabelledSource, folder: Path) -> dict[str, Any]:
    params, task = source.params, labelled_task_of(source.params)
    [phase] = params.training.phases
    set_seed(params.run.seed)
    config = task.config(params, source.vocabulary)
    assert params.model.init_from is not None
    start = model_folder(params.model.init_from)
    model = HEADS[params.task.kind][type(config)].from_pretrained(start, config=config)
    schedule: Any = params.training.learning_rate
    warm_steps = schedule[0].steps if len(schedule) > 1 else 0
    settings = params.training.optimizer
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder / "trainer"),
            per_device_train_batch_size=phase.batch_size,
            max_steps=phase.steps,
            learning_rate=schedule[-1].start,
            warmup_steps=warm_steps,
            lr_scheduler_type="linear",
            weight_decay=settings.weight_decay,
            adam_epsilon=settings.eps,
            max_grad_norm=settings.max_gradient_norm or 0.0,
            seed=params.run.seed,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
            remove_unused_columns=False,
            dataloader_num_workers=0,
        ),
        train_dataset=list(source.train.features),  # pyright: ignore[reportArgumentType]
        data_collator=lambda features: collate(features, source, params.task.kind),
    )
    started_s = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - started_s
    found, _ = evaluate_labelled(
        params, model, source.held_out, choose_precision(params), sequence_length=evaluation_length(params)
    )
    return {**figures_of(found), "training_s": round(seconds, 2)}


def collate(features: Sequence[Feature], source: LabelledSource, kind: str) -> dict[str, torch.Tensor]:
    """Padded to the longest, as transformers' collators do, with labels under the names its heads have for them."""
    each = len(features[0].rows)
    width = max(feature.length for feature in features)
    ids = torch.full((len(features) * each, width), source.vocabulary.pad_id)
    types, mask = torch.zeros_like(ids), torch.zeros_like(ids)
    targets = torch.full((len(features), width), -100)
    for k, feature in enumerate(features):
        for c, (row, kinds) in enumerate(zip(feature.rows, feature.types, strict=True)):
            r = k * each + c
            ids[r, : len(row)], types[r, : len(row)] = torch.from_numpy(row), torch.from_numpy(kinds)
            mask[r, : len(row)] = 1
        targets[k, torch.from_numpy(feature.target_positions)] = torch.from_numpy(feature.target_ids)
    inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    if each > 1:
        inputs = {name: value.unflatten(0, (-1, each)) for name, value in inputs.items()}
    if kind in ("token_classification", "summarization"):
        return inputs | {"labels": targets}
    labels = torch.tensor([feature.label for feature in features])
    if kind == "question_answering":
        return inputs | {"start_positions": labels[:, 0], "end_positions": labels[:, 1]}
    return inputs | {"labels": labels.float() if labels.is_floating_point() else labels}


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in record.items() if name.startswith("eval/") and value is not None}


def summary(params: Params, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    metric = params.evaluation.metric or labelled_task_of(params).metric(params)
    result: dict[str, Any] = {"benchmark": "finetune", "task": params.task.kind, "metric": metric}
    for name, found in runs.items():
        each = [run[metric] for run in found]
        spread = statistics.stdev(each) if len(each) > 1 else 0.0
        seconds = statistics.median(run["training_s"] for run in found)
        result[name] = {"mean": round(statistics.fmean(each), 4), "deviation": round(spread, 4), "each": each}
        result[name]["training_s"] = seconds
    ours, theirs = result["ours"], result["trainer"]
    result["difference"] = round(ours["mean"] - theirs["mean"], 4)
    result["within_deviation"] = abs(result["difference"]) <= ours["deviation"] + theirs["deviation"]
    result["times_trainer"] = round(theirs["training_s"] / ours["training_s"], 2)
    if "untrained" in result:
        gain = ours["mean"] - result["untrained"]["mean"]
        result["gain_of_pretraining"] = round(-gain if is_smaller_better(metric) else gain, 4)
    return result


if __name__ == "__main__":
    main()
