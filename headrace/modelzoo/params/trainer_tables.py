"""Keys that files in the trainer style have of their own; the rest is the PyTorch tables'."""

from headrace.modelzoo.params.keys import Key, idle, only, use
from headrace.modelzoo.params.run_tables import _CLIP_AND_SCALE, CHECKS, CLUSTER, LOGS, PT_OPTIMIZER

_OUTSIDE = {
    "optimizer_type", "learning_rate", "disable_lr_steps_reset", "grad_accum_steps", "log_summaries", "log_grads", "log_hists",
    "ws_summary", *(key.name for key in _CLIP_AND_SCALE),
}  # fmt: skip

OPTIMIZER: tuple[Key, ...] = (
    *(key for key in PT_OPTIMIZER if key.name not in _OUTSIDE),
    use("learning_rate", "float", None, "training.learning_rate where there are no schedulers", "lr"),
    only("params", "any", None, "one group of parameters"),
)

PRECISION: tuple[Key, ...] = (
    use("enabled", "bool", True, "device.precision: fp32 where false, else auto"),
    use("fp16_type", "text", "bfloat16", "device.precision", allowed=("float16", "bfloat16", "cbfloat16")),
    *_CLIP_AND_SCALE,
    idle("precision_opt_level", "a setting of the Cerebras system's arithmetic; device.precision decides here"),
    idle("log_loss_scale", "metrics.jsonl always holds it"),
)

LOOP: tuple[Key, ...] = (
    use("max_steps", "int", None, "training.phases.0.steps"),
    use("num_steps", "int", None, "training.phases.0.steps"),
    use("num_epochs", "int", None, "training.phases.0.steps = num_epochs x steps_per_epoch"),
    use("steps_per_epoch", "int", None, "see num_epochs"),
    use("eval_frequency", "int|float", None, "evaluation.every"),
    use("eval_steps", "int", None, "evaluation.examples = eval_steps x batch_size of val_dataloader"),
    use("grad_accum_steps", "int", 1, "a factor of training.phases.0.batch_size"),
)

CHECKPOINT: tuple[Key, ...] = (
    use("checkpoint_steps", "int", 0, "training.checkpoint_every; 0: at the end only", "steps"),
    use(
        "autoload_last_checkpoint",
        "bool",
        True,
        "run.autoload_last_checkpoint; false: begin anew, an earlier run is put aside",
    ),
    use("save_initial_checkpoint", "bool", False, "run.save_initial_checkpoint: one before the first step, too"),
    idle("disable_strict_checkpoint_loading", "weights that a checkpoint lacks begin anew, and that is said"),
    idle("disable_strict_loading", "weights that a checkpoint lacks begin anew, and that is said"),
    idle("checkpoint_root", "checkpoints lie in the run folder"),
    idle("checkpoint_name", "checkpoints are named checkpoints/step-N"),
    idle("strict_version", CHECKS),
)

LOGGING: tuple[Key, ...] = (
    use("log_steps", "int", None, "training.log_every"),
    idle("log_level", LOGS),
    idle("wsc_log_level", LOGS),
    idle("enable_act_frequency", LOGS),
)

BACKEND: tuple[Key, ...] = (
    use("target_device", "text", "CSX", "device.kind: cpu or cuda; CSX: auto", "backend_type", allowed=("CPU", "GPU", "CSX")),
    use("validate_only", "bool", False, "run.check_only"),
    use("compile_only", "bool", False, "run.check_only"),
    *(idle(name, CLUSTER) for name in (
        "cluster_config", "compile_dir", "artifact_dir", "retrace_every_iteration", "mgmt_address", "num_csx",
        "enable_distributed", "main_process_id", "dist_backend", "init_method", "sync_batchnorm", "use_cs_grad_accum",
    )),
)  # fmt: skip

INIT: tuple[Key, ...] = (
    use("backend", "any", None, "see trainer.init.backend"),
    use("device", "text", None, "device.kind", allowed=("CPU", "GPU", "CSX")),
    use("model_dir", "text", "./model_dir", "run.folder"),
    use("seed", "int", None, "run.seed; default 1"),
    use("model", "any", None, "see trainer.init.model"),
    use("optimizer", "any", None, "see trainer.init.optimizer"),
    use("schedulers", "any", None, "training.learning_rate", "scheduler"),
    use("precision", "any", None, "see trainer.init.precision"),
    use("sparsity", "any", None, "see sparsity"),
    use("loop", "any", None, "see trainer.init.loop"),
    use("checkpoint", "any", None, "see trainer.init.checkpoint"),
    use("logging", "any", None, "see trainer.init.logging"),
    use("callbacks", "any", None, "by name; see callbacks"),
    use("loggers", "any", None, "our records and TensorBoard are always written"),
    idle("autorestart", "the same command goes on after any stop"),
)

FIT: tuple[Key, ...] = (
    use("train_dataloader", "any", None, "train_input"),
    use("val_dataloader", "any", None, "eval_input"),
    use("ckpt_path", "text", None, "run.checkpoint_path"),
)
VALIDATE: tuple[Key, ...] = (
    use("val_dataloader", "any", None, "eval_input where fit has none"),
    use("ckpt_path", "text", None, "the checkpoint that eval takes"),
)
VALIDATE_ALL: tuple[Key, ...] = (
    use("val_dataloaders", "any", None, "eval_input where fit and validate have none"),
    use("ckpt_paths", "paths", None, "the checkpoints that eval_all takes; default: all of model_dir"),
)

TRAINER: tuple[Key, ...] = (
    use("init", "any", None, "see trainer.init"),
    use("fit", "any", None, "see trainer.fit"),
    use("validate", "any", None, "see trainer.validate"),
    use("validate_all", "any", None, "see trainer.validate_all"),
)

_METRICS = "metrics.jsonl always holds such figures"
CALLBACKS: dict[str, str] = {
    "ComputeNorm": _METRICS,
    "CheckLoss": CHECKS,
    "ModelEvalMetrics": _METRICS,
    "RateProfiler": _METRICS,
    "FlopUtilization": _METRICS,
    "SavePerformanceData": _METRICS,
    "LogOptimizerParamGroup": _METRICS,
    "LogInputSummaries": LOGS,
    "LogSparsity": LOGS,
    "TensorSummaries": LOGS,
    "CountParams": "headrace plan says it",
    "OpProfiler": CLUSTER,
    "ModelZooParamsMetadata": CHECKS,
    "ScopedTrainFlags": CLUSTER,
    "ScopedValidateFlags": CLUSTER,
    "GlobalFlags": CLUSTER,
    "DebugArgsPath": CLUSTER,
    "KeepNCheckpoints": "training.keep",
    "LoadCheckpointStates": "run.load_checkpoint_states",
}
"""Callbacks that change no number of the training, and why they have no effect; HONOURED ones have one."""
HONOURED = ("KeepNCheckpoints", "LoadCheckpointStates")
