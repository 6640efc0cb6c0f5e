"""What is kept of a segment's forward for its backward.

keep        the graph of the segment stays; weights saved in it are replaced by their place in the slab, and looked up in
            the slab that backward fetches, so nothing is computed twice
spill       as keep, with everything else that was saved written to a scratch file, read back in backward order
recompute   only the segment's input stays; backward runs the segment's forward again
at_once     for the segment that ends in the loss: its backward follows its forward, microbatch by microbatch, so nothing
            stays and its weights are fetched once
"""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

Policy = Literal["keep", "spill", "recompute", "at_once"]


@dataclass(frozen=True)
class WeightPlace:
    """Where in an owner's slab a saved weight, or a view of it, lies."""

    owner: int
    offset: int
    size: torch.Size
    stride: tuple[int, ...]


class Saved:
    """Tensors that autograd saved in segments, under the segments' policies."""

    def __init__(self) -> None:
        self._slabs: dict[int, dict[int, tuple[Tensor, Tensor]]] = {}

    def record(self, segment: int, microbatch: int, policy: Policy, slabs: dict[int, tuple[Tensor, Tensor]]) -> Any:
        """A context in which what autograd saves is taken over."""
        if policy == "at_once":
            return nullcontext()
        memories = {memory.untyped_storage().data_ptr(): owner for owner, (memory, _) in slabs.items()}

        def pack(tensor: Tensor) -> Any:
            owner = memories.get(tensor.untyped_storage().data_ptr())
            if owner is not None:
                return WeightPlace(owner, tensor.storage_offset(), tensor.size(), tensor.stride())
            return (
                tensor.detach()
            )  # not the tensor itself: a leaf's memory is taken away, an output would hold its graph

        def unpack(packed: Any) -> Tensor:
            if isinstance(packed, WeightPlace):
                slab = self._slabs[segment][packed.owner][1]
                return torch.as_strided(slab, packed.size, packed.stride, packed.offset)
            return packed

        return saved_tensors_hooks(pack, unpack)

    def weights(self, segment: int, slabs: dict[int, tuple[Tensor, Tensor]]) -> None:
        """Where weights are found while the segment's backward runs."""
        self._slabs[segment] = slabs

    def expect(self, segment: int, microbatch: int) -> None:
        """The backward of this microbatch is next."""

    def done(self, segment: int, microbatch: int) -> None:
        """The backward of this microbatch is over."""

    def clear(self) -> None:
        self._slabs.clear()
