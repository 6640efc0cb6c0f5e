"""Keys of the model sections, by generation and family.

Defaults are the tool's own: R_1.6.1 for TensorFlow, Release_1.8.0 and later for PyTorch and trainer files.
"""

from headrace.modelzoo.params.keys import REQUIRED, Key, idle, only, use

CS_NUMERICS = "a setting of the Cerebras system's arithmetic; device.precision decides here"
SUMMARIES = "asks for summaries of the tool; report.html and TensorBoard hold ours"
PADDING = "only skips padding there; padding never counts here, and batches are cut to their longest row"
SEEDS = "run.seed decides all draws"
METRICS = "evaluation always computes the metrics"
KERNEL = "chooses a kernel of the Cerebras system"
GENERATION = "concerns generation, not training"

_NORM_LAST = "transformers' BertModel normalises after each half of a layer (post-norm) and has no other form"
_NORM_FIRST = "transformers' GPT classes normalise before each half of a layer (pre-norm) and have no other form"
_BERT_BIAS = "transformers' BertModel always has these biases"
_GPT2_BIAS = "transformers' GPT2Model always has these biases"
_LEARNED = "transformers' class has learned position embeddings and no other kind"
_MUP = "scaled parametrisation (muP) is not available; give the plain model"
_EXTRA = "has no counterpart in transformers' class"

PRECISION: tuple[Key, ...] = (
    use(
        "mixed_precision",
        "bool",
        False,
        "device.precision: fp32 where false, else auto (bf16 where a GPU has it, else fp32)",
    ),
    use("use_bfloat16", "bool", None, "device.precision, as mixed_precision"),
    use("fp16_type", "text", None, "device.precision", allowed=("float16", "bfloat16", "cbfloat16")),
    idle("precision_opt_level", CS_NUMERICS),
    idle("boundary_casting", CS_NUMERICS),
    idle("to_float16", CS_NUMERICS),
    idle("attention_softmax_fp32", CS_NUMERICS),
    idle("attention_kernel", KERNEL),
    idle("fold_rope_consts", KERNEL),
)

_SIZES: tuple[Key, ...] = (
    use("hidden_size", "int", REQUIRED, "hidden size of model.config"),
    use("num_hidden_layers", "int", REQUIRED, "layers of model.config"),
    use("num_heads", "int", REQUIRED, "attention heads of model.config"),
    use("filter_size", "int", REQUIRED, "width of the feed-forward layers of model.config"),
)

_TF_COMMON: tuple[Key, ...] = (
    *PRECISION,
    idle("tf_summary", SUMMARIES),
    idle("dropout_seed", SEEDS),
    idle("weight_initialization_seed", SEEDS),
    idle("enable_gpu_optimizations", KERNEL),
    idle("bits_per_x_dataset", "the tool overwrites it by what data_dir names, and so do we"),
)

_PT_COMMON: tuple[Key, ...] = (
    *PRECISION,
    idle("compute_eval_metrics", METRICS),
    idle("allow_multireplica", "one device computes here"),
    idle("tf_summary", SUMMARIES),
    only("mup_base_hidden_size", "float", None, _MUP),
    only("mup_base_filter_size", "float", None, _MUP),
    only("scale_qk_dot_by_d", "bool", False, _MUP),
    only("embeddings_scale", "float", 1.0, _MUP),
    only("attention_logits_alpha", "float", 1.0, _MUP),
    only("output_logits_alpha", "float", 1.0, _MUP),
    only("output_logits_scale", "float", 1.0, _MUP),
    only("scale_output_logits_by_d", "bool", True, _MUP, True, False),
    only("lr_adjustment_groups", "any", None, "one learning rate holds for all weights"),
    only("alibi_trainable_slopes", "bool", False, _EXTRA),
    only("pos_scaling_factor", "float", 1.0, _EXTRA),
    idle("pos_scaling_type", "without pos_scaling_factor it does nothing"),
    only("num_relative_attention_buckets", "int", 32, "relative positions " + _EXTRA),
    only("attention_module", "text", "aiayn_attention", "multi-query attention " + _EXTRA),
    only("extra_attention_params", "any", {}, _EXTRA),
    only("norm_type", "text", "layernorm", _EXTRA),
    only("embedding_layer_norm", "bool", None, "fixed by the family in transformers' class", False, True),
)

