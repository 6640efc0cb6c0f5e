"""The device and arithmetic of a run, and how much goes through the model at once."""

from dataclasses import dataclass

import torch
from transformers import PretrainedConfig

from headrace.errors import UserError
from headrace.params import Params
from headrace.planning.probe import has_fast_bf16
from headrace.progress import say

CPU_MICROBATCH_TOKENS = 4096


@dataclass(frozen=True)
class Precision:
    """Arithmetic of forward and backward: autocast to dtype, or None = fp32 throughout."""

    device: torch.device
    dtype: torch.dtype | None

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, self.dtype or torch.bfloat16, enabled=self.dtype is not None)

    def on_cpu(self) -> torch.autocast:
        """The same arithmetic for a model that is measured without its device (`headrace.planning.footprint`)."""
        return torch.autocast("cpu", self.dtype or torch.bfloat16, enabled=self.dtype is not None)

    @property
    def compute_dtype(self) -> torch.dtype:
        return self.dtype or torch.float32


def choose_precision(params: Params) -> Precision:
    """The device and arithmetic the params ask for; raises UserError when that device is not there."""
    kind, asked = params.device.kind, params.device.precision
    if kind == "cuda" and not torch.cuda.is_available():
        raise UserError("device.kind = 'cuda': no CUDA device is available here; use 'auto' or 'cpu'")
    if params.device.threads:
        torch.set_num_threads(params.device.threads)
    device = torch.device("cuda" if kind != "cpu" and torch.cuda.is_available() else "cpu")
    if device.type == "cpu":
        if asked == "fp16" or (asked == "bf16" and not has_fast_bf16(device)):
            say(f"device.precision = {asked}: this CPU has no fast {asked} arithmetic; computing in fp32")
            asked = "fp32"
        return Precision(device, torch.bfloat16 if asked == "bf16" else None)
    if asked == "auto":
        asked = "bf16" if has_fast_bf16(device) else "fp32"
    return Precision(device, {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": None}[asked])


def microbatch_tokens(params: Params, config: PretrainedConfig, precision: Precision) -> int:
    """Most token slots that go through the model at once."""
    if params.training.microbatch_tokens:
        return params.training.microbatch_tokens
    if precision.device.type == "cpu":
        return CPU_MICROBATCH_TOKENS
    # Activation bytes of a transformer layer with 16-bit arithmetic, attention scores aside, are about 34 a token and
    # hidden unit (Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198); doubled for scores, heads and fp32.
    # Measured on no GPU yet.
    free_bytes, _ = torch.cuda.mem_get_info()
    return max(512, int(0.6 * free_bytes / (2 * 34 * config.hidden_size * config.num_hidden_layers)))
