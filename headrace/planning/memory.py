"""How much memory and disk a way of training takes: an upper bound of what tensors take at one time, by kind."""

from collections.abc import Sequence

import torch

from headrace.planning.footprint import Footprint
from headrace.planning.sizes import Choice, Sizes, Work, kept_bytes
from headrace.planning.traffic import bytes_moved
from headrace.store.disk import DEPTH
from headrace.store.files import pages
from headrace.store.gradients import gradient_room, ram_gradient_bytes
from headrace.store.placement import STAGING_BYTES
from headrace.streaming.activations import Policy

LOST_SHARE = 33  # 3 % of the rest: holes of the heap, workspaces of matrix products (measured: up to 0.17 of 6 GiB)


def memory_needed(sizes: Sizes, choice: Choice, work: Work) -> dict[str, int]:
    """Most bytes at one time, by kind, of the memory the device computes in."""
    on_device = [size for size, place in zip(sizes.sizes, choice.placements, strict=True) if place == "device"]
    fetched = [i for i, place in enumerate(choice.placements) if place != "device"]
    need = {
        "weights": sum(size.weight_bytes for size in on_device),
        "gradients": sum(size.gradient_bytes for size in on_device)
        + sum(sum(size.borrowed_bytes.values()) for size in sizes.sizes),
        "state": sum(size.state_bytes for size in on_device),
    }
    flush_bytes = 0
    if fetched:
        need["weights in flight"] = choice.pool_bytes
        room = gradient_room([sizes.sizes[i].gradient_bytes for i in fetched], sizes.eager)
        if sizes.apart(choice.placements):
            need["gradients in flight"] = room
        else:
            need["gradients in flight"] = choice.held_gradient_bytes + room
            need["state in flight"] = _ring_bytes(sizes, fetched)
            need["state read ahead"] = _staged_bytes(sizes, choice, work)
            flush_bytes = max(sizes.sizes[i].gradient_bytes for i in fetched) + 4096  # what trains
    if choice.spill_bytes:
        need["activations in flight"] = 2 * choice.spill_bytes  # a record, and what it is copied from
    need["activations"], need["temporaries"] = _activations(sizes, choice, work)
    need["temporaries"] = max(need["temporaries"], flush_bytes - need["activations"])
    need["lost between tensors"] = sum(need.values()) // LOST_SHARE
    return {kind: size for kind, size in need.items() if size}


def host_memory_needed(sizes: Sizes, choice: Choice) -> dict[str, int]:
    """Most bytes at one time, by kind, of host memory beside a device apart; what the process itself takes aside."""
    if not sizes.apart(choice.placements):
        return {}
    in_ram = [size for size, place in zip(sizes.sizes, choice.placements, strict=True) if place == "ram"]
    on_disk = [i for i, place in enumerate(choice.placements) if place == "disk"]
    need = {
        "weights": sum(pages(size.weight_bytes) for size in in_ram),
        "gradients": ram_gradient_bytes([size.gradient_bytes for size in in_ram], sizes.eager),
        "state": sum(size.state_bytes for size in in_ram),
        "activations": choice.spill_host_bytes,
        "activations in flight": choice.spill_bytes,
    }
    if on_disk:
        largest = max(sizes.sizes[i].gradient_bytes for i in on_disk) + 4096  # as large as what trains
        room = gradient_room([sizes.sizes[i].gradient_bytes for i in on_disk], sizes.eager)
        need["weights in flight"] = choice.host_pool_bytes + largest  # brought back for an eager update, or to flush
        need["gradients in flight"] = choice.held_gradient_bytes + room
        need["state in flight"] = _ring_bytes(sizes, on_disk)
        need["state read ahead"] = choice.stage_bytes
    return {kind: size for kind, size in need.items() if size}


def disk_needed(sizes: Sizes, choice: Choice, work: Work, snapshots: int) -> dict[str, int]:
    """Most bytes on disk at one time, with that many checkpoints kept (one more exists while it takes over)."""
    live = sum(s.stored_bytes for s, place in zip(sizes.sizes, choice.placements, strict=True) if place == "disk")
    changing = sum(size.changing_bytes for size in sizes.sizes)
    frozen = sum(size.stored_bytes - size.changing_bytes for size in sizes.sizes)
    moved = bytes_moved(sizes, choice, work)
    files = {
        "live state": live,
        "checkpoints": changing * (snapshots + 1) + frozen - live if snapshots else 0,  # the newest is linked with live
        "gradients": moved.written.get("gradient", 0),
        "activations": moved.written.get("activation", 0),
    }
    return {kind: size for kind, size in files.items() if size}


def _ring_bytes(sizes: Sizes, on_disk: Sequence[int]) -> int:
    ring: dict[str, int] = {}
    for i in on_disk:
        for name, size in sizes.sizes[i].ring_bytes.items():
            ring[name] = max(ring.get(name, 0), pages(size))
    depth = 1 if sizes.rule.needs_whole_parameter else DEPTH
    staging_bytes = 0 if sizes.rule.weight_dtype is torch.float32 else STAGING_BYTES
    return depth * sum(ring.values()) + staging_bytes


def _staged_bytes(sizes: Sizes, choice: Choice, work: Work) -> int:
    """What staged state takes beyond activations that are gone by then: all but those of the first fetched segments."""
    needs = sizes.needs(choice.placements)
    fetched = [i for i in range(len(needs)) if needs[i]]
    gone = range(fetched[2] + 1, len(needs)) if len(fetched) > 2 else ()
    return max(choice.stage_bytes - sum(sizes.activation_bytes(choice, work, i) for i in gone), 0)


def _activations(sizes: Sizes, choice: Choice, work: Work) -> tuple[int, int]:
    """Bytes that stay from forward to backward, and most bytes beyond that."""
    stay = stream = 0
    temporary = 0
    for footprint, _, count in sizes.pieces(work, choice.microbatch_tokens):
        count = count if choice.streams else 1  # or else microbatches go through the model one by one
        kept = footprint.between_saved_bytes
        kept += sum(kept_bytes(visit, choice.policies[visit.segment]) for visit in footprint.visits)
        moving = max((v.input_bytes + v.output_bytes for v in footprint.visits), default=0)
        stay, stream = (stay + count * kept, stream + count * moving) if choice.streams else (max(stay, kept), 0)
        most = max((_most_bytes(v, choice.policies[v.segment]) for v in footprint.visits), default=0)
        temporary = max(temporary, most, footprint.between_peak_bytes)
    return stay, stream + temporary


def _most_bytes(visit: Footprint, policy: Policy) -> int:
    if policy == "keep":
        return max(visit.forward_bytes - max(visit.saved_bytes - visit.input_bytes, 0), visit.backward_bytes)
    if policy == "spill":
        return max(visit.forward_bytes, visit.backward_bytes)
    return max(visit.plain_bytes, visit.whole_bytes)


def size_text(num_bytes: float, up: bool = False) -> str:
    """As people write it: 3.2 GiB. up: rounded so that the number suffices."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if num_bytes >= size:
            value = num_bytes / size
            digits = 0 if value >= 100 else 1 if value >= 10 else 2
            if up:
                value += 0.5 * 10**-digits
            return f"{value:,.{digits}f} {unit}"
    return f"{num_bytes:,.0f} bytes"
