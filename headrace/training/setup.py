"""From params and a vocabulary to a model whose weights lie in a store."""

from dataclasses import dataclass

import torch
from transformers import BertConfig, BertForPreTraining

from headrace.models.blank import fill_blanks
from headrace.models.build import bert_config
from headrace.models.initial import initial_weights
from headrace.models.segments import segments_of
from headrace.optim import AdamW, LossScale
from headrace.params import Params
from headrace.planning.device import Precision
from headrace.run_folder import RunFolder
from headrace.store.store import Store
from headrace.streaming.activations import Policy, Saved
from headrace.streaming.segment import Pass, Streaming, install_segments
from headrace.tasks import masked_lm
from headrace.text.vocabulary import Vocabulary


@dataclass
class Trainable:
    """A model with its weights in a store. `config` is what a checkpoint saves."""

    model: BertForPreTraining
    config: BertConfig
    store: Store
    streaming: Streaming


def build_trainable(
    params: Params, vocabulary: Vocabulary, precision: Precision, run: RunFolder | None = None, initialize: bool = True
) -> Trainable:
    """The model with its initial weights, every segment placed where the params say.

    initialize False: a checkpoint will give the weights."""
    config = bert_config(params.model, vocabulary.size, vocabulary.pad_id)
    with torch.device("meta"):
        model = BertForPreTraining(config)
    fill_blanks(model, precision.device)
    masked_lm.freeze_unused(model, pairs=params.task.examples == "sentence_pairs")
    segments = segments_of(model)
    store = Store(segments, update_rule(params), params.training.optimizer.no_decay, precision.device)
    for i in range(len(segments) if initialize else 0):
        store.fill(i, initial_weights(model, segments, i, params.run.seed))
    policies: list[Policy] = ["keep"] * len(segments)
    streaming = Streaming(segments, store, Pass(params.run.seed), Saved(), policies, autocast=precision.autocast)
    install_segments(model, segments, streaming, run_by_task=[masked_lm.HEAD])
    return Trainable(model, config, store, streaming)


def update_rule(params: Params) -> AdamW:
    optimizer = params.training.optimizer
    return AdamW(optimizer.betas, optimizer.eps, optimizer.weight_decay, optimizer.bias_correction)


def initial_loss_scale(precision: Precision) -> LossScale:
    return LossScale() if precision.dtype is torch.float16 else LossScale.static(1.0)
