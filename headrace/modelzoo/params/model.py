"""The model section as a config of transformers; what its classes cannot express is refused by name."""

import math
from dataclasses import dataclass
from typing import Any

from headrace.errors import UserError
from headrace.modelzoo.params.draft import Draft
from headrace.modelzoo.params.keys import Notes, Taken, nearest, shown
from headrace.modelzoo.params.parts import Parts

# TensorFlow's gelu is the tanh form (R_1.6.1 common/tf/layers/ActivationLayer.py), PyTorch's the exact one.
ACTIVATIONS_TF = {
    "gelu": "gelu_new",
    "relu": "relu",
    "tanh": "tanh",
    "swish": "silu",
    "relu6": "relu6",
    "sigmoid": "sigmoid",
}
ACTIVATIONS = {
    "gelu": "gelu", "gelu_new": "gelu_new", "quick_gelu": "quick_gelu", "relu": "relu", "relu6": "relu6", "silu": "silu",
    "swish": "silu", "tanh": "tanh", "sigmoid": "sigmoid", "mish": "mish", "leaky_relu": "leaky_relu",
}  # fmt: skip

CLASSES = {
    "classifier": "BertForSequenceClassification",
    "token_classifier": "BertForTokenClassification",
    "qa": "BertForQuestionAnswering",
    "extractive_summarization": "BertForTokenClassification",
}


@dataclass(frozen=True)
class FineTuning:
    """What a fine-tuning file says beside the encoder."""

    job: str
    model_class: str
    """The class of transformers with the head."""
    num_labels: int
    loss_weight: float = 1.0
    problem_type: str | None = None
    label_vocab_file: str | None = None
    mnli: bool = False
    include_padding_in_loss: bool = False


def put_model(draft: Draft, parts: Parts, vocabulary_size: tuple[int, str], longest: tuple[int, str] | None) -> str:
    """model.config; returns the name of the transformers class. longest: the input's sequence length."""
    model, notes = parts.model, parts.notes
    hidden, heads = model["hidden_size"], model["num_heads"]
    if hidden % heads:
        raise UserError(f"{model.at('hidden_size')} = {hidden} is not a multiple of {model.at('num_heads')} = {heads}")
    positions = _positions(model, longest)
    if parts.kind.family == "bert":
        keys = _bert(parts, positions, notes)
        name = CLASSES.get(parts.kind.job, "BertForPreTraining")
    elif parts.kind.family == "gpt2":
        keys, name = _gpt2(parts, positions), "GPT2LMHeadModel"
    elif model["use_untied_layer_norm"]:
        keys, name = _gpt_neox(parts, positions), "GPTNeoXForCausalLM"
        notes.add(
            f"{model.at('rotary_dim')}: the tool rotates neighbouring dimensions, GPTNeoXForCausalLM the two halves; with new "
            f"weights that is the same model in another order, the tool's own checkpoints need converting"
        )
    else:
        keys, name = _gptj(parts, positions), "GPTJForCausalLM"
    keys["vocab_size"] = vocabulary_size
    for key, (value, origin) in keys.items():
        draft.put(f"model.config.{key}", value, origin)
    return name


def _positions(model: Taken, longest: tuple[int, str] | None) -> tuple[int, str]:
    if model.has("max_position_embeddings"):
        return model["max_position_embeddings"], model.at("max_position_embeddings")
    if longest is None:
        raise UserError(
            f"{model.path}.max_position_embeddings: is required where train_input has no max_sequence_length"
        )
    return longest


def _from(model: Taken, name: str) -> tuple[Any, str]:
    return model[name], model.where(name)


def _activation(parts: Parts, name: str) -> tuple[str, str]:
    known = ACTIVATIONS_TF if parts.kind.tensorflow else ACTIVATIONS
    written = str(parts.model[name])
    if written.lower() not in known:
        at = parts.model.at(name)
        raise UserError(
            f"{at} = {written!r}: no such activation{nearest(written, known)} (there are {', '.join(known)})"
        )
    return known[written.lower()], parts.model.where(name)


def _must_be(model: Taken, name: str, wanted: Any, why: str) -> None:
    """Refuse a variation that the class cannot express."""
    if model[name] is not None and model[name] != wanted:
        where = model.given[name].path if name in model.given else f"{model.path}.{name} (default)"
        raise UserError(f"{where} = {shown(model[name])}: should be {wanted}; {why}")


def _not_factorised(model: Taken) -> None:
    why = "transformers' class has no factorised embeddings"
    if model.get("embedding_size") is not None:
        _must_be(model, "embedding_size", model["hidden_size"], why)


def _common(model: Taken, positions: str) -> dict[str, tuple[Any, str]]:
    return {
        "hidden_size": _from(model, "hidden_size"),
        "num_hidden_layers": _from(model, "num_hidden_layers"),
        "num_attention_heads": _from(model, "num_heads"),
        "tie_word_embeddings": _from(model, "share_embedding_weights"),
        "initializer_range": (model.get("initializer_range", 0.02), model.where("initializer_range")),
    }


