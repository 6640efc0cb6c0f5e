"""From params to a transformers model with initial weights.

The model is made on `meta`; then each segment is initialised alone (`headrace.models.initial`).
"""

import torch
from transformers import BertConfig, BertForPreTraining

from headrace.errors import UserError
from headrace.models.blank import fill_blanks
from headrace.models.initial import initial_weights
from headrace.models.presets import BERT_PRESETS
from headrace.models.segments import segments_of
from headrace.params import ModelParams


def bert_config(params: ModelParams, vocabulary_size: int, pad_id: int) -> BertConfig:
    """The transformers config of a preset with the given keys laid over it; raises UserError on an impossible shape."""
    size = BERT_PRESETS[params.preset]
    hidden_size = params.hidden_size or size.hidden_size
    num_heads = params.num_attention_heads or (
        size.num_attention_heads if params.hidden_size is None else max(1, hidden_size // 64)
    )
    if hidden_size % num_heads:
        raise UserError(
            f"model.hidden_size = {hidden_size} is not a multiple of model.num_attention_heads = {num_heads}"
        )
    return BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=hidden_size,
        num_hidden_layers=params.num_hidden_layers or size.num_hidden_layers,
        num_attention_heads=num_heads,
        intermediate_size=params.intermediate_size or 4 * hidden_size,
        max_position_embeddings=params.max_position_embeddings,
        hidden_dropout_prob=params.hidden_dropout,
        attention_probs_dropout_prob=params.attention_dropout,
        layer_norm_eps=params.layer_norm_eps,
        initializer_range=params.initializer_range,
        pad_token_id=pad_id,
        architectures=["BertForPreTraining"],
    )


@torch.no_grad()
def build_bert(config: BertConfig, seed: int) -> BertForPreTraining:
    """BertForPreTraining on the CPU in fp32 with weights that depend only on (config, seed)."""
    with torch.device("meta"):
        model = BertForPreTraining(config)
    fill_blanks(model, torch.device("cpu"))
    segments = segments_of(model)
    for i, segment in enumerate(segments):
        weights = initial_weights(model, segments, i, seed)
        for name, parameter in segment.parameters.items():
            parameter.data = weights[name]
    return model
