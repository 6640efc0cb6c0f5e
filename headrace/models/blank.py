"""Models without weights: true shapes, no memory."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


def placeholder(shape: torch.Size, device: torch.device | None = None) -> Tensor:
    """A tensor of this shape in the memory of one number: a parameter whose weights are not here. device None: the CPU."""
    return torch.zeros((), device=device).expand(shape)


def fill_blanks(model: nn.Module, device: torch.device) -> None:
    """Replace what is on `meta`: parameters by placeholders, buffers (rotary tables, masks) by real ones."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            if parameter.is_meta:
                fresh = nn.Parameter(placeholder(parameter.shape, device), parameter.requires_grad)
                setattr(module, name, made.setdefault(id(parameter), fresh))
        buffers = dict(module.named_buffers(recurse=False))
        for name, buffer in buffers.items():
            if buffer.is_meta:
                persistent = name not in module._non_persistent_buffers_set
                module.register_buffer(name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device), persistent)
        if buffers and isinstance(model, PreTrainedModel):
            with torch.device(device):
                model._init_weights(module)  # transformers computes buffers there, and only there, for models on meta
