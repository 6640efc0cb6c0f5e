"""`headrace.stream`: a model trained within the memory it is given, in a few lines.

model = headrace.stream("gpt-neox-20b", memory="8GiB", store="/nvme/run", optimizer=headrace.AdamW(lr=1e-4))
for batch in batches:
    loss = model.step(batch)          # forward, backward, exact clip, update
model.save("out")                     # links: nothing is copied
"""

import copy
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForPreTraining,
    PretrainedConfig,
    PreTrainedModel,
)

from headrace.errors import UserError
from headrace.lora_params import LoraParams
from headrace.models.adapter_names import CONFIG, base_folder
from headrace.models.adapters import adapter_config, add_lora, base_model_of, inject
from headrace.models.blank import fill_blanks
from headrace.models.build import model_config
from headrace.models.folder import open_weights
from headrace.models.initial import first_weights
from headrace.models.presets import PRESETS
from headrace.models.segments import Segment, segments_of
from headrace.params import ModelParams, parse_bytes
from headrace.planning.footprint import ModelFootprint, measure
from headrace.planning.machine import ASSUMED, Machine
from headrace.planning.plan import Plan, Wish, make_plan
from headrace.planning.sizes import Sizes, Work
from headrace.progress import say
from headrace.streaming.segment import StreamedSegment
from headrace.training.optimizers import Optimizer
from headrace.training.streamed_model import StreamedModel, build, causal_head, model_loss, next_token_loss

Loss = Callable[[nn.Module, Mapping[str, Any]], Tensor]


def stream(
    model: str | Path | nn.Module | PretrainedConfig,
    *,
    optimizer: Optimizer,
    memory: str | int | None = None,
    ram: str | int | None = None,
    store: str | Path | None = None,
    batch: tuple[int, int] | Mapping[str, Any] = (8, 512),
    placement: Literal["auto", "device", "ram", "disk"] = "auto",
    activations: Literal["auto", "keep", "spill", "recompute"] = "auto",
    microbatch: int | None = None,
    prefetch: int = 2,
    loss: Loss | None = None,
    lora: LoraParams | None = None,
    seed: int = 0,
    device: Literal["cpu", "cuda"] = "cpu",
    machine: Machine = ASSUMED,
) -> StreamedModel:
    """A model whose weights, gradients and optimizer state live where there is room.

    model: a preset's name, a Hugging Face folder (its weights are read segment by segment; what it has none for begins anew,
    and that is said), a transformers config (new weights), or a module with a list of blocks, with its weights. A model or
    folder with a LoRA adapter of peft trains the adapter alone. memory:
    what training may take, all but about 0.5 GiB for the interpreter; None = everything is resident. ram: with a GPU, host
    memory beside it; on a CPU for placement="ram" alone, which copies as to a GPU. store: folder for what does not fit.
    batch: the largest batch you will pass, (examples, tokens) or one such batch; what must fit is decided by it.
    microbatch: examples that go through the model at once; default: as many as fit. loss: (module, inputs) -> mean loss;
    default: the module's own. lora: put a new adapter on the folder's model. device: cuda is written and has never run.

    Raises UserError: unknown name, weights that are not the model's, a module without a list of blocks, or what cannot fit,
    with what would.
    """
    where = torch.device(device)
    if device == "cuda" and not torch.cuda.is_available():
        raise UserError("device = 'cuda': no CUDA device is available here")
    if ram is not None and device == "cpu" and placement != "ram":
        raise UserError("ram: on a CPU, RAM is the device's memory; give memory alone")
    module, weights = _module(model, seed, loss is not None, where, lora)
    memory_bytes = parse_bytes(memory) if memory is not None else None
    ram_bytes = parse_bytes(ram) if ram is not None else None
    segments = segments_of(module)
    plan, examples = _plan(
        module, segments, optimizer, batch, memory_bytes, Path(store) if store else None, placement, activations,
        microbatch, prefetch, loss, machine, where, ram_bytes,
    )  # fmt: skip
    if plan.needs_folder and store is None:
        raise UserError("what does not fit in `memory` needs a folder on disk: give store=FOLDER")
    made = build(
        module,
        optimizer,
        folder=Path(store) if store else None,
        placements=plan.placements,
        policies=plan.policies,
        weights=weights,
        microbatch=examples,
        seed=seed,
        pool_bytes=plan.pool_bytes,
        host_pool_bytes=plan.host_pool_bytes,
        held_gradient_bytes=plan.held_gradient_bytes,
        stage_bytes=plan.stage_bytes,
        spill_bytes=plan.spill_bytes,
        spill_host_bytes=plan.spill_host_bytes,
        tidy_above_bytes=plan.tidy_above_bytes,
        loss_of=loss or model_loss,
        device=where,
    )
    made.plan = plan
    return made