def _bert(parts: Parts, positions: tuple[int, str], notes: Notes) -> dict[str, tuple[Any, str]]:
    model, tensorflow, pretraining = parts.model, parts.kind.tensorflow, parts.kind.job == "pretraining"
    _not_factorised(model)
    if tensorflow:
        segments = (2 if model["use_segment_embedding"] else 1, model.where("use_segment_embedding"))
    else:
        segments = _segments(parts, notes) if pretraining else (2, "the tool's fine-tuning models have two segments")
        if not model.has("pooler_nonlinearity"):
            if model["encoder_nonlinearity"] != "tanh" and not first_release(parts):
                notes.add(
                    f"{model.at('pooler_nonlinearity')}: not given; the tool then takes encoder_nonlinearity, BertModel's pooler "
                    f"always tanh"
                )
        else:
            _must_be(model, "pooler_nonlinearity", "tanh", "BertModel's pooler has no other activation")
        if model["mlm_nonlinearity"] is not None:
            why = "BertModel's masked-language head has the encoder's activation"
            _must_be(model, "mlm_nonlinearity", model["encoder_nonlinearity"], why)
        if model["mask_padding_in_positional_embed"]:
            at = model.at("mask_padding_in_positional_embed")
            positions = (positions[0] + 1, f"{positions[1]}, one row more by {at}")
            notes.add(
                f"{at}: the tool's row for padding is added to the position table; padding is hidden from attention anyway"
            )
    dropout = _from(model, "dropout_rate")
    attention = dropout if model["attention_dropout_rate"] is None else _from(model, "attention_dropout_rate")
    keys = {
        "model_type": ("bert", "model"),
        **_common(model, "max_position_embeddings"),
        "intermediate_size": _from(model, "filter_size"),
        "hidden_act": _activation(parts, "encoder_nonlinearity"),
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": attention,
        "max_position_embeddings": positions,
        "type_vocab_size": segments,
        "layer_norm_eps": _from(model, "layer_norm_epsilon"),
    }
    if not pretraining and parts.kind.job != "qa":
        given = model.has("cls_dropout_rate")
        keys["classifier_dropout"] = _from(model, "cls_dropout_rate") if given else dropout
    return keys


def first_release(parts: Parts) -> bool:
    """Whether a PyTorch file is of R_1.6, whose BERT was transformers' own: none of the keys that came later."""
    later = {
        "model": ("pooler_nonlinearity", "use_bfloat16", "fp16_type", "num_segments", "mask_padding_in_positional_embed",
                  "attention_kernel", "initializer_range", "mlm_loss_scaling"),
        "run": ("model_dir", "eval_steps", "eval_frequency", "num_steps", "num_epochs", "target_device"),
    }  # fmt: skip
    if parts.kind.style != "pytorch" or second_generation(parts):
        return False
    return not any(name in parts.model.given for name in later["model"]) and not any(
        name in parts.run.given for name in later["run"]
    )


def second_generation(parts: Parts) -> bool:
    """Whether a file is of 2.x: lengths of schedules are total_iters there, and the rate of decay is weight_decay."""
    if parts.kind.style == "trainer":
        return True
    rate = parts.optimizer.given.get("learning_rate")
    schedules = rate.value if rate is not None and isinstance(rate.value, list) else [rate.value if rate else None]
    if any(isinstance(each, dict) and "total_iters" in each for each in schedules):
        return True
    listed = [each for each in schedules if isinstance(each, dict)]
    decay = parts.optimizer.given.get("weight_decay")
    return bool(decay and decay.path.endswith("weight_decay")) and not any("steps" in each for each in listed)


def _segments(parts: Parts, notes: Notes) -> tuple[int, str]:
    model = parts.model
    if model.has("num_segments"):
        return max(model["num_segments"], 1), model.at("num_segments")
    if not model["disable_nsp"]:
        return 2, model.where("disable_nsp")
    at = model.at("disable_nsp")
    if first_release(parts):
        notes.add(
            f"{at}: a segment table of two rows is kept, as in R_1.6 (the file has none of the keys that came later); "
            f"{model.path}.num_segments=0 leaves it out"
        )
        return 2, at
    return 1, at


def _dropouts(model: Taken, residual: str) -> tuple[tuple[Any, str], tuple[Any, str], tuple[Any, str]]:
    """Residual, embedding and attention dropout; the latter two default to the first in GPT-2 of PyTorch."""
    rate = _from(model, residual)
    embedding = rate if model["embedding_dropout_rate"] is None else _from(model, "embedding_dropout_rate")
    attention = rate if model["attention_dropout_rate"] is None else _from(model, "attention_dropout_rate")
    return rate, embedding, attention


