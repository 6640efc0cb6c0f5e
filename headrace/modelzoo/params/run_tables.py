"""Keys of the sections beside the model's: inputs, optimizer, schedules, run, and what trainer files have of their own."""

from headrace.modelzoo.params.keys import REQUIRED, Key, idle, only, use

CLUSTER = "describes the Cerebras cluster; one device computes here"
SHARDS = "the files are read in order by training.input_workers processes"
LOGS = "asks for logs of the tool; metrics.jsonl, TensorBoard and report.html hold ours"
SEED = "run.seed decides all draws, this input's too"
CHECKS = "always so here"

_INPUT: tuple[Key, ...] = (
    use("data_processor", "text", None, "train_input.data_processor: how the records are read"),
    use("data_dir", "paths", None, "text.input, of fine-tuning data.train and data.evaluation; and train_input.data_dir"),
    use("vocab_file", "text", None, "text.vocabulary.load, and the vocabulary's size"),
    use("vocab_size", "int", None, "the vocabulary's size where model.vocab_size is not given"),
    use("max_sequence_length", "int", None, "training.phases.0.sequence_length; default: model.max_position_embeddings"),
    use("max_predictions_per_seq", "int", None, "training.phases.0.max_predictions"),
    use("batch_size", "int", None, "training.phases.0.batch_size"),
    use("shuffle", "bool", None, "train_input.shuffle; default: true for training, false for evaluation"),
    use("shuffle_seed", "int", None, "train_input.shuffle_seed"),
    use("repeat", "bool", None, "train_input.repeat; default: true for training, false for evaluation"),
    use("buckets", "int|ints", None, "training.phases.0.buckets"),
    use("do_lower", "bool", False, "text.lowercase; default of Sst2DataProcessor and MnliDataProcessor: true"),
    use("mask_whole_word", "bool", False, "task.whole_words"),
    idle("whole_word_masking", "no code of the tool reads it (it reads mask_whole_word): tokens are masked one by one; so do we"),
    use("masked_lm_prob", "float", 0.15, "task.mask_rate"),
    use("label_vocab_file", "text", None, "data.labels, in the order of its numbers"),
    use("max_cls_tokens", "int", None, "train_input.max_cls_tokens"),
    use("data_file", "text", None, "train_input.data_dir, one file"),
    use("add_special_tokens", "bool", None, "train_input.add_special_tokens"),
    use("drop_last", "bool", True, "train_input.drop_last"),
    idle("shuffle_buffer", "examples are shuffled over all of the data, not within a buffer"),
    idle("mixed_precision", "the model's mixed_precision decides"),
    idle("num_workers", SHARDS),
)  # fmt: skip

TF_INPUT: tuple[Key, ...] = (
    *_INPUT,
    use("scale_mlm_weights", "bool", True, "task.loss_per: target where true, else example"),
    idle("use_multiple_workers", SHARDS),
    idle("n_parallel_reads", SHARDS),
    idle("sort_within_batch", "the order within a batch changes no number; rows are sorted by length anyway"),
    idle("input_pad_id", "padding never counts here"),
    idle("segment_pad_id", "padding never counts here"),
    idle("mlm_pad_id", "padding never counts here"),
    idle("disable_eval_metrics", "evaluation always computes the metrics"),
    idle("skip_steps", "a resumed run goes on at the example it stopped at"),
)

