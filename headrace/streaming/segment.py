"""The visible stand-in for one segment of a model."""

from collections.abc import Sequence
from typing import Any

from torch import nn

from headrace.models.segments import Segment
from headrace.streaming.executor import Streaming


class StreamedSegment(nn.Module):
    """Runs `block`, the module it replaced, when its weights are there."""

    def __init__(self, block: nn.Module, index: int, streaming: Streaming):
        super().__init__()
        self.block, self.index, self.streaming = block, index, streaming
        # Some models ask their blocks what kind they are (attention_type, layer_idx).
        for name, value in vars(block).items():
            if not name.startswith("_") and name != "training" and isinstance(value, str | int | float | bool):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.streaming.run(self.index, self.block, args, kwargs, self.training)


def install_segments(
    model: nn.Module, segments: Sequence[Segment], streaming: Streaming, run_by_task: Sequence[str] = ()
) -> None:
    """Replace the modules of every segment by stand-ins, but for segments that the task runs itself (`Streaming.run`)."""
    for index, segment in enumerate(segments):
        if segment.name not in run_by_task:
            for path in segment.modules:
                model.set_submodule(path, StreamedSegment(model.get_submodule(path), index, streaming))
