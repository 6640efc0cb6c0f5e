"""The visible stand-in for one segment of a model: every pass through a segment goes through here.

With everything resident on the device there is nothing to fetch; what remains is dropout, which draws from
(seed, step, segment, microbatch), so that its numbers do not depend on the order or place in which segments run.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headrace.models.segments import Segment
from headrace.text.random import key


@dataclass
class Pass:
    """Which pass through the model is running; the training step moves it, segments read it."""

    seed: int
    step: int = 0
    microbatch: int = 0


class StreamedSegment(nn.Module):
    """Runs `block`, the module it replaced, under the dropout seed of this pass."""

    def __init__(self, block: nn.Module, index: int, running: Pass):
        super().__init__()
        self.block, self.index, self.running = block, index, running

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            torch.manual_seed(key("dropout", self.running.seed, self.running.step, self.index, self.running.microbatch))
        return self.block(*args, **kwargs)


def install_segments(model: nn.Module, segments: list[Segment], running: Pass) -> None:
    """Replace the embeddings and blocks of the model by stand-ins. The head has no dropout and runs as it is."""
    for index, segment in enumerate(segments):
        if len(segment.modules) == 1:
            path = segment.modules[0]
            model.set_submodule(path, StreamedSegment(model.get_submodule(path), index, running))
