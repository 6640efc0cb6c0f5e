"""Microbatches in lock step through a model that knows nothing of it.

The model's own forward runs once a microbatch, each run in a lane of its own. A lane that comes to a segment waits; when
all have come, the segment runs for all of them at once, so that its weights are fetched once:

    lane 0   embed ─┐          ┌─ glue ─┐          ┌─ ...
    lane 1   embed ─┼─ block 0 ┼─ glue ─┼─ block 1 ┼─ ...
    lane 2   embed ─┘          └─ glue ─┘          └─ ...

Lanes are greenlets: they take turns on one thread, in the order of their numbers, so there is nothing to lock and every
random number is drawn in a known order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

T = TypeVar("T")


@dataclass(frozen=True)
class Arrival:
    """A lane waits at `place` with what it brings."""

    place: int
    brought: Any


class _Lane(greenlet):
    number: int


def lane_number() -> int | None:
    """Number of the lane that is running; None outside of lanes."""
    current = getcurrent()
    return current.number if isinstance(current, _Lane) else None


def meet(place: int, brought: Any, together: Callable[[int, list[Any]], list[Any]]) -> Any:
    """Wait at `place` until every lane is there; `together(place, [what lane 0 brought, ...])` gives each its result.
    Outside of lanes it runs at once."""
    current = getcurrent()
    if not isinstance(current, _Lane):
        return together(place, [brought])[0]
    assert current.parent is not None
    return current.parent.switch(Arrival(place, brought))


def run_in_lanes(functions: Sequence[Callable[[], T]], together: Callable[[int, list[Any]], list[Any]]) -> list[T]:
    """Run the functions as lanes and return what they return. Raises what a lane raises; the others end there.

    Raises RuntimeError when lanes come to different places: they must go through the model the same way.
    """
    lanes = []
    for number, function in enumerate(functions):
        lane = _Lane(function)
        lane.number = number
        lanes.append(lane)
    try:
        waiting = [lane.switch() for lane in lanes]
        while not lanes[0].dead:
            places = {item.place if not lane.dead else None for lane, item in zip(lanes, waiting, strict=True)}
            if len(places) > 1:
                raise RuntimeError(f"microbatches went through the model in different ways: to segments {places}")
            results = together(waiting[0].place, [item.brought for item in waiting])
            waiting = [lane.switch(result) for lane, result in zip(lanes, results, strict=True)]
        if not all(lane.dead for lane in lanes):
            raise RuntimeError("microbatches went through the model in different ways: some ended before the others")
        return waiting
    finally:
        for lane in lanes:
            if lane and not lane.dead:
                lane.throw()  # GreenletExit: ends the lane
