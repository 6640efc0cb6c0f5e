"""Where each segment's state is: the tiers, and the segments' states made there.

device    weights, gradients, state    what computes, and slabs of segments that are fetched
ram       weights, gradients, state    of a device apart from it: a GPU, or on a CPU its twin (`store.transfer`)
disk      weights, state               gradients held in host memory, or spilled
"""

import fcntl
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import torch

from headrace.errors import UserError
from headrace.models.segments import Segment
from headrace.optim.rule import Rule
from headrace.store.device import DeviceSegment
from headrace.store.disk import DEPTH, DiskSegment, Ring
from headrace.store.layout import Layout
from headrace.store.ram import RamSegment
from headrace.store.traffic import Traffic
from headrace.store.transfer import Transfer

Placement = Literal["device", "ram", "disk"]
SegmentState = DeviceSegment | RamSegment | DiskSegment
STAGING_BYTES = 16 << 20


def apart(device: torch.device, placements: Sequence[Placement]) -> bool:
    """Whether what is fetched goes through host memory to a device apart from it. On a CPU the two are one, unless a segment
    is placed in `ram`: then the device is a second set of slabs, as the twin of a GPU."""
    return any(place != "device" for place in placements) and (device.type != "cpu" or "ram" in placements)


def weight_file(i: int, count: int, trains: bool = True) -> str:
    """The name of the file of segment i's weights, of so many segments: as Hugging Face numbers shards. trains: of those
    that train, or else of the frozen ones."""
    return f"model-{i + 1:05d}-of-{count:05d}{'' if trains else '-frozen'}.safetensors"


def make_states(
    segments: Sequence[Segment],
    layouts: Sequence[Layout],
    placements: Sequence[Placement],
    rule: Rule,
    device: torch.device,
    transfer: Transfer | None,
    folder: Path | None,
    threads: ThreadPoolExecutor,
    traffic: Traffic,
) -> list[SegmentState]:
    """Each segment's state on its tier. Those on the device take over the weights the segment has, the others get theirs
    later. folder: of files; what a killed run left half written there is deleted."""
    states: list[SegmentState] = []
    for i, (segment, layout, placement) in enumerate(zip(segments, layouts, placements, strict=True)):
        if placement == "device":
            states.append(DeviceSegment(segment, layout, rule, device))
            continue
        if placement == "ram":
            assert transfer is not None
            states.append(RamSegment(layout, rule, transfer))
            continue
        assert folder is not None
        live = folder / "live"
        (live / "optimizer").mkdir(parents=True, exist_ok=True)
        (folder / "scratch").mkdir(exist_ok=True)
        weights, frozen = (live / weight_file(i, len(layouts), trains) for trains in (True, False))
        number = f"{i:03d}-{layout.segment}"
        state, scratch = live / "optimizer" / number, folder / "scratch" / f"{number}.gradient.safetensors"
        states.append(DiskSegment(layout, rule, weights, frozen, state, scratch, threads, traffic.segments[i]))
    return states


def make_ring(states: Sequence[SegmentState], rule: Rule) -> Ring:
    """One ring for all segments on disk, as large as the largest needs."""
    need: dict[str, int] = {}
    for state in states:
        for name, size in state.ring_bytes().items() if isinstance(state, DiskSegment) else ():
            need[name] = max(need.get(name, 0), size)
    staging_bytes = 0 if rule.weight_dtype is torch.float32 else STAGING_BYTES
    return Ring(need, 1 if rule.needs_whole_parameter else DEPTH, staging_bytes)


def take_folder(folder: Path) -> int:
    """Hold the folder for this process, as long as the handle that is returned is open, and delete what a killed one left
    half written; raises UserError when another process holds it."""
    handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise UserError(
            f"{folder}: another process keeps its state here; wait for it, or choose another store"
        ) from None
    for left_over in [*(folder / "live").rglob("*.new"), *(folder / "scratch").iterdir()]:
        left_over.unlink()
    return handle
