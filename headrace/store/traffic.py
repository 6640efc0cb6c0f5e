"""Bytes moved between memory and disk, and between host memory and a device apart, counted where they move: by segment and
by what they are."""

import threading
from collections.abc import Iterable, Mapping


class SegmentTraffic:
    """Bytes of one segment by kind (weight, gradient, state, activation): read from disk and written to it, sent to the device
    and brought back."""

    def __init__(self) -> None:
        self.read: dict[str, int] = {}
        self.written: dict[str, int] = {}
        self.sent: dict[str, int] = {}
        self.brought: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, kind: str, num_bytes: int, written: bool) -> None:
        self._count(self.written if written else self.read, kind, num_bytes)

    def add_link(self, kind: str, num_bytes: int, sent: bool) -> None:
        self._count(self.sent if sent else self.brought, kind, num_bytes)

    def _count(self, counts: dict[str, int], kind: str, num_bytes: int) -> None:
        with self._lock:
            counts[kind] = counts.get(kind, 0) + num_bytes


class Traffic:
    """Bytes of all segments, in model order; what is read and written altogether is their sum."""

    def __init__(self, num_segments: int):
        self.segments = [SegmentTraffic() for _ in range(num_segments)]

    @property
    def read(self) -> dict[str, int]:
        return sum_by_kind(dict(segment.read) for segment in self.segments)

    @property
    def written(self) -> dict[str, int]:
        return sum_by_kind(dict(segment.written) for segment in self.segments)

    @property
    def sent(self) -> dict[str, int]:
        return sum_by_kind(dict(segment.sent) for segment in self.segments)

    @property
    def brought(self) -> dict[str, int]:
        return sum_by_kind(dict(segment.brought) for segment in self.segments)


def sum_by_kind(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for each in counts:
        for kind, size in each.items():
            total[kind] = total.get(kind, 0) + size
    return total
