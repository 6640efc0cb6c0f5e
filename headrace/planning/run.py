"""From a run's params to its plan: the shapes of its batches, its budget, its disk.

Batches of text vary; each phase is planned at its sequence length with every example as long as that, which bounds memory
and bytes of activations from above. Bytes of weights, state and gradients do not depend on it.
"""

import math
import os
import shutil
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from headrace.errors import UserError
from headrace.models.adapters import add_lora
from headrace.models.blank import fill_blanks
from headrace.models.segments import Segment, segments_of
from headrace.optim.rule import Rule
from headrace.params import Params
from headrace.planning.device import Precision, microbatch_tokens
from headrace.planning.footprint import measure
from headrace.planning.machine import ASSUMED
from headrace.planning.plan import Plan, Wish, make_plan
from headrace.planning.probe import cache_machine, cached_machine, probe
from headrace.planning.sizes import Sizes, Work
from headrace.run_folder import RunFolder, model_folder
from headrace.tasks import Task, labelled_task_of, task_of
from headrace.text.batches import Batch, Microbatch
from headrace.text.vocabulary import Extension

FREE_SHARE = 0.9  # of what is free now: the default budget
WORTH_PROBING_S = 120.0  # shorter runs are planned with an assumed machine


def plan_run(
    params: Params,
    model: PreTrainedModel,
    segments: Sequence[Segment],
    rule: Rule,
    precision: Precision,
    measure_machine: bool = False,
) -> Plan:
    """The plan of a run of this model, as built without weights. Raises UserError where it cannot fit.

    measure_machine: even where it was measured before, or the run is too short to be worth the ten seconds."""
    task, folder = task_of(params), store_folder(params)
    sizes = Sizes(
        segments,
        rule,
        cache(
            lambda examples, length: measure(
                model,
                full_microbatch(params, task, model.config, examples, length),
                precision.on_cpu,
                task.HEAD,
                masked=has_mask(params),
            )
        ),
        eager=params.training.optimizer.eager,
        device=precision.device,
    )
    works = [
        Work(f"phase {i}", phase.batch_size * rows_each(params), phase.sequence_length, max(1, phase.steps))
        for i, phase in enumerate(params.training.phases)
    ]
    device = params.device
    on_cpu = precision.device.type == "cpu"
    if device.ram is not None and on_cpu and device.placement != "ram":
        raise UserError(
            "device.ram: on a CPU, RAM is the device's memory; give device.memory alone (or device.placement = ram, which "
            "copies as to a GPU)"
        )
    plan_for = partial(
        make_plan,
        sizes,
        works,
        memory_bytes=budget_bytes(params, precision),
        disk_free_bytes=_free_disk_bytes(params),
        wish=Wish(
            placement=device.placement,
            activations=device.activations,
            microbatch_tokens=params.training.microbatch_tokens,
            most_microbatch_tokens=microbatch_tokens(params, model.config, precision),
            prefetch=device.prefetch,
            snapshots=params.training.keep,
        ),
        head=next((i for i, segment in enumerate(segments) if segment.name == task.HEAD), None),
        device=precision.device.type,
        folder=folder,
        ram_bytes=device.ram or int(FREE_SHARE * _free_host_bytes()),
    )
    machine = None if measure_machine else cached_machine(folder, rule, precision)
    if machine is None:
        plan = plan_for(machine=ASSUMED)
        if not measure_machine and plan.total_s < WORTH_PROBING_S:
            return plan
        machine = probe(folder, rule, precision)
        cache_machine(machine, folder, rule, precision)
    return plan_for(machine=machine)


def planned_model(params: Params, vocabulary_size: int | None) -> tuple[PreTrainedModel, list[Segment]]:
    """The run's model without weights, and its segments; vocabulary_size None: as large as the params ask for."""
    task = task_of(params)
    config = task.config(params, None)
    if params.model.init_from is None:
        config.vocab_size = vocabulary_size or params.text.vocabulary.size
    model = new_model(params, config, torch.device("cpu"), None)
    return model, segments_of(model)


