"""From params and a vocabulary to a model whose weights lie in a store."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import BertConfig, BertForPreTraining

from headrace.models.build import bert_config, build_bert
from headrace.models.segments import segments_of
from headrace.optim import AdamW, LossScale
from headrace.params import Params
from headrace.planning.device import Precision
from headrace.store.device import DeviceStore
from headrace.streaming.segment import Pass, install_segments
from headrace.tasks import masked_lm
from headrace.text.vocabulary import Vocabulary


@dataclass
class Trainable:
    """A model with its weights in a store. `config` is what a checkpoint saves; `running` says which pass is on."""

    model: BertForPreTraining
    config: BertConfig
    store: DeviceStore
    running: Pass


def build_trainable(params: Params, vocabulary: Vocabulary, precision: Precision) -> Trainable:
    """The model with its initial weights, every segment placed on the device."""
    config = bert_config(params.model, vocabulary.size, vocabulary.pad_id)
    model = build_bert(config, params.run.seed)
    masked_lm.freeze_unused(model, pairs=params.task.examples == "sentence_pairs")
    segments = segments_of(model)
    store = DeviceStore(segments, params.training.optimizer.no_decay, precision.device)
    nn.Module.to(model, precision.device)  # buffers; parameters are there already
    running = Pass(params.run.seed)
    install_segments(model, segments, running)
    return Trainable(model, config, store, running)


def update_rule(params: Params) -> AdamW:
    optimizer = params.training.optimizer
    return AdamW(optimizer.betas, optimizer.eps, optimizer.weight_decay, optimizer.bias_correction)


def initial_loss_scale(precision: Precision) -> LossScale:
    return LossScale() if precision.dtype is torch.float16 else LossScale.static(1.0)
