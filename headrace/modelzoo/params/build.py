"""A translation's model: its transformers class, and how many parameters train."""

import torch
import transformers
from transformers import PreTrainedModel

from headrace.models.build import model_config
from headrace.modelzoo.params.translate import Translation
from headrace.tasks import task_of


def new_model(translation: Translation) -> PreTrainedModel:
    """The model on torch's default device, what no loss depends on frozen. Raises UserError as the task does."""
    params, head = translation.params, translation.fine_tuning
    if head is None:
        task = task_of(params)
        model = task.new_model(task.config(params, None))
        task.freeze_unused(model, params)
        return model
    config = model_config(params.model)
    config.num_labels = head.num_labels
    config.problem_type = head.problem_type  # pyright: ignore[reportAttributeAccessIssue]
    model = getattr(transformers, head.model_class)(config)
    if config.type_vocab_size == 1:
        segments = model.bert.embeddings.token_type_embeddings
        segments.padding_idx = 0
        segments.requires_grad_(False)
    return model


def num_trainable(translation: Translation) -> int:
    """Parameters that train, tied ones once; nothing is allocated."""
    with torch.device("meta"):
        model = new_model(translation)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
