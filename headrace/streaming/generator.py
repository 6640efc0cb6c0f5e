"""The state of torch's random generators that a model on a device draws from: the CPU's, and the device's own."""

import torch
from torch import Tensor

RandomState = tuple[Tensor, Tensor | None]


def random_state(device: torch.device) -> RandomState:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


def set_random_state(state: RandomState, device: torch.device) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], device)


def seed_generators(seed: int, device: torch.device) -> None:
    """The draws of `torch.manual_seed`, from these generators alone: for each kind of device that is not there it formats a
    stack trace, over 0.1 ms a call."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].manual_seed(seed)