def new_model(
    params: Params, config: PretrainedConfig, device: torch.device, extension: Extension | None
) -> PreTrainedModel:
    """The run's model without weights, its adapter put in. extension: by which its vocabulary is larger than that of the
    folder the run starts from. Raises UserError where LoRA does not fit."""
    task, lora = task_of(params), params.training.lora
    with torch.device("meta"):
        model = task.new_model(config)
        task.freeze_unused(model, params)
        if lora is not None:
            assert params.model.init_from is not None
            add_lora(model, lora, model_folder(params.model.init_from), extension)
    fill_blanks(model, device)
    return model


def store_folder(params: Params) -> Path:
    """Where a run keeps what it streams."""
    return params.device.store or params.run.folder / "store"


def rows_each(params: Params) -> int:
    """Rows of a batch that are one example."""
    return labelled_task_of(params).rows_each(params) if params.data is not None else 1


def has_mask(params: Params) -> bool:
    """Whether full microbatches have an attention mask: decoders whose windows are not packed need none."""
    return params.task.kind != "causal_lm" or params.task.isolate_documents


def full_microbatch(params: Params, task: Task, config: PretrainedConfig, examples: int, length: int) -> Any:
    """A microbatch as full as can be: every slot a token, every row masked apart, as many targets as there may be."""
    each = rows_each(params)
    examples = -(-examples // each) * each
    masked, labelled = params.task.kind == "masked_lm", params.data is not None
    most = max((phase.max_predictions or 0 for phase in params.training.phases), default=0)
    a_row = min(most or math.ceil(params.task.mask_rate * length), length) if masked else length
    pairs = params.task.examples == "sentence_pairs"
    targets = np.arange(examples * a_row)
    slots = np.zeros((examples, length), np.int64)
    microbatch = Microbatch(
        input_ids=slots,
        token_type_ids=slots,
        position_ids=slots,
        example_ids=np.ones((examples, length), np.int32),
        target_positions=targets,
        target_ids=np.zeros_like(targets),
        first_positions=np.arange(examples),
        labels=labelled_task_of(params).full_labels(params, examples)
        if labelled
        else np.zeros(examples if pairs else 0, np.int64),
        packed=masked or params.task.isolate_documents,
    )
    batch = Batch(
        [microbatch],
        num_examples=examples,
        num_targets=len(targets),
        num_pairs=examples if pairs else 0,
        sum_squared_lengths=examples * length**2,
        digest=0,
    )

    def run(model: nn.Module, run_head: Any) -> Tensor:
        return task.training_loss(model, microbatch, torch.device("cpu"), batch, run_head)[0]

    return run


def budget_bytes(params: Params, precision: Precision) -> int:
    """device.memory, or most of what is free now."""
    return params.device.memory or int(FREE_SHARE * _free_bytes(precision))


def _free_bytes(precision: Precision) -> int:
    if precision.device.type == "cuda":
        return torch.cuda.mem_get_info(precision.device)[0]
    return _free_host_bytes()


def _free_host_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        return found["MemAvailable"]
    except (OSError, KeyError, ValueError, IndexError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_disk_bytes(params: Params) -> int:
    """Free where the run keeps its state, and what it holds there already and will write over."""
    folder = store_folder(params)
    place = folder
    while not place.exists():
        place = place.parent
    own: dict[tuple[int, int], int] = {}
    run = RunFolder(params.run.folder)
    for root in (folder / "live", folder / "scratch", run.checkpoints):
        for path in root.rglob("*") if root.is_dir() else ():
            if path.is_file() and not path.is_symlink():
                status = path.stat()
                own[status.st_dev, status.st_ino] = status.st_blocks * 512
    return shutil.disk_usage(place).free + sum(own.values())