def _gpt2(parts: Parts, positions: tuple[int, str]) -> dict[str, tuple[Any, str]]:
    model = parts.model
    _not_factorised(model)
    residual, embedding, attention = _dropouts(model, "dropout_rate")
    return {
        "model_type": ("gpt2", "model"),
        **_common(model, "n_positions"),
        "n_inner": _from(model, "filter_size"),
        "max_position_embeddings": positions,
        "activation_function": _activation(parts, "nonlinearity"),
        "resid_pdrop": residual,
        "embd_pdrop": embedding,
        "attn_pdrop": attention,
        "layer_norm_epsilon": _from(model, "layer_norm_epsilon"),
        "scale_attn_weights": (model["attention_type"] == "scaled_dot_product", model.where("attention_type")),
    }


def _rotary(model: Taken) -> tuple[int, str]:
    head = model["hidden_size"] // model["num_heads"]
    size = model["rotary_dim"]
    if size is None or size == -1:
        return head, model.where("rotary_dim")
    if size <= 0 or size % 2 or size > head:
        raise UserError(
            f"{model.at('rotary_dim')} = {size}: should be even, and at most {head}, which hidden_size / num_heads is"
        )
    return size, model.at("rotary_dim")


def _gptj(parts: Parts, positions: tuple[int, str]) -> dict[str, tuple[Any, str]]:
    model, why = parts.model, "GPTJForCausalLM has it no other way (use_untied_layer_norm: true asks for GPT-NeoX)"
    _must_be(model, "use_ffn_bias", True, why)
    _must_be(model, "use_ffn_bias_in_attention", False, why)
    _must_be(model, "use_projection_bias_in_attention", False, why)
    _must_be(model, "use_bias_in_output", True, why)
    residual, embedding, attention = _dropouts(model, "residual_dropout_rate")
    return {
        "model_type": ("gptj", model.where("use_untied_layer_norm")),
        **_common(model, "n_positions"),
        "n_inner": _from(model, "filter_size"),
        "max_position_embeddings": positions,
        "rotary_dim": _rotary(model),
        "activation_function": _activation(parts, "nonlinearity"),
        "resid_pdrop": residual,
        "embd_pdrop": embedding,
        "attn_pdrop": attention,
        "layer_norm_epsilon": _from(model, "layer_norm_epsilon"),
    }


def _gpt_neox(parts: Parts, positions: tuple[int, str]) -> dict[str, tuple[Any, str]]:
    model, why = parts.model, "GPTNeoXForCausalLM has it no other way"
    for name in ("use_ffn_bias", "use_ffn_bias_in_attention", "use_projection_bias_in_attention"):
        _must_be(model, name, True, why)
    _must_be(model, "use_bias_in_output", False, why)
    residual, embedding, attention = _dropouts(model, "residual_dropout_rate")
    if residual[0] != embedding[0]:
        raise UserError(
            f"{model.at('embedding_dropout_rate')} = {embedding[0]} and {model.at('residual_dropout_rate')} = {residual[0]} "
            f"differ; GPTNeoXForCausalLM has one rate for both"
        )
    rotary, origin = _rotary(model)
    head = model["hidden_size"] // model["num_heads"]
    share = rotary / head
    assert math.isclose(head * share, rotary)
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share}
    return {
        "model_type": ("gpt_neox", model.where("use_untied_layer_norm")),
        **_common(model, "max_position_embeddings"),
        "intermediate_size": _from(model, "filter_size"),
        "max_position_embeddings": positions,
        "rope_parameters": (rope, origin),
        "hidden_act": _activation(parts, "nonlinearity"),
        "hidden_dropout": residual,
        "attention_dropout": attention,
        "layer_norm_eps": _from(model, "layer_norm_epsilon"),
        "use_parallel_residual": (True, model.where("use_untied_layer_norm")),
    }


def fine_tuning_of(parts: Parts) -> FineTuning | None:
    """The head of a fine-tuning file; None: the file pretrains."""
    job, model = parts.kind.job, parts.model
    if job == "pretraining":
        return None
    labels = {"classifier": 2, "qa": 2, "extractive_summarization": 1 if parts.kind.tensorflow else 2}.get(job)
    if model.has("num_labels"):
        labels = model["num_labels"]
    if labels is None:
        raise UserError(f"{model.path}.num_classes: is required for a token classifier and not given")
    label_file = model.get("label_vocab_file") or (parts.train.get("label_vocab_file") if parts.train else None)
    return FineTuning(
        job,
        CLASSES[job],
        labels,
        loss_weight=model.get("loss_weight", 1.0),
        problem_type=model.get("problem_type"),
        label_vocab_file=label_file,
        include_padding_in_loss=model.get("include_padding_in_loss", False),
        mnli=model.get("is_mnli_dataset", False)
        or (parts.train is not None and parts.train.get("data_processor") == "MnliDataProcessor"),
    )
