"""Headrace trains language models on one device, however small its memory, from raw text to an evaluated model."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.lora_params import LoraParams as LoraParams
    from headrace.training.optimizers import SGD as SGD
    from headrace.training.optimizers import Adafactor as Adafactor
    from headrace.training.optimizers import AdamW as AdamW
    from headrace.training.optimizers import AdamW8bit as AdamW8bit
    from headrace.training.optimizers import Optimizer as Optimizer
    from headrace.training.stream import stream as stream
    from headrace.training.streamed_model import StreamedModel as StreamedModel

_HOME = {
    "LoraParams": "headrace.lora_params",
    "stream": "headrace.training.stream",
    "StreamedModel": "headrace.training.streamed_model",
    **dict.fromkeys(("AdamW", "AdamW8bit", "Adafactor", "SGD", "Optimizer"), "headrace.training.optimizers"),
}
__all__ = ["SGD", "Adafactor", "AdamW", "AdamW8bit", "LoraParams", "Optimizer", "StreamedModel", "stream"]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are used: `headrace --help` need not wait for torch."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'headrace' has no attribute {name!r}")
