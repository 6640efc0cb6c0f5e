"""What each segment takes of the thread that computes."""

import time
from collections.abc import Callable


class Clock:
    """Seconds by segment since the start, read between laps. Waiting is part of no forward and no backward."""

    def __init__(self, num_segments: int, waited_s: Callable[[], float]):
        """waited_s: how long the thread has waited so far: for weights, for spilled activations, for room."""
        self.forward_s = [0.0] * num_segments
        self.backward_s = [0.0] * num_segments
        """What is computed again is in it."""
        self.wait_s = [0.0] * num_segments
        self._waited_s = waited_s
        self._began_s = self._had_waited_s = 0.0

    def start(self) -> None:
        self._began_s, self._had_waited_s = time.perf_counter(), self._waited_s()

    def forward(self, i: int) -> None:
        """What passed since the last lap, or `start`, was segment i's forward."""
        self._lap(i, self.forward_s)

    def backward(self, i: int) -> None:
        """As `forward`."""
        self._lap(i, self.backward_s)

    def _lap(self, i: int, seconds: list[float]) -> None:
        began_s, had_waited_s = self._began_s, self._had_waited_s
        self.start()
        waited_s = self._had_waited_s - had_waited_s
        self.wait_s[i] += waited_s
        seconds[i] += self._began_s - began_s - waited_s
