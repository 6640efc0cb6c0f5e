"""What tasks that learn from labelled rows have in common: a whole model of transformers with its own head.

row -> Example of the task -> Features -> outputs of the model -> prediction (one JSON object an example) -> figures
"""

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto as auto

from headrace.data_params import DataParams
from headrace.errors import InputError, UserError
from headrace.labelled.features import Feature
from headrace.labelled.row import Row, field_of, shown
from headrace.models.build import model_config
from headrace.params import Params
from headrace.text.batches import Microbatch
from headrace.text.vocabulary import Vocabulary

HEADS: dict[str, Mapping[type, Any]] = {
    "classification": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "regression": auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    "token_classification": auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
    "question_answering": auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING,
    "multiple_choice": auto.MODEL_FOR_MULTIPLE_CHOICE_MAPPING,
    "summarization": auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING,
}
"""Task -> the model classes of transformers that have its head, by config class."""


@dataclass(frozen=True)
class LabelledSet:
    """Rows as a task reads them."""

    examples: Sequence[Any]
    features: Sequence[Feature]
    notes: Mapping[str, int] = field(default_factory=dict)
    """What was cut or left out, by reason."""


def data_of(params: Params) -> DataParams:
    assert params.data is not None, f"task.kind = {params.task.kind!r} without data"
    return params.data


def names_of(params: Params) -> list[str]:
    """The labels in the order of the model's outputs; two of no name as long as the data was not read."""
    return data_of(params).labels or ["0", "1"]


def label_of(row: Row, name: str, setting: str) -> str:
    """A label as text: 1 and "1" are the same."""
    value = field_of(row, name, setting, (str, int))
    if isinstance(value, str) and not value.strip():
        raise InputError(f"{row.source}: field {name!r} is empty; every row to learn from needs a label")
    return str(value)


def number_of(row: Row, name: str, setting: str) -> float:
    """A finite number, also as text. Raises InputError."""
    value = field_of(row, name, setting, (str, int, float))
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{row.source}: field {name!r} is {shown(value)}, not a finite number")
    return number


def head_config(
    params: Params, vocabulary: Vocabulary | None, labels: Sequence[str] | None, **keys: Any
) -> PretrainedConfig:
    """The config of a model with the task's head. Raises UserError where the model has none, or where it was trained for
    something else. labels: in the order of the outputs; None: there are none."""
    ids = (vocabulary.size, vocabulary.pad_id, vocabulary.sep_id) if vocabulary is not None else ()
    config, kind = model_config(params.model, *ids), params.task.kind
    if type(config) not in HEADS[kind]:
        raise UserError(
            f"task.kind = {kind!r} does not fit model {params.model.name!r}: transformers has no {config.model_type} with a "
            f"head for it"
        )
    name = HEADS[kind][type(config)].__name__
    if labels is not None:
        keys |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}
    if params.model.init_from is not None:
        _check_same_use(params, config, name, keys.get("id2label"))
    for key, value in keys.items():
        setattr(config, key, value)
    if config.pad_token_id is None and vocabulary is not None:
        config.pad_token_id = vocabulary.pad_id
    config.architectures = [name]
    return config


def _check_same_use(params: Params, config: PretrainedConfig, name: str, labels: dict[int, str] | None) -> None:
    """Refuse a folder that was fine-tuned to other ends."""
    before = (config.architectures or [""])[0]
    others = {getattr(each.get(type(config), None), "__name__", None) for each in HEADS.values()} - {None, name}
    if before in others:
        raise UserError(
            f"task.kind = {params.task.kind!r} trains a {name}, and model.init_from = {str(params.model.init_from)!r} holds a "
            f"{before}, fine-tuned for another task; start from the model it was made from"
        )
    was_regression = before == name and config.problem_type == "regression"
    if was_regression != (before == name and params.task.kind == "regression"):
        raise UserError(
            f"task.kind = {params.task.kind!r}, and model.init_from = {str(params.model.init_from)!r} was trained for "
            f"{'regression' if was_regression else 'classification'}; start from the model it was made from"
        )
    if before == name and data_of(params).labels is not None and labels is not None and config.id2label != labels:
        which = "the types of these" if params.task.kind == "token_classification" else "these"
        raise UserError(
            f"the labels of data are {_named(labels)}, and model.init_from = {str(params.model.init_from)!r} was trained for "
            f"{_named(config.id2label)}; set data.labels to {which}, in this order, or start from the model it was made from"
        )


def _named(labels: Mapping[Any, str] | None) -> str:
    names = [str(label) for label in (labels or {}).values()]
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def new_model(kind: str, config: PretrainedConfig) -> PreTrainedModel:
    """The model class of transformers that has the task's head, on torch's default device."""
    return HEADS[kind][type(config)]._from_config(config)


def is_decoder(config: PretrainedConfig) -> bool:
    """Whether it reads from left to right, so that the end of a text has seen all of it."""
    return type(config) in auto.MODEL_FOR_CAUSAL_LM_MAPPING and type(config) not in auto.MODEL_FOR_MASKED_LM_MAPPING


def inputs_of(model: PreTrainedModel, microbatch: Microbatch, device: torch.device) -> dict[str, Tensor]:
    """What the model's forward takes of a microbatch: (R, T) each."""
    inputs = {"input_ids": torch.from_numpy(microbatch.input_ids).to(device, non_blocking=True)}
    if microbatch.num_tokens < microbatch.num_slots:
        real = torch.from_numpy(microbatch.example_ids > 0).long()
        inputs["attention_mask"] = real.to(device, non_blocking=True)
    takes = inspect.signature(model.forward).parameters
    if "token_type_ids" in takes and getattr(model.config, "type_vocab_size", 0) > 1:
        inputs["token_type_ids"] = torch.from_numpy(microbatch.token_type_ids).to(device, non_blocking=True)
    return inputs


def labels_of(microbatch: Microbatch, device: torch.device) -> Tensor:
    return torch.from_numpy(microbatch.labels).to(device, non_blocking=True)
