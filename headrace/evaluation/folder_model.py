"""The model of a Hugging Face folder, opened to run forward only, within a budget.

    folder -> model without weights -> segments: as many at hand as fit, the others fetched whenever they run

The same segments, fetcher and stand-ins as in training, over a store that only reads.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from headrace.models.adapters import inject
from headrace.models.blank import fill_blanks
from headrace.models.folder import open_weights
from headrace.models.segments import Segment, segments_of
from headrace.planning.plan import INTERPRETER_BYTES
from headrace.store.files import pages
from headrace.store.folder import FolderStore
from headrace.store.placement import Placement
from headrace.streaming.activations import Policy, Saved
from headrace.streaming.executor import Pass, Streaming
from headrace.streaming.segment import install_segments


@dataclass(frozen=True)
class Placing:
    """Where each segment's weights are, and room for those that are fetched."""

    placements: tuple[Placement, ...]
    pool_bytes: int
    fetched_bytes: int
    """What a pass through the model reads."""


@dataclass(frozen=True)
class FolderModel:
    """`model` has stand-ins for its segments; `running` makes it run."""

    model: PreTrainedModel
    placing: Placing
    store: FolderStore
    streaming: Streaming

    @contextmanager
    def running(self) -> Iterator[PreTrainedModel]:
        """Around forward passes, without gradients: fetches ahead, again and again."""
        with torch.no_grad(), self.streaming.evaluating():
            yield self.model

    def close(self) -> None:
        """End the threads that fetch."""
        self.streaming.close()
        self.store.close()


def blank_model(make: Callable[[], PreTrainedModel], device: torch.device, adapter: Any = None) -> PreTrainedModel:
    """What make() makes, without weights, to be run and not trained. adapter: peft's config of one to put in."""
    with torch.device("meta"):
        model = make()
        if adapter is not None:
            inject(model, adapter)
    fill_blanks(model, device)
    return model.eval().requires_grad_(False)


def open_model(
    folder: Path,
    model: PreTrainedModel,
    placing: Placing,
    device: torch.device,
    *,
    run_by_task: Sequence[str] = (),
    autocast: Callable[[], Any] = nullcontext,
    memory_bytes: int | None = None,
) -> FolderModel:
    """Give a `blank_model` the folder's weights. run_by_task: the segment that the task runs itself. memory_bytes: of the
    whole process; near it, freed memory goes back to the system at once. Raises UserError where weights are missing."""
    weights = open_weights(folder, model, complete=True)
    weights.fill_buffers(model)
    segments = segments_of(model)
    store = FolderStore(segments, weights, device, placing.placements)
    names = [segment.name for segment in segments]
    policies: list[Policy] = ["keep"] * len(segments)  # of nothing: there is no backward
    streaming = Streaming(
        segments,
        store,
        Pass(0),
        Saved(),
        policies,
        placing.pool_bytes,
        host_pool_bytes=placing.pool_bytes,
        autocast=autocast,
        head=names.index(run_by_task[0]) if run_by_task else -1,
        tidy_above_bytes=memory_bytes + INTERPRETER_BYTES if memory_bytes is not None else None,
    )
    install_segments(model, segments, streaming, run_by_task)
    return FolderModel(model, placing, store, streaming)


def least_bytes(segments: Sequence[Segment]) -> int:
    """What weights take when nothing is at hand that need not be, and nothing is fetched ahead."""
    return _Fit(segments).needed_bytes(_as_little_as_can_be(segments), 0)


def place(segments: Sequence[Segment], memory_bytes: int | None, all_fetched: bool = False) -> Placing:
    """Everything at hand where that fits, else the largest segments that do, beside room to fetch the others: one while
    another runs, or one at a time. memory_bytes: for weights, `least_bytes` or more; None = no limit. all_fetched: leave
    nothing at hand that need not be."""
    fit = _Fit(segments)
    here: list[Placement] = ["device"] * len(segments)
    if memory_bytes is None or (fit.needed_bytes(here, 0) <= memory_bytes and not all_fetched):
        return Placing(tuple(here), 0, 0)
    placements = _as_little_as_can_be(segments)
    ahead = 1 if fit.needed_bytes(placements, 1) <= memory_bytes else 0
    assert fit.needed_bytes(placements, ahead) <= memory_bytes, f"{memory_bytes:,} bytes are too little"
    for i in sorted(range(len(segments)), key=lambda i: -fit.size_bytes[i]):
        if placements[i] == "disk" and not all_fetched:
            placements[i] = "device"
            if fit.needed_bytes(placements, ahead) > memory_bytes:
                placements[i] = "disk"
    fetched_bytes = sum(fit.size_bytes[j] for each in fit.uses for j in each if placements[j] == "disk")
    return Placing(tuple(placements), fit.pool_bytes(placements, ahead), fetched_bytes)


def _as_little_as_can_be(segments: Sequence[Segment]) -> list[Placement]:
    """Segments without weights of their own, or used between segments, stay at hand."""
    return ["disk" if segment.modules and segment.parameters else "device" for segment in segments]


class _Fit:
    """What placements take."""

    def __init__(self, segments: Sequence[Segment]):
        owner = {name: i for i, segment in enumerate(segments) for name in segment.parameters}
        self.size_bytes = [4 * sum(p.numel() for p in segment.parameters.values()) for segment in segments]
        self.uses = [{i, *(owner[name] for name in segment.borrowed)} for i, segment in enumerate(segments)]

    def fetches(self, placements: Sequence[Placement]) -> list[int]:
        """Room that each segment's fetch takes."""
        return [sum(pages(self.size_bytes[j]) for j in each if placements[j] == "disk") for each in self.uses]

    def pool_bytes(self, placements: Sequence[Placement], ahead: int) -> int:
        """Room for any 1 + ahead fetches."""
        return sum(sorted(self.fetches(placements), reverse=True)[: 1 + ahead])

    def needed_bytes(self, placements: Sequence[Placement], ahead: int) -> int:
        here = sum(pages(size) for size, place in zip(self.size_bytes, placements, strict=True) if place == "device")
        return here + self.pool_bytes(placements, ahead)