PT_INPUT: tuple[Key, ...] = (
    *_INPUT,
    use("dynamic_mlm_scale", "bool", False, "task.loss_per: target where true, else example; mlm_loss_weight has no effect then"),
    use("is_training", "bool", None, "train_input.is_training"),
    idle("use_multiple_workers", SHARDS),
    idle("prefetch_factor", SHARDS),
    idle("persistent_workers", SHARDS),
    idle("micro_batch_size", "splits a batch to fit the system's memory; that is automatic here, with the same numbers"),
    idle("gather_mlm_labels", "the output layer always runs on predicted positions only"),
    idle("use_worker_cache", CLUSTER),
    idle("use_vsl", "variable sequence lengths only skip padding; it never counts here"),
    only("exclude_from_masking", "any", None, "special tokens are never masked; nothing else is excluded",
         ["[CLS]", "[SEP]", "[PAD]", "[MASK]"], ["[CLS]", "[SEP]"], ["[CLS]", "[SEP]", "[PAD]"]),
    only("oov_token", "text", "[UNK]", "the vocabulary's special tokens are BERT's"),
    only("mask_token", "text", "[MASK]", "the vocabulary's special tokens are BERT's"),
    only("document_separator_token", "text", "[SEP]", "the vocabulary's special tokens are BERT's"),
    idle("labels_pad_id", "padding never counts here"),
    idle("input_pad_id", "padding never counts here"),
    idle("attn_mask_pad_id", "padding never counts here"),
    idle("segment_pad_id", "padding never counts here"),
    idle("attn_mask_pad_id", "padding never counts here"),
    idle("num_samples", "only the synthetic processors read it"),
)  # fmt: skip

_CLIP_AND_SCALE: tuple[Key, ...] = (
    use("max_gradient_norm", "float", None, "training.optimizer.max_gradient_norm; 0 or none: no clipping"),
    use("max_gradient_value", "float", None, "training.optimizer.max_gradient_value; not beside max_gradient_norm"),
    use("loss_scaling_factor", "float|text", 1.0, "training.loss_scale, in effect where device.precision is fp16"),
    use("initial_loss_scale", "float", 2.0**15, "training.loss_scale.initial"),
    use("steps_per_increase", "int", 2000, "training.loss_scale.growth_steps"),
    use("min_loss_scale", "float", 2.0**-14, "training.loss_scale.min"),
    use("max_loss_scale", "float", 2.0**15, "training.loss_scale.max"),
    idle("overflow_tolerance", "the scale is halved at each overflow, and the step is skipped"),
)

_OPTIMIZER: tuple[Key, ...] = (
    use("optimizer_type", "text", REQUIRED, "training.optimizer.kind: adam and adamw, sgd and momentum, adafactor"),
    use("learning_rate", "any", REQUIRED, "training.learning_rate"),
    use("disable_lr_steps_reset", "bool", None, "training.schedule_clock: global_step where true, else in_sequence"),
    use("momentum", "float", None, "training.optimizer.momentum"),
    use("exclude_from_weight_decay", "any", None, "training.optimizer.no_decay; default: biases and norms"),
    *_CLIP_AND_SCALE,
    use("grad_accum_steps", "int", 1, "a factor of training.phases.0.batch_size"),
    idle("log_summaries", LOGS),
    idle("log_grads", LOGS),
    idle("log_hists", LOGS),
    idle("ws_summary", LOGS),
)

TF_OPTIMIZER: tuple[Key, ...] = (
    *_OPTIMIZER,
    use("beta1", "float", 0.9, "training.optimizer.betas", "beta_1"),
    use("beta2", "float", 0.999, "training.optimizer.betas", "beta_2"),
    use("epsilon", "float", None, "training.optimizer.eps; default: 1e-5 with mixed_precision, else 1e-8", "eps"),
    use("weight_decay_rate", "float", 0.0, "training.optimizer.weight_decay; adamw only", "weight_decay"),
    use("use_bias_correction", "bool", False, "training.optimizer.bias_correction; adam always has it", "correct_bias"),
    only("rmsprop_decay", "float", None, "rmsprop is not available; use adamw or sgd"),
    only("rmsprop_momentum", "float", None, "rmsprop is not available; use adamw or sgd"),
)

