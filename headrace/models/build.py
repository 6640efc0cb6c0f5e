"""From params to a transformers model with initial weights.

The model is made on `meta`; then each segment is initialised alone from (seed, segment name), so that initial weights
do not depend on where segments live or on how many there are before them.
"""

import torch
from transformers import BertConfig, BertForPreTraining, PreTrainedModel

from headrace.errors import UserError
from headrace.models.presets import BERT_PRESETS
from headrace.models.segments import segments_of
from headrace.params import ModelParams
from headrace.text.random import key


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


def build_bert(config: BertConfig, seed: int) -> BertForPreTraining:
    """BertForPreTraining on the CPU in fp32 with weights that depend only on (config, seed)."""
    with torch.device("meta"):
        model = BertForPreTraining(config)
    model.to_empty(device="cpu")
    model.tie_weights()
    initialize(model, seed)
    return model


@torch.no_grad()
def initialize(model: PreTrainedModel, seed: int) -> None:
    """Give every segment's weights the model's own initial distribution, seeded by (seed, segment name)."""
    with torch.random.fork_rng(devices=[]):
        # From the last to the first: every user of a tied weight sets it, and its owner, the first of them, must prevail.
        for segment in reversed(segments_of(model)):
            torch.manual_seed(key("weights", seed, segment.name))
            for path in segment.modules:
                model.get_submodule(path).apply(model._init_weights)