def _module(
    model: str | Path | nn.Module | PretrainedConfig,
    seed: int,
    has_loss: bool,
    device: torch.device,
    lora: LoraParams | None,
) -> tuple[nn.Module, Callable[[list[Segment], int], dict[str, Tensor]] | None]:
    """The module, without weights unless it is the user's own, and where they come from."""
    if isinstance(model, nn.Module):
        if lora is not None:
            raise UserError("lora: goes with a folder; give a module its adapter with peft, and pass that")
        return base_model_of(model), None
    folder: Path | None = None
    if isinstance(model, PretrainedConfig):
        config = copy.deepcopy(model)
    elif str(model) in PRESETS:
        config = model_config(ModelParams(preset=str(model)))  # pyright: ignore[reportArgumentType]
    elif (Path(model) / "config.json").is_file() or (Path(model) / CONFIG).is_file():
        folder = Path(model)
        config = AutoConfig.from_pretrained(base_folder(folder))
    else:
        raise UserError(
            f"{model}: neither a folder with a config.json nor one of the presets: {', '.join(PRESETS)}; "
            f"a transformers config or a module may be given, too"
        )
    config.dtype = torch.float32  # whatever the files hold: what trains is fp32
    with torch.device("meta"):
        made = class_of(config, has_loss)(config)
        if lora is not None:
            if folder is None:
                raise UserError("lora: an adapter goes on weights that are there; give their folder as the model")
            add_lora(made, lora, folder)
        elif folder is not None and (adapter := adapter_config(folder)) is not None:
            adapter.inference_mode = False
            inject(made, adapter)
    fill_blanks(made, device)
    made.train()
    if folder is None:
        return made, lambda segments, i: first_weights(made, segments, i, seed)
    held = open_weights(folder, made)
    held.fill_buffers(made)
    if held.new or held.left:
        say(held.summary() + ("; those not in its files begin anew" if held.new else ""))

    return made, lambda segments, i: first_weights(made, segments, i, seed, held)


def class_of(config: PretrainedConfig, has_loss: bool) -> Callable[[PretrainedConfig], PreTrainedModel]:
    """The class the config names, or else the one that is pretrained with its kind of model. has_loss: the user computes
    the loss, so that a model without a head will do."""
    for name in config.architectures or ():
        named = getattr(transformers, name, None)
        if named is not None and (has_loss or AutoModel._model_mapping.get(type(config), None) is not named):
            return named._from_config
    if type(config) in AutoModelForCausalLM._model_mapping and config.model_type != "bert":
        return AutoModelForCausalLM.from_config
    return AutoModelForPreTraining.from_config


def _plan(
    module: nn.Module,
    segments: list[Segment],
    optimizer: Optimizer,
    batch: tuple[int, int] | Mapping[str, Any],
    memory_bytes: int | None,
    store: Path | None,
    placement: Literal["auto", "device", "ram", "disk"],
    activations: Literal["auto", "keep", "spill", "recompute"],
    microbatch: int | None,
    prefetch: int,
    loss: Loss | None,
    machine: Machine,
    device: torch.device,
    ram_bytes: int | None,
) -> tuple[Plan, int]:
    """The plan, and how many examples go through the model at once."""
    if isinstance(batch, Mapping):
        example = {name: value[:1] if isinstance(value, Tensor) else value for name, value in batch.items()}
        first = next(value for value in batch.values() if isinstance(value, Tensor))
        examples, length = len(first), first.shape[1] if first.ndim > 1 else 1
    else:
        examples, length = batch
        ids = torch.zeros(1, length, dtype=torch.int64)
        example = {"input_ids": ids, "labels": ids}
        if getattr(getattr(module, "config", None), "model_type", "") == "bert":
            example["next_sentence_label"] = torch.zeros(1, dtype=torch.int64)
    head = causal_head(module, segments) if loss is None else None

    @cache
    def footprint(count: int, _: int) -> ModelFootprint:
        inputs = {
            name: value.expand(count, *value.shape[1:]).contiguous() if isinstance(value, Tensor) else value
            for name, value in example.items()
        }

        def run(model: nn.Module, run_head: Callable[..., Any]) -> Tensor:
            return (loss or model_loss)(model, inputs) if head is None else next_token_loss(model, inputs, run_head)

        try:
            return measure(
                module,
                run,
                nullcontext,
                "lm_head" if head is not None else None,
                masked=head is None or bool(example.keys() - {"input_ids", "labels"}),
            )
        except AttributeError as error:
            if StreamedSegment.__name__ not in str(error):
                raise
            raise UserError(
                f"{type(module).__name__}: its forward reaches into a segment from outside ({error}), where the weights are "
                f"not there; let it call the module, and tie weights by assigning the parameter. Its segments: "
                f"{', '.join(path for segment in segments for path in segment.modules)}"
            ) from None
        except RuntimeError as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise UserError(
                f"{type(module).__name__}: what a microbatch takes could not be measured: {reason} Give batch = one like those "
                f"you will pass; models whose operations depend on values (mixtures of experts) cannot be planned"
            ) from error

    sizes = Sizes(segments, optimizer.rule, footprint, eager=optimizer.eager, device=device)
    free = shutil.disk_usage(_existing(store)).free if store is not None else None
    plan = make_plan(
        sizes,
        [Work("batch", examples, length)],
        memory_bytes=memory_bytes,
        disk_free_bytes=free,
        machine=machine,
        wish=Wish(
            placement=placement,
            activations=activations,
            microbatch_tokens=microbatch * length if microbatch else None,
            prefetch=prefetch,
        ),
        head=head,
        device=device.type,
        ram_bytes=ram_bytes,
    )
    return plan, max(1, min(examples, plan.microbatch_tokens // length))


def _existing(folder: Path) -> Path:
    return next(path for path in [folder.absolute(), *folder.absolute().parents] if path.exists())