PT_OPTIMIZER: tuple[Key, ...] = (
    *_OPTIMIZER,
    use("beta1", "float", 0.9, "training.optimizer.betas"),
    use("beta2", "float", 0.999, "training.optimizer.betas"),
    use("betas", "floats", None, "training.optimizer.betas"),
    use("eps", "float", 1e-6, "training.optimizer.eps", "epsilon"),
    use("weight_decay", "float", 0.0, "training.optimizer.weight_decay", "weight_decay_rate"),
    use(
        "correct_bias",
        "bool",
        None,
        "training.optimizer.bias_correction; default: false in 1.x, true in 2.x",
        "use_bias_correction",
    ),
    use("clip_threshold", "float", 1.0, "training.optimizer.clip_threshold; adafactor"),
    only("amsgrad", "bool", False, "AMSGrad is not available"),
    only("maximize", "bool", False, "losses are minimised"),
    only("nesterov", "bool", False, "Nesterov momentum is not available"),
    only("use_nesterov", "bool", False, "Nesterov momentum is not available"),
    only("dampening", "float", 0.0, "momentum is not damped"),
    only("scale_parameter", "bool", False, "the learning rate is the schedule's"),
    only("relative_step", "bool", False, "the learning rate is the schedule's"),
    only("warmup_init", "bool", False, "the learning rate is the schedule's"),
)

SCHEDULE: tuple[Key, ...] = (
    use("scheduler", "text", REQUIRED, "kind of the learning rate"),
    use("learning_rate", "float", None, "value (constant)"),
    use("initial_learning_rate", "float", None, "start", "base_lr"),
    use("end_learning_rate", "float", None, "end"),
    use("steps", "int", None, "steps"),
    use("total_iters", "int", None, "steps (2.x)"),
    use("decay_steps", "int", None, "steps (Cosine), decay_steps (Exponential)"),
    use("alpha", "float", None, "end = start x alpha (Cosine of TensorFlow)"),
    use("power", "float", 1.0, "power (Polynomial)"),
    use("cycle", "bool", False, "cycle (Polynomial)"),
    use("decay_rate", "float", None, "decay_rate (Exponential)", "gamma"),
    use("staircase", "bool", False, "staircase (Exponential)"),
    use("boundaries", "ints", None, "boundaries (PiecewiseConstant)", "milestones"),
    use("values", "floats", None, "values (PiecewiseConstant)", "learning_rates"),
)

_RUN: tuple[Key, ...] = (
    use("max_steps", "int", None, "training.phases.0.steps"),
    use("num_steps", "int", None, "training.phases.0.steps"),
    use("num_epochs", "int", None, "training.phases.0.steps = num_epochs x steps_per_epoch"),
    use("steps_per_epoch", "int", None, "see num_epochs"),
    use("model_dir", "text", "./model_dir", "run.folder"),
    use("mode", "text", None, "run.mode: what --mode asks for"),
    use("eval_steps", "int", None, "evaluation.examples = eval_steps x eval batch_size; 0 or none: all"),
    use("eval_frequency", "int|float", None, "evaluation.every"),
    use("checkpoint_path", "text", None, "run.checkpoint_path"),
    use("is_pretrained_checkpoint", "bool", False, "run.is_pretrained_checkpoint: weights only, from step 0"),
    use("validate_only", "bool", False, "run.check_only"),
    use("compile_only", "bool", False, "run.check_only"),
    use("grad_accum_steps", "int", 1, "a factor of training.phases.0.batch_size"),
    idle("enable_distributed", CLUSTER),
    idle("multireplica", CLUSTER),
    idle("num_wgt_servers", CLUSTER),
    idle(
        "use_cs_grad_accum", "splits a batch to fit the system's memory; that is automatic here, with the same numbers"
    ),
    idle("precision_opt_level", "a setting of the Cerebras system's arithmetic; device.precision decides here"),
    idle("log_step_count_steps", "training.log_every comes from save_summary_steps or log_steps"),
)

