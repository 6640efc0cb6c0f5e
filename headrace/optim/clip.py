"""Clipping by the global norm of all gradients (Pascanu et al. 2013, https://arxiv.org/abs/1211.5063).

Enters: gradients, one view for each parameter in the model's parameter order; max_norm.
Leaves: their L2 norm, a Tensor (), and the coefficient to multiply them by. Nothing is scaled here: `AdamW.update`
does that, when the slab is in memory anyway.

The norm is the norm of the parameters' norms, in order: the bits of `torch.nn.utils.get_total_norm`. Segments whose
gradients are not in memory together keep their `tensor_norms` (4 bytes a parameter) and join them in the end.
On CUDA, start each view at a multiple of 16 bytes: where the kernel cannot load 4 floats at once, it may sum in another
order (not measured).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def tensor_norms(gradients: Sequence[Tensor]) -> list[Tensor]:
    """The L2 norm of each gradient, Tensors () on its device."""
    return list(torch._foreach_norm(list(gradients), 2.0)) if gradients else []  # pyright: ignore[reportPrivateImportUsage]


@torch.no_grad()
def join_norms(norms: Sequence[Tensor]) -> Tensor:
    """The L2 norm, a Tensor (), of everything whose parts have these norms; they must come in parameter order."""
    return torch.linalg.vector_norm(torch.stack(list(norms)), 2.0) if norms else torch.tensor(0.0)


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The L2 norm, a Tensor (), of all gradients as one vector; not finite when any element is not."""
    return join_norms(tensor_norms(gradients))


def clip_coefficient(norm: Tensor, max_norm: float | None) -> float | Tensor:
    """min(1, max_norm / (norm + 1e-6)), a Tensor () beside norm; 1.0 when max_norm is None or 0 (no clipping).

    norm is that of true gradients: divide it by the loss scale first. A norm that is not finite must not get here; the
    coefficient would be 0 or NaN.
    """
    if not max_norm:
        return 1.0
    assert max_norm > 0.0, f"max_norm = {max_norm}"
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)
