"""How much of an evaluation is in memory at once.

Where weights are fetched, microbatches go through the model together (`headrace.streaming.lockstep`), so that one fetch
serves them all. Without gradients nothing stays behind, but each waiting microbatch holds what it takes from segment to
segment: that, as measured (`headrace.planning.footprint`), bounds how many may go.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from transformers import PretrainedConfig

from headrace.errors import UserError
from headrace.evaluation.folder_model import Placing, blank_model, least_bytes, place
from headrace.models.segments import Segment
from headrace.params import Params
from headrace.planning.device import Precision
from headrace.planning.footprint import ModelFootprint, measure
from headrace.planning.plan import Plan
from headrace.planning.run import full_microbatch, has_mask
from headrace.tasks import task_of

BATCH_EXAMPLES = 256
"""Examples that are sorted by length and cut into microbatches together."""

Footprints = Callable[[int], ModelFootprint]
"""Examples of a microbatch -> its footprint."""


@dataclass(frozen=True)
class Room:
    microbatch_tokens: int
    """Most token slots of a microbatch."""
    lanes: int
    """Most microbatches that go through the model together."""


def footprints(
    params: Params, config: PretrainedConfig, precision: Precision, length: int, adapter: Any = None
) -> Footprints:
    """What microbatches of examples of this length take. adapter: peft's config of one that the model has."""
    task = task_of(params)
    # With gradients, by which a footprint tells what goes from segment to segment from masks that all share.
    model = blank_model(lambda: task.new_model(config), precision.device, adapter).requires_grad_()
    return cache(
        lambda examples: measure(
            model,
            full_microbatch(params, task, config, examples, length),
            precision.on_cpu,
            task.HEAD,
            masked=has_mask(params),
        )
    )


def forward_bytes(footprint: ModelFootprint, lanes: int) -> int:
    """Most memory that microbatches take on their way through the model without gradients, weights aside."""
    moving = max((visit.input_bytes + visit.output_bytes for visit in footprint.visits), default=0)
    running = max([visit.plain_bytes for visit in footprint.visits] + [footprint.between_peak_bytes])
    return lanes * (footprint.between_saved_bytes + moving) + running


def room_beside(plan: Plan, footprint_of: Footprints, length: int) -> Room:
    """What fits where training's own activations lie, between its steps."""
    needed = plan.needed_bytes
    activations = needed.get("activations", 0) + needed.get("temporaries", 0)
    free_bytes = activations + (plan.memory_bytes - sum(needed.values()) if plan.memory_bytes is not None else 0)
    rooms = list(_rooms(plan.microbatch_tokens, footprint_of, length))
    return next((room for room, taken_bytes in rooms if taken_bytes <= free_bytes), rooms[-1][0])


def place_and_room(
    segments: Sequence[Segment],
    memory_bytes: int,
    tokens: int,
    footprint_of: Footprints,
    length: int,
    all_fetched: bool = False,
) -> tuple[Placing, Room]:
    """Divide memory between weights at hand and microbatches that share a fetch, so that the fewest bytes are read.

    tokens: of a microbatch, at the most. all_fetched: leave no weights at hand that need not be. Raises UserError when not
    even one example and one segment fit."""
    ways: list[tuple[float, int, Placing, Room]] = []
    for room, taken_bytes in _rooms(tokens, footprint_of, length):
        if ways and room.microbatch_tokens < ways[0][3].microbatch_tokens:
            break
        if memory_bytes - taken_bytes >= least_bytes(segments):
            placing = place(segments, memory_bytes - taken_bytes, all_fetched)
            ways.append((placing.fetched_bytes / room.lanes, room.lanes, placing, room))
    if not ways:
        least = forward_bytes(footprint_of(1), 1) + least_bytes(segments)
        raise UserError(
            f"device.memory = {memory_bytes:,} bytes is too little to evaluate this model: its largest part and one example "
            f"of {length:,} tokens take {least:,}"
        )
    _, _, placing, room = min(ways, key=lambda way: way[:2])
    return placing, room


def _rooms(tokens: int, footprint_of: Footprints, length: int) -> Iterator[tuple[Room, int]]:
    """Rooms and what they take, from the largest to one example at a time: fewer microbatches together first, then
    smaller ones."""
    while True:
        footprint = footprint_of(max(1, tokens // length))
        lanes = -(-BATCH_EXAMPLES * length // max(tokens, length))
        while lanes:
            yield Room(tokens, lanes), forward_bytes(footprint, lanes)
            lanes //= 2
        if tokens <= length:
            return
        tokens = max(tokens // 2, length)