TF_RUN: tuple[Key, ...] = (
    *_RUN,
    use("save_summary_steps", "int", 100, "training.log_every"),
    use("save_checkpoints_steps", "int", 1000, "training.checkpoint_every; 0: at the end only"),
    use("keep_checkpoint_max", "int", 5, "training.keep; 0: all of them"),
    use("tf_random_seed", "int", None, "run.seed; default 1"),
    use("predict_steps", "int", None, "run.predict_steps: records to predict on; default: all (1 in the tool)"),
    idle("cs_ip", CLUSTER),
    idle("multiple_workers", CLUSTER),
    idle("throttle_secs", "evaluations are not held back"),
    idle("disable_standard_logs", LOGS),
    idle("disable_input_pipeline_ckpt", "a checkpoint always holds the place in the input"),
    idle("enable_gpu_optimizations", "chosen automatically"),
    idle("use_appliance_data", CLUSTER),
    idle("ir_mode", CLUSTER),
)

PT_RUN: tuple[Key, ...] = (
    *_RUN,
    use("log_steps", "int", None, "training.log_every"),
    use("checkpoint_steps", "int", 0, "training.checkpoint_every; 0: at the end only", "save_checkpoints_steps"),
    use("keep_checkpoint_max", "int", 0, "training.keep; 0: all of them", "max_checkpoints"),
    use("seed", "int", None, "run.seed; default 1"),
    use("autoload_last_checkpoint", "bool", True, "run.autoload_last_checkpoint; false: begin anew, an earlier run is put aside"),
    use("save_initial_checkpoint", "bool", False, "run.save_initial_checkpoint: one before the first step, too"),
    use("load_checkpoint_states", "text", None, "run.load_checkpoint_states: what of a checkpoint a run begins with"),
    use("target_device", "text", None, "device.kind: cpu or cuda; CSX: auto", allowed=("CPU", "GPU", "CSX")),
    idle("disable_strict_checkpoint_loading", "weights that a checkpoint lacks begin anew, and that is said"),
    idle("save_summary_steps", "training.log_every comes from log_steps"),
    idle("save_checkpoint_steps", "no code of the tool reads it; it reads checkpoint_steps, which counts here too"),
    idle("show_debug_metrics", LOGS),
    idle("save_losses", CHECKS),
    idle("check_loss_values", CHECKS),
    idle("enable_summaries", LOGS),
    idle("logging", LOGS),
    idle("wsc_log_level", LOGS),
    idle("use_appliance_data", CLUSTER),
    *(idle(name, CLUSTER) for name in (
        "autogen_policy", "compile_dir", "credentials_path", "debug_args_path", "dist_addr", "dist_backend", "init_method",
        "sync_batchnorm", "execution_strategy", "job_labels", "job_priority", "job_time_sec", "mgmt_address", "mgmt_namespace",
        "mount_dirs", "python_paths", "num_replicas", "num_csx", "num_act_servers", "num_workers_per_csx", "experimental_api",
        "fabric_type_blacklist", "disable_version_check", "drop_data", "transfer_processes", "compile_crd_memory_gi",
        "execute_crd_memory_gi", "wrk_memory_gi", "act_memory_gi", "cmd_memory_gi", "wgt_memory_gi", "num_workers", "ini",
        "retrace_every_iteration", "lazy_initialization", "use_cstorch_optimizer_step", "cs_ip", "appliance", "op_profiler_config",
        "dump_activations", "log_input_summaries", "enable_act_frequency", "fp16_type", "steps_per_log",
    )),
)  # fmt: skip

TF_CSCONFIG: tuple[Key, ...] = (idle("use_cbfloat16", CLUSTER),)
PT_CSCONFIG: tuple[Key, ...] = tuple(key for key in PT_RUN if key.words == CLUSTER)

DENSE = "weights are trained dense here, which is another model than the sparse one"
SPARSITY: tuple[Key, ...] = tuple(
    idle(name, DENSE)
    for name in (
        "algorithm", "sparsity", "init_method", "seed", "update", "drop_fraction", "balance_in_groups", "balance_out_groups",
        "param_filter", "param_name_patterns", "schedule", "type", "ramp_method", "sparsity_type", "add_summaries", "groups",
    )
)  # fmt: skip