_BERT_MODEL: tuple[Key, ...] = (
    *_SIZES,
    use("encoder_nonlinearity", "text", "gelu", "hidden_act of model.config"),
    use(
        "max_position_embeddings", "int", None, "max_position_embeddings of model.config; default: max_sequence_length"
    ),
    use("share_embedding_weights", "bool", True, "tie_word_embeddings of model.config"),
    use("disable_nsp", "bool", False, "task.examples: documents where true, else sentence_pairs"),
    use("mlm_loss_weight", "float", 1.0, "task.loss_weight"),
    use("initializer_range", "float", 0.02, "std of model.initial"),
    only("position_embedding_type", "text", "learned", _LEARNED, "learned"),
    only("use_position_embedding", "bool", True, _LEARNED),
    only("use_ffn_bias", "bool", True, _BERT_BIAS),
    only("use_ffn_bias_in_attention", "bool", True, _BERT_BIAS),
    only("use_projection_bias_in_attention", "bool", True, _BERT_BIAS),
    only("attention_type", "text", "scaled_dot_product", "transformers' BertModel scales its attention scores"),
)

TF_BERT: tuple[Key, ...] = (
    *_BERT_MODEL,
    *_TF_COMMON,
    use("embedding_size", "int", None, "must be hidden_size: transformers' BertModel has no factorised embeddings"),
    use("use_segment_embedding", "bool", False, "type_vocab_size of model.config: 2, or 1 with a row of zeros"),
    use("dropout_rate", "float", REQUIRED, "hidden_dropout_prob of model.config"),
    use("attention_dropout_rate", "float", 0.0, "attention_probs_dropout_prob of model.config"),
    use("layer_norm_epsilon", "float", 1e-8, "layer_norm_eps of model.config"),
    use("embedding_initializer", "any", None, "model.initial.embeddings"),
    idle(
        "initializer",
        "the tool overwrites it by the file's top-level `initializer`, or truncated_normal 0.02; so do we (model.initial)",
    ),
    only("use_pre_normalization", "bool", False, _NORM_LAST),
    only("num_cls_classes", "int", 2, "next-sentence prediction has two classes"),
    idle("use_vsl", PADDING),
    idle("input_pad_id", PADDING),
    idle("segment_pad_id", PADDING),
)

PT_BERT: tuple[Key, ...] = (
    *_BERT_MODEL,
    *_PT_COMMON,
    use("vocab_size", "int", None, "vocab_size of model.config; default: train_input's, or the lines of vocab_file"),
    use("dropout_rate", "float", 0.1, "hidden_dropout_prob of model.config"),
    use("attention_dropout_rate", "float", None, "attention_probs_dropout_prob of model.config; default: dropout_rate"),
    use("layer_norm_epsilon", "float", 1e-5, "layer_norm_eps of model.config"),
    use("mask_padding_in_positional_embed", "bool", False, "one more row in the position table, as the tool has"),
    use("num_segments", "int", None, "type_vocab_size of model.config; default: 2, or none without next sentences"),
    use("mlm_nonlinearity", "text", None, "must be encoder_nonlinearity: BertModel's heads share it"),
    use("pooler_nonlinearity", "text", None, "must be tanh, which BertModel's pooler has"),
    use("mlm_loss_scaling", "text", None, "task.loss_per: target, or example for batch_size",
        allowed=("num_masked", "precomputed_num_masked", "batch_size")),
    only("embedding_dropout_rate", "float", None, "BertModel has one dropout rate; set dropout_rate"),
    only("label_smoothing", "float", 0.0, "the loss is plain cross entropy"),
    only("norm_first", "bool", False, _NORM_LAST),
    only("use_pre_normalization", "bool", False, _NORM_LAST),
    only("use_ffn_bias_in_mlm", "bool", True, _BERT_BIAS),
    only("use_output_bias_in_mlm", "bool", True, _BERT_BIAS),
    only("use_final_layer_norm", "bool", False, _EXTRA),
    only("add_pooling_layer", "bool", None, "follows from the task", True, False),
    only("pad_token_id", "int", 0, "the vocabulary decides"),
    only("rotary_dim", "int", None, _LEARNED),
    only("embedding_size", "int", None, "transformers' BertModel has no factorised embeddings"),
    idle("enable_vts", PADDING),
    idle("model_name", "says what the file is"),
)  # fmt: skip

