"""From params to a transformers config, and to a model with initial weights.

The model is made on `meta`; then each segment is initialised alone (`headrace.models.initial`).
"""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, BertConfig, BertForPreTraining, PretrainedConfig, PreTrainedModel

from headrace.errors import UserError
from headrace.models.blank import fill_blanks
from headrace.models.initial import initial_weights
from headrace.models.presets import PRESETS
from headrace.models.segments import segments_of
from headrace.params import ModelParams
from headrace.run_folder import model_folder

# What each family's config calls our keys; a key that is missing has the same name.
_GPT2_KEYS = {
    "intermediate_size": ("n_inner",),
    "hidden_dropout": ("resid_pdrop", "embd_pdrop"),
    "attention_dropout": ("attn_pdrop",),
    "layer_norm_eps": ("layer_norm_epsilon",),
}
KEYS: dict[str, dict[str, tuple[str, ...]]] = {
    "bert": {"hidden_dropout": ("hidden_dropout_prob",), "attention_dropout": ("attention_probs_dropout_prob",)},
    "gpt2": _GPT2_KEYS,
    "gptj": _GPT2_KEYS,
    "gpt_neox": {},
}


def model_config(
    params: ModelParams,
    vocabulary_size: int | None = None,
    pad_id: int | None = None,
    end_id: int | None = None,
) -> PretrainedConfig:
    """The transformers config of a preset with the given keys laid over it, of model.config, or of the folder a run starts
    from.

    vocabulary_size None: the preset's or the folder's. end_id: the token that ends a text. Raises UserError on an impossible
    shape or unknown key.
    """
    if params.init_from is not None:
        return _config_of_folder(params, vocabulary_size)
    if params.config is not None:
        return _config_by_keys(params.config, vocabulary_size, pad_id, end_id)
    assert params.preset is not None
    size = PRESETS[params.preset]
    hidden_size = params.hidden_size or size.hidden_size
    num_heads = params.num_attention_heads or (
        size.num_attention_heads if params.hidden_size is None else max(1, hidden_size // 64)
    )
    if hidden_size % num_heads:
        raise UserError(
            f"model.hidden_size = {hidden_size} is not a multiple of model.num_attention_heads = {num_heads}"
        )
    ours = {
        "hidden_size": hidden_size,
        "num_hidden_layers": params.num_hidden_layers or size.num_hidden_layers,
        "num_attention_heads": num_heads,
        "intermediate_size": params.intermediate_size or 4 * hidden_size,
        "max_position_embeddings": params.max_position_embeddings,
        "hidden_dropout": params.hidden_dropout,
        "attention_dropout": params.attention_dropout,
        "layer_norm_eps": params.layer_norm_eps,
        "initializer_range": params.initializer_range,
    }
    names = KEYS[size.family]
    keys = {name: value for key, value in ours.items() for name in names.get(key, (key,))}
    keys |= {"vocab_size": vocabulary_size or size.vocabulary_size, "pad_token_id": pad_id, **size.more}
    if size.family != "bert":
        keys |= {"bos_token_id": end_id, "eos_token_id": end_id}
    if size.family == "gptj":
        keys["rotary_dim"] = min(keys["rotary_dim"], hidden_size // num_heads)
    return CONFIG_MAPPING[size.family](**keys)


_DROPOUTS = {
    "hidden_dropout": ("hidden_dropout_prob", "hidden_dropout", "resid_pdrop", "embd_pdrop"),
    "attention_dropout": ("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"),
}
"""What the configs of transformers call our keys, as far as each has them."""


def _config_of_folder(params: ModelParams, vocabulary_size: int | None) -> PretrainedConfig:
    """What the folder's config.json says, with the dropouts of the params; its vocabulary may have grown."""
    assert params.init_from is not None
    folder = model_folder(params.init_from)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # transformers raises many types; the user must hear it in one line
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"model.init_from = {str(params.init_from)!r}: {folder}/config.json: {reason}") from None
    config.dtype = torch.float32  # whatever the files hold: what trains is fp32
    for key, names in _DROPOUTS.items():
        if (value := getattr(params, key)) is not None:
            for name in (name for name in names if hasattr(config, name)):
                setattr(config, name, value)
    if vocabulary_size is not None:
        config.vocab_size = max(config.vocab_size, vocabulary_size)
    return config


def _config_by_keys(
    given: dict[str, Any], vocabulary_size: int | None, pad_id: int | None, end_id: int | None
) -> PretrainedConfig:
    kind = given["model_type"]
    if kind not in CONFIG_MAPPING:
        raise UserError(
            f"model.config.model_type = {kind!r}: transformers knows no such model{_nearest(kind, CONFIG_MAPPING)}"
        )
    config_class = CONFIG_MAPPING[kind]
    known = {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    keys = {key: value for key, value in given.items() if key != "model_type"}
    for key in keys:
        if key not in known:
            raise UserError(f"model.config.{key}: {kind} has no such key{_nearest(key, known)}")
    if vocabulary_size is not None and keys.setdefault("vocab_size", vocabulary_size) < vocabulary_size:
        raise UserError(
            f"model.config.vocab_size = {keys['vocab_size']} is less than the vocabulary's {vocabulary_size}; leave it out"
        )
    for key, value in (("pad_token_id", pad_id), ("bos_token_id", end_id), ("eos_token_id", end_id)):
        if key in known and value is not None:
            keys.setdefault(key, value)
    try:
        return config_class(**keys)
    except Exception as error:  # transformers' checks raise many types; the user must hear it in one line
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"model.config: {kind} does not take these values: {reason}") from None


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def bert_config(params: ModelParams, vocabulary_size: int, pad_id: int) -> BertConfig:
    """`model_config` of a BERT that pretrains."""
    config = model_config(params, vocabulary_size, pad_id)
    assert isinstance(config, BertConfig)
    config.architectures = ["BertForPreTraining"]
    return config


def build_bert(config: BertConfig, seed: int) -> BertForPreTraining:
    """BertForPreTraining on the CPU in fp32 with weights that depend only on (config, seed)."""
    model = build_model(lambda: BertForPreTraining(config), seed)
    assert isinstance(model, BertForPreTraining)
    return model


@torch.no_grad()
def build_model(make: Callable[[], PreTrainedModel], seed: int) -> PreTrainedModel:
    """What make() makes, on the CPU in fp32 with weights that depend only on it and the seed."""
    with torch.device("meta"):
        model = make()
    fill_blanks(model, torch.device("cpu"))
    segments = segments_of(model)
    for i, segment in enumerate(segments):
        weights = initial_weights(model, segments, i, seed)
        for name, parameter in segment.parameters.items():
            parameter.data = weights[name]
    return model
