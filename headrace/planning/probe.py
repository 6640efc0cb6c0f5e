"""What the machine can do, measured."""

import time
from functools import cache

import torch

from headrace.params import Params
from headrace.planning.machine import ASSUMED, Machine


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


def probe(params: Params) -> Machine:
    """What the machine can do, without a measurement that takes seconds: GEMM, and what is assumed for the rest."""
    return ASSUMED