FINE_TUNING: tuple[Key, ...] = (
    use("pretrain_params_path", "text", None, "the encoder: that file's model section, below this file's own keys",
        "bert_pretrain_params_path"),
    use("num_labels", "int", None, "labels of the head, as many as data.labels", "num_classes", "num_cls_classes"),
    use("cls_dropout_rate", "float", None, "classifier_dropout of model.config; default: dropout_rate", "task_dropout",
        "encoder_output_dropout_rate"),
    use("problem_type", "text", None, "problem_type of model.config",
        allowed=("single_label_classification", "multi_label_classification", "regression")),
    use("loss_weight", "float", 1.0, "task.loss_weight of token classifiers and summaries"),
    use("label_vocab_file", "text", None, "data.labels, in the order of its numbers"),
    use("is_mnli_dataset", "bool", False, "eval/accuracy_matched and ..._mismatched, which MNLI data always get"),
    use("include_padding_in_loss", "bool", False, "must be false: padding never counts here"),
    only("use_cls_bias", "bool", True, "transformers' head has a bias"),
    idle("vocab_file", "only decodes summaries for the metric there"),
)  # fmt: skip

_GPT_LOSS: tuple[Key, ...] = (
    use("loss_scaling", "text", "num_tokens", "task.loss_per: target, or example for batch_size",
        allowed=("num_tokens", "batch_size")),
    use("loss_weight", "float", 1.0, "task.loss_weight; PyTorch beside num_tokens: batch_size up to 1.8, no effect in 2.x"),
)  # fmt: skip

_GPT_INITIAL: tuple[Key, ...] = (
    use("initializer", "any", None, "model.initial.matrices; default: truncated_normal 0.02"),
    use(
        "embedding_initializer",
        "any",
        None,
        "model.initial.embeddings; default: TensorFlow: initializer, PyTorch: initializer_range, cut at two",
    ),
    use("output_layer_initializer", "any", None, "model.initial.outputs; default for GPT-2: 0.02 / sqrt(2 layers)"),
)

_GPT2: tuple[Key, ...] = (
    *_SIZES,
    *_GPT_LOSS,
    *_GPT_INITIAL,
    use("nonlinearity", "text", "gelu", "activation_function of model.config"),
    use("max_position_embeddings", "int", None, "n_positions of model.config; default: max_sequence_length, else 1024"),
    use("share_embedding_weights", "bool", True, "tie_word_embeddings of model.config"),
    use("attention_type", "text", "scaled_dot_product", "scale_attn_weights of model.config",
        allowed=("scaled_dot_product", "dot_product")),
    only("position_embedding_type", "text", "learned", _LEARNED, "learned"),
    only("use_position_embedding", "bool", True, _LEARNED),
    only("use_ffn_bias", "bool", True, _GPT2_BIAS),
    only("use_ffn_bias_in_attention", "bool", True, _GPT2_BIAS),
    only("use_projection_bias_in_attention", "bool", True, _GPT2_BIAS),
    only("use_bias_in_output", "bool", False, "transformers' GPT2LMHeadModel has no bias in its output layer"),
    only("use_pre_normalization", "bool", True, _NORM_FIRST),
    only("fixed_sparse_attention", "any", None, "sparse attention " + _EXTRA),
    idle("backbone_only", "the whole model trains"),
    idle("use_cache", GENERATION),
)  # fmt: skip

TF_GPT2: tuple[Key, ...] = (
    *_GPT2,
    *_TF_COMMON,
    idle("vocab_size", "train_input.vocab_size decides, as in the tool"),
    use("embedding_size", "int", None, "must be hidden_size: transformers' GPT2Model has no factorised embeddings"),
    use("dropout_rate", "float", 0.0, "resid_pdrop and embd_pdrop of model.config"),
    use("attention_dropout_rate", "float", 0.0, "attn_pdrop of model.config"),
    use("embedding_dropout_rate", "float", None, "embd_pdrop of model.config; default: dropout_rate"),
    use("layer_norm_epsilon", "float", 1e-8, "layer_norm_epsilon of model.config"),
    idle("use_vsl", PADDING),
)

