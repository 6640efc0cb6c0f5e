"""What the machine can do, measured."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from headrace.errors import UserError
from headrace.optim.rule import Rule
from headrace.planning.machine import Machine
from headrace.store.files import SlabFile, aligned, header_of
from headrace.store.layout import Entry
from headrace.store.store import IO_THREADS
from headrace.store.transfer import transfer_to
from headrace.text.tokens import write_atomically

if TYPE_CHECKING:
    from headrace.planning.device import Precision

DISK_BYTES = 1 << 30
WIDTH = 1024
PIECE_BYTES = 4 << 20
PROBE_VERSION = 2
"""Of what is measured, and how: other versions' figures are not taken."""


@cache
def measured_gemm_flops(device_type: str, dtype: torch.dtype, size: int = 2048) -> float:
    """Floating-point operations per second of a large square matrix product: the best of a few, in this process.

    The yardstick for training speed where no data sheet applies; about a second, measured once.
    """
    device = torch.device(device_type)
    a, b = torch.randn(size, size, device=device, dtype=dtype), torch.randn(size, size, device=device, dtype=dtype)
    out = torch.empty_like(a)
    best_s = float("inf")
    for _ in range(6):
        started_s = time.perf_counter()
        torch.mm(a, b, out=out)
        if device.type == "cuda":
            torch.cuda.synchronize()
        best_s = min(best_s, time.perf_counter() - started_s)
    return 2 * size**3 / best_s


def has_fast_bf16(device: torch.device) -> bool:
    """Whether bf16 matrix products are worth using: on CPUs without bf16 instructions they are hundreds of times slower."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()  # pyright: ignore


def probe(
    folder: Path, rule: Rule, precision: "Precision", disk_bytes: int = DISK_BYTES, width: int = WIDTH
) -> Machine:
    """Measure what training here reaches, with its disk state in `folder`: about ten seconds for a file of disk_bytes and
    a transformer block of that width. Raises UserError when the folder cannot be written to."""
    began_s = time.process_time()
    read, write = disk_rates(folder, disk_bytes)
    transfer_cpu_s = time.process_time() - began_s
    return Machine(
        flops=training_flops_rate(precision, width),
        read_bytes_per_s=read,
        write_bytes_per_s=write,
        update_parameters_per_s=update_rate(rule),
        transfer_cpu_s_per_byte=transfer_cpu_s / (2 * disk_bytes),
        cores=os.cpu_count() or 1,
        measured=True,
        link_bytes_per_s=link_rate(precision.device) if precision.device.type == "cuda" else Machine.link_bytes_per_s,
    )


def cached_machine(folder: Path, rule: Rule, precision: "Precision") -> Machine | None:
    """What was measured here before, for this folder's disk and this rule."""
    try:
        return Machine(**json.loads(_cache_file().read_text("utf-8"))[_key(folder, rule, precision)])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def cache_machine(machine: Machine, folder: Path, rule: Rule, precision: "Precision") -> None:
    """Keep it for later runs; a cache folder that cannot be written to is no reason to stop."""
    file = _cache_file()
    try:
        known = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(known | {_key(folder, rule, precision): asdict(machine)}, indent=1).encode())
    except (OSError, ValueError):
        return


def training_flops_rate(precision: "Precision", width: int = WIDTH, tokens: int = 512) -> float:
    """Floating-point operations a second in forward and backward of a transformer block, matrix products counted: what
    norms, softmax and activations cost is in it. Median of a few."""
    device = precision.device
    block = torch.nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True, device=device)
    x = torch.randn(2, tokens // 2, width, device=device, requires_grad=True)
    times = []
    for _ in range(6):
        started_s = time.perf_counter()
        with precision.autocast():
            y = block(x)
        y.float().sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started_s)
    flops = 6.0 * 12 * width**2 * tokens + 12.0 * width * tokens * tokens / 2
    return flops / statistics.median(times[1:])


def disk_rates(folder: Path, num_bytes: int) -> tuple[float, float]:
    """Bytes read and written a second in `folder`, for a file of num_bytes, the way the store moves them: direct, from a few
    threads."""
    path = folder / ".probe.safetensors"
    pieces = range(0, num_bytes, PIECE_BYTES)
    header = header_of([Entry("probe", torch.Size([num_bytes // 4]), 0, False)], torch.float32)
    buffers = [aligned(PIECE_BYTES) for _ in range(IO_THREADS)]
    for buffer in buffers:
        buffer.random_()  # some disks compress
    created = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with ThreadPoolExecutor(IO_THREADS) as threads, SlabFile.create(path, header, num_bytes) as file:

            def rate(move: Callable[[int, torch.Tensor], None]) -> float:
                started_s = time.perf_counter()
                list(threads.map(lambda k: move(pieces[k], buffers[k % IO_THREADS]), range(len(pieces))))
                return num_bytes / (time.perf_counter() - started_s)

            write = rate(file.write)
            return rate(file.read), write
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}); make room, or choose another folder") from None
    finally:
        path.unlink(missing_ok=True)
        if created:
            folder.rmdir()


def link_rate(device: torch.device, num_bytes: int = 256 << 20) -> float:
    """Bytes a second between host memory and a device apart, in the slower direction: the median of a few copies, the way
    the store makes them. On a GPU it has never run."""
    transfer = transfer_to(device)
    host, there = transfer.host_memory(num_bytes), transfer.device_memory(num_bytes)
    rates = []
    for copy in (lambda: transfer.send(host, there), lambda: transfer.bring(there, host)):
        times = []
        for _ in range(6):
            started_s = time.perf_counter()
            transfer.wait(copy())
            times.append(time.perf_counter() - started_s)
        rates.append(num_bytes / statistics.median(times[1:]))
    transfer.close()
    return min(rates)


def update_rate(rule: Rule, num_parameters: int = 1 << 25) -> float:
    """Parameters a second that the rule updates on the thread that fetches. So many parameters that no cache holds them:
    8 million, 32 MB of gradient, still lay in the last level's."""
    side = int(num_parameters**0.5)

    def measure() -> float:
        weight = torch.zeros(side, side, dtype=rule.weight_dtype)
        gradient = torch.randn(side, side)
        state = [torch.zeros(shape, dtype=dtype) for shape, dtype in rule.state_of(weight.shape).values()]
        flat = [[t if rule.needs_whole_parameter else t.view(-1)] for t in (weight, gradient, *state)]
        times = []
        for step in range(1, 6):
            started_s = time.perf_counter()
            rule.update(*flat, step=step, lr=1e-6, gradient_scale=0.5, keys=[1])
            times.append(time.perf_counter() - started_s)
        return side * side / statistics.median(times[1:])

    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as thread:
        return thread.submit(measure).result()


def _cache_file() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace" / "machine.json"


def _key(folder: Path, rule: Rule, precision: "Precision") -> str:
    place = folder
    while not place.exists():
        place = place.parent
    parts = (
        PROBE_VERSION,
        platform.node(),
        os.cpu_count(),
        torch.get_num_threads(),
        torch.__version__,
        place.stat().st_dev,
    )
    return " ".join(map(str, (*parts, type(rule).__name__, precision.device.type, precision.compute_dtype)))
