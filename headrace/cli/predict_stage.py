"""`headrace predict`: rows in, the same rows with what the model says of them out, as they come.

OUTPUT.partial holds whole lines of what is done; an interrupted command goes on behind them, and renames it at the end.
"""

import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from headrace.data_params import DataParams
from headrace.errors import MissingExtraError, UserError
from headrace.evaluation.generate import open_writer
from headrace.evaluation.labelled import outputs_of
from headrace.evaluation.open_checkpoint import open_to_evaluate
from headrace.labelled.row import Row
from headrace.labelled.rows import read_rows
from headrace.params import Params, load_params
from headrace.planning.device import choose_precision
from headrace.progress import say
from headrace.run_folder import RunFolder, model_folder
from headrace.tasks import labelled_task_of
from headrace.tasks.completion import figures_of_written
from headrace.tasks.labelled import data_of
from headrace.text.files import expand_paths
from headrace.text.source import files_of
from headrace.text.tokens import write_atomically
from headrace.text.vocabulary import open_vocabulary
from headrace.training.labelled_rows import encode, evaluation_length

ROWS_AT_ONCE = 1024


def predict_stage(params: Params, inputs: list[str], output: Path) -> None:
    """Predict every row of the inputs with the best checkpoint of the run. Raises UserError naming file and line."""
    if params.data is None:
        raise UserError(
            f"headrace predict: task.kind = {params.task.kind!r} learns from text; `headrace fill` and `headrace generate` show "
            f"what such a model predicts"
        )
    run = RunFolder(params.run.folder)
    folder = model_folder(run.root)
    params = _as_trained(params, run)
    data, writes = data_of(params), params.task.kind == "causal_lm"
    partial, state = output.with_name(output.name + ".partial"), output.with_name(output.name + ".partial.json")
    done = _done(partial, state, {"model": str(folder), "inputs": files_of(expand_paths(inputs))})
    if done:
        say(f"{partial}: holds {done:,} predictions; going on behind them")
    count = done
    rows = islice(read_rows(inputs, _format(inputs, data), data.encoding), done, None)
    with partial.open("ab") as file:
        for chosen, found in _completed(params, folder, rows) if writes else _predicted(params, run, folder, rows):
            lines = [
                json.dumps({**row.fields, "prediction": each}, ensure_ascii=False) + "\n"
                for row, each in zip(chosen, found, strict=True)
            ]
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
            count += len(chosen)
    partial.replace(output)
    state.unlink()
    say(f"{output}: {count:,} predictions of {folder}")
    if writes:
        _say_how_alike(output, data.fields.completion, params.text.language)


def _predicted(
    params: Params, run: RunFolder, folder: Path, rows: Iterator[Row]
) -> Iterator[tuple[list[Row], list[dict[str, Any]]]]:
    """Rows, some at a time, with what the model says of them."""
    task, length = labelled_task_of(params), evaluation_length(params)
    vocabulary, precision = open_vocabulary(run.tokenizer), choose_precision(params)
    opened, room = open_to_evaluate(params, run, folder, precision, length)
    try:
        for chosen in _chunks(rows, ROWS_AT_ONCE):
            examples = [task.parse(row, params, need_label=False) for row in chosen]
            asked = encode(params, vocabulary, examples, length)
            outputs = outputs_of(params, opened.model, asked.features, precision, length, opened.streaming, room)
            yield chosen, task.predictions(outputs, asked.features, examples, params)
    finally:
        opened.close()


def _completed(params: Params, folder: Path, rows: Iterator[Row]) -> Iterator[tuple[list[Row], list[dict[str, Any]]]]:
    """Rows, one at a time, with the completion the model writes: always the likeliest token."""
    task, length = labelled_task_of(params), evaluation_length(params)
    writer = open_writer(folder, params.device.memory, length)
    try:
        for [row] in _chunks(rows, 1):
            prompt = task.parse(row, params, need_label=False).prompt
            yield [row], [{"completion": "".join(writer.write(prompt, length))}]
    finally:
        writer.close()


def _say_how_alike(output: Path, field: str, language: str) -> None:
    """How like the completions that rows came with the written ones are."""
    with output.open(encoding="utf-8") as file:
        rows = (json.loads(line) for line in file)
        known = [(row[field], row["prediction"]["completion"]) for row in rows if isinstance(row.get(field), str)]
    if not known:
        return
    try:
        found = figures_of_written(known, language)
    except MissingExtraError as error:
        say(str(error))
        return
    say(f"Beside the {len(known):,} known completions: " + ", ".join(f"{k} = {v:.3f}" for k, v in found.items()))


def _format(inputs: list[str], data: DataParams) -> str:
    """data.format is that of the training rows; files by the name of JSON Lines are that."""
    named = all(file.name.removesuffix(".gz").endswith(".jsonl") for file in expand_paths(inputs))
    return "jsonl" if named else data.format


def _as_trained(params: Params, run: RunFolder) -> Params:
    """With the labels that training found."""
    if not run.params.is_file():
        raise UserError(f"{run.root}: holds no params.yaml of a run; run `headrace run` first")
    trained = load_params(run.params)
    if trained.data is None or trained.task != params.task:
        raise UserError(
            f"{run.root}: was trained with another task: {trained.task.kind!r}, and the params say {params.task.kind!r}"
        )
    data = data_of(params).model_copy(update={"labels": trained.data.labels})
    return params.model_copy(update={"data": data, "training": trained.training})


def _done(partial: Path, state: Path, source: dict[str, Any]) -> int:
    """Whole lines that an earlier command wrote for the same model and inputs; the rest is cut off."""
    wanted = json.dumps(source, indent=1)
    output = partial.with_suffix("")
    try:
        if partial.is_file() and state.is_file() and state.read_text("utf-8") == wanted:
            count = size = 0
            with partial.open("rb+") as file:
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    count, size = count + 1, size + len(line)
                file.truncate(size)
            return count
        partial.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(b"")
        write_atomically(state, wanted.encode())
    except OSError as error:
        raise UserError(f"--output = {output}: cannot be written to ({error.strerror})") from None
    return 0


def _chunks(rows: Iterator[Row], size: int) -> Iterator[list[Row]]:
    while chosen := list(islice(rows, size)):
        yield chosen
