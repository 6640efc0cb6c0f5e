"""A checkpoint opened to be evaluated, within the memory of its run."""

import json
from pathlib import Path

from transformers import AutoConfig

from headrace.evaluation.folder_model import FolderModel, blank_model, open_model, place
from headrace.evaluation.room import Room, footprints, place_and_room
from headrace.models.adapters import adapter_config
from headrace.models.segments import segments_of
from headrace.params import Params
from headrace.planning.device import Precision, microbatch_tokens
from headrace.planning.run import budget_bytes
from headrace.run_folder import RunFolder
from headrace.tasks import task_of


def open_to_evaluate(
    params: Params, run: RunFolder, checkpoint: Path, precision: Precision, length: int
) -> tuple[FolderModel, Room]:
    """A checkpoint's model within the memory of the run, in microbatches of the size that training chose."""
    task = task_of(params)
    config = AutoConfig.from_pretrained(checkpoint)
    adapter = adapter_config(checkpoint)
    model = blank_model(lambda: task.new_model(config), precision.device, adapter)
    tokens_at_once = microbatch_tokens(params, config, precision)
    if not params.training.microbatch_tokens and run.plan.is_file():
        tokens_at_once = json.loads(run.plan.read_text("utf-8"))["microbatch_tokens"]
    segments = segments_of(model)
    placing, room = place(segments, None), Room(tokens_at_once, 1)
    if params.device.placement in ("auto", "disk"):
        placing, room = place_and_room(
            segments,
            budget_bytes(params, precision),
            tokens_at_once,
            footprints(params, config, precision, length, adapter),
            length,
            all_fetched=params.device.placement == "disk",
        )
    opened = open_model(
        checkpoint,
        model,
        placing,
        precision.device,
        run_by_task=[task.HEAD] if task.HEAD else [],
        autocast=precision.autocast,
        memory_bytes=params.device.memory,
    )
    return opened, room