PT_GPT2: tuple[Key, ...] = (
    *_GPT2,
    *_PT_COMMON,
    use("vocab_size", "int", None, "vocab_size of model.config; default: train_input's"),
    use("dropout_rate", "float", 0.1, "resid_pdrop of model.config", "residual_dropout_rate"),
    use("attention_dropout_rate", "float", None, "attn_pdrop of model.config; default: dropout_rate"),
    use("embedding_dropout_rate", "float", None, "embd_pdrop of model.config; default: dropout_rate", "embd_pdrop"),
    use("layer_norm_epsilon", "float", 1e-5, "layer_norm_epsilon of model.config"),
    use("initializer_range", "float", 0.02, "std of model.initial"),
    only("norm_first", "bool", True, _NORM_FIRST),
    only("rotary_dim", "int", None, _LEARNED),
    only("num_extra_input_vocab_tokens", "int", 0, _EXTRA),
    only("final_logit_softcapping", "float", None, _EXTRA),
    only("attention_logit_softcapping", "float", None, _EXTRA),
    only("attention_sliding_window_length", "int", None, _EXTRA),
    only("moe_params", "any", None, "mixtures of experts are not available"),
    only("moe", "any", None, "mixtures of experts are not available"),
)

_GPTJ: tuple[Key, ...] = (
    *_SIZES,
    *_GPT_LOSS,
    *_GPT_INITIAL,
    use("nonlinearity", "text", "gelu", "activation of model.config"),
    use("max_position_embeddings", "int", None, "positions of model.config; default: max_sequence_length"),
    use("share_embedding_weights", "bool", True, "tie_word_embeddings of model.config"),
    use(
        "rotary_dim",
        "int",
        None,
        "rotary_dim (GPT-J) or partial_rotary_factor (GPT-NeoX); default: all of a head's dimensions",
    ),
    use("use_untied_layer_norm", "bool", False, "family: GPTNeoXForCausalLM where true, else GPTJForCausalLM"),
    use("use_ffn_bias", "bool", True, "must be true: both classes have it"),
    use(
        "use_ffn_bias_in_attention",
        "bool",
        None,
        "must be true for GPT-NeoX, false for GPT-J, as their classes have it",
    ),
    use("use_projection_bias_in_attention", "bool", None, "must be true for GPT-NeoX, false for GPT-J"),
    use("use_bias_in_output", "bool", None, "must be false for GPT-NeoX, true for GPT-J"),
    use("embedding_dropout_rate", "float", 0.0, "embedding dropout of model.config", "embd_pdrop"),
    use("attention_dropout_rate", "float", 0.0, "attention dropout of model.config"),
    use("residual_dropout_rate", "float", 0.0, "dropout of model.config", "dropout_rate"),
    only("position_embedding_type", "text", "rotary", "transformers' class has rotary positions and no other kind"),
    only("use_position_embedding", "bool", False, "positions are rotary", False, True),
    only("use_position_embeddings", "bool", False, "positions are rotary"),
    only("attention_type", "text", "scaled_dot_product", "transformers' class scales its attention scores"),
    only("use_pre_normalization", "bool", True, _NORM_FIRST),
    only("norm_first", "bool", True, _NORM_FIRST),
    only("rope_theta", "float", 10000.0, "rotary frequencies are those of the papers"),
    idle("backbone_only", "the whole model trains"),
    idle("use_cache", GENERATION),
)

TF_GPTJ: tuple[Key, ...] = (
    *_GPTJ,
    *_TF_COMMON,
    idle("vocab_size", "train_input.vocab_size decides, as in the tool"),
    use("layer_norm_epsilon", "float", 1e-8, "layer_norm epsilon of model.config"),
    idle("use_vsl", PADDING),
)

PT_GPTJ: tuple[Key, ...] = (
    *_GPTJ,
    *_PT_COMMON,
    use("embedding_dropout_rate", "float", 0.1, "embedding dropout of model.config", "embd_pdrop"),
    use("attention_dropout_rate", "float", 0.1, "attention dropout of model.config"),
    use("residual_dropout_rate", "float", 0.1, "dropout of model.config", "dropout_rate"),
    use("use_ffn_bias", "bool", False, "must be true: both classes have it"),
    use("use_bias_in_output", "bool", False, "must be false for GPT-NeoX, true for GPT-J"),
    use("vocab_size", "int", None, "vocab_size of model.config; default: train_input's"),
    use("layer_norm_epsilon", "float", 1e-5, "layer_norm epsilon of model.config"),
    use("initializer_range", "float", 0.02, "std of model.initial"),
)
