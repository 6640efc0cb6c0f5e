"""The flags of run.py, of all generations, and ours.

run.py --mode train --params P.yaml --model_dir D --cs_ip X      R_1.6, R_1.7
run.py CSX --mode train --params P.yaml --model_dir D ...        1.8 to 2.3
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headrace.errors import UserError

MODES = ("train", "eval", "eval_all", "train_and_eval", "predict")
DEVICES = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "csx": "auto"}

CLUSTER = "there is no cluster to set up here"
# Flag -> (values it takes: 0, 1 or "*"; why it has no effect).
WITHOUT_EFFECT: dict[str, tuple[int | str, str]] = {
    "--cs_ip": (1, "training runs on this machine"),
    "--multireplica": (0, "there is one device"),
    **{
        f"--{name}": (1, CLUSTER)
        for name in (
            "num_csx", "num_wgt_servers", "num_act_servers", "num_workers_per_csx", "num_replicas", "num_epochs_per_job",
            "credentials_path", "mgmt_address", "mgmt_namespace", "debug_args_path", "fabric_config_file", "dist_addr",
            "dist_backend", "init_method", "job_time_sec", "job_priority", "execution_strategy", "op_profiler_config",
        )
    },
    **{f"--{name}": ("*", CLUSTER) for name in ("mount_dirs", "python_paths", "job_labels", "ini")},
    **{f"--{name}": (0, CLUSTER) for name in ("appliance", "disable_version_check", "use_cstorch_optimizer_step")},
    "--compile_dir": (1, "nothing is compiled"),
    "--logging": (1, "what is printed is always the same"),
    "--wsc_log_level": (1, "what is printed is always the same"),
    "--disable_strict_checkpoint_loading": (0, "weights that a checkpoint lacks begin anew, and that is said"),
}  # fmt: skip
_SHORT = {"--cs_ip": ("-cs",), "--compile_dir": ("-c",)}


@dataclass(frozen=True)
class Request:
    """What is asked for. None: the params file says it, or nothing does."""

    params: Path
    mode: str | None
    model_dir: Path | None
    max_steps: int | None
    steps: int | None
    eval_steps: int | None
    checkpoint_path: Path | None
    is_pretrained_checkpoint: bool
    load_checkpoint_states: str | None
    check_only: bool
    device: str | None
    """As device.kind of our params."""
    overrides: tuple[str, ...]
    without_effect: tuple[str, ...]
    """A line for each flag that was given and means nothing here."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; --help lists the flags")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} should be 1 or more")
    return value


def parser() -> argparse.ArgumentParser:
    made = _Parser(
        prog="headrace-run",
        description="Train and evaluate from a params file of the Cerebras Model Zoo and its records, on one device.",
        allow_abbrev=False,
    )
    add = made.add_argument
    add("words", nargs="*", metavar="{CPU,GPU,CSX} | section.key=value",
        help="the device (CSX: the GPU if there is one), and params to change, with the file's own keys")  # fmt: skip
    add("-p", "--params", type=Path, required=True, metavar="P.yaml", help="the params file")
    add("-m", "--mode", choices=MODES, help="what to do; default: runconfig.mode")
    add(
        "-o", "--model_dir", type=Path, metavar="D", help="where checkpoints and records go; default: the params file's"
    )
    add("--max_steps", type=_positive, metavar="N", help="train until step N; replaces runconfig.max_steps")
    add(
        "--steps",
        type=_positive,
        metavar="N",
        help="train N more steps from where the run stands, at most to max_steps",
    )
    add("--eval_steps", type=int, metavar="N", help="batches to evaluate on; 0: all")
    add("--checkpoint_path", type=Path, metavar="C",
        help="train: what a new model_dir starts from; eval: what is evaluated; default: the newest in model_dir")  # fmt: skip
    add("--is_pretrained_checkpoint", action="store_true", help="take the weights alone from C and begin at step 0")
    add(
        "--load_checkpoint_states",
        metavar="S",
        help="2.x: what of C to begin with: model, and optimizer, global_step,lr_scheduler, dataloader, grad_scaler",
    )
    add("--validate_only", action="store_true", help="check params, records and model, print the plan, and stop")
    add("--compile_only", action="store_true", help="the same")
    add("--device", metavar="{cpu,gpu}", help="default: the params file's, else the GPU if there is one")
    add("-cpu", "--cpu", action="store_true", help="as --device cpu")
    ignored = made.add_argument_group("accepted, without effect here")
    for flag, (count, why) in WITHOUT_EFFECT.items():
        names = (*_SHORT.get(flag, ()), flag)
        if count == 0:
            ignored.add_argument(*names, action="store_true", help=why)
        else:
            ignored.add_argument(*names, nargs=None if count == 1 else count, metavar="X", help=why)
    return made


def parse(arguments: Sequence[str]) -> Request:
    """Raises UserError naming the flag, its value and what is allowed."""
    given = parser().parse_intermixed_args(list(arguments))
    words = list(given.words)
    device = given.device or ("cpu" if given.cpu else None)
    if words and "=" not in words[0]:
        word = words.pop(0)
        if word not in ("CPU", "GPU", "CSX"):
            raise UserError(f"{word!r}: should be CPU, GPU or CSX, or a change like model.num_hidden_layers=2")
        device = device or word
    for word in words:
        if "=" not in word:
            raise UserError(f"{word!r}: should look like section.key=value, e.g. model.num_hidden_layers=2")
    kind = device.strip("/").split(":")[0].lower() if device is not None else None
    if kind is not None and kind not in DEVICES:
        raise UserError(f"--device = {device!r}: should be cpu or gpu")
    if given.eval_steps is not None and given.eval_steps < 0:
        raise UserError(f"--eval_steps = {given.eval_steps}: should be 0 (all) or more")
    return Request(
        params=given.params,
        mode=given.mode,
        model_dir=given.model_dir,
        max_steps=given.max_steps,
        steps=given.steps,
        eval_steps=given.eval_steps,
        checkpoint_path=given.checkpoint_path,
        is_pretrained_checkpoint=given.is_pretrained_checkpoint,
        load_checkpoint_states=given.load_checkpoint_states,
        check_only=given.validate_only or given.compile_only,
        device=DEVICES[kind] if kind is not None else None,
        overrides=tuple(words),
        without_effect=tuple(
            f"{flag}: no effect: {why}"
            for flag, (_, why) in WITHOUT_EFFECT.items()
            if getattr(given, flag.removeprefix("--")) not in (None, False)
        ),
    )
