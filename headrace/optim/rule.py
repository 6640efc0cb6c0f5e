"""What every update rule has: the state it needs for a parameter, and one call that updates in place.

    rule.update(weight, gradient, *state, step=, lr=, weight_decay=, gradient_scale=, keys=)

`state` is one argument for each role of `state_of`, in its order. Each argument is one tensor, or a list with one view
for each parameter; a rule owns none of them and remembers nothing, so the state is wherever the store keeps it.
All state starts as zeros, but for the role that `lower_half` names.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

Slab = Tensor | Sequence[Tensor]

TILE_ELEMENTS = {"cpu": 7 << 12, "cuda": 1 << 22}
"""Elements to compute at once. CPU: few enough that torch uses one thread (its limit is 32,768) and temporaries stay in
the cache. A rule's many short operations gain nothing from a second thread, and would wait for it each time: a
thread that is busy with the model's forward or backward pass costs them milliseconds. CUDA: worth a launch."""


class Rule(ABC):
    """A frozen dataclass of constants with these members."""

    lower_half: ClassVar[str | None] = None
    """The role that holds what weights of weight_dtype have no room for (`split.py`); None: they are all there is."""

    @property
    @abstractmethod
    def exact(self) -> bool:
        """Whether weights and moments are kept in fp32, so that only the rule's own arithmetic decides the result."""

    @property
    @abstractmethod
    def needs_whole_parameter(self) -> bool:
        """Whether an element's update depends on elements that may be far away: no cuts, and views have its shape."""

    @property
    @abstractmethod
    def cut_elements(self) -> int:
        """A parameter may be cut at multiples of this from its start without changing a bit of the result.

        The state of its first n elements is then the first `state_of((n,))` of each role. 0 where no cut is allowed.
        """

    @property
    @abstractmethod
    def weight_dtype(self) -> torch.dtype:
        """Of the weights it updates; gradients are always fp32."""

    @property
    @abstractmethod
    def weight_decay(self) -> float:
        """Share of a weight that lr = 1 would take from it in a step."""

    @abstractmethod
    def state_of(self, shape: Sequence[int]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of each state tensor of a parameter of this shape; the roles are the same for all shapes."""

    @abstractmethod
    def compute(
        self,
        weights: list[Tensor],
        gradients: list[Tensor],
        *state: list[Tensor],
        step: int,
        lr: float,
        weight_decay: float,
        keys: Sequence[int] | None,
    ) -> None:
        """The arithmetic of `update`, on at least one piece; pieces fit each other, gradients are scaled."""

    @torch.no_grad()
    def update(
        self,
        weight: Slab,
        gradient: Slab,
        *state: Slab,
        step: int,
        lr: float,
        weight_decay: float | None = None,
        gradient_scale: float | Tensor = 1.0,
        keys: Sequence[int] | None = None,
    ) -> None:
        """One update, in place. Gradients are left multiplied by gradient_scale.

        step counts from 1 (moments are zero before it). weight_decay replaces the rule's own: 0.0 for biases and norms.
        gradient_scale multiplies the gradient first: the clip coefficient, over the loss scale. As a Tensor () it may
        stay on the device, which saves a wait for it. keys: the `parameter_key` of each weight, for rules that round at
        random.
        """
        assert step >= 1, f"step = {step}: counts from 1"
        slabs = [pieces_of(slab) for slab in (weight, gradient, *state)]
        for pieces in zip(*slabs, strict=True):
            self._check(*pieces)
        assert keys is None or len(keys) == len(slabs[0]), f"{len(keys)} keys for {len(slabs[0])} weights"
        if not slabs[0]:
            return
        # A kernel's own scale divides (torch's fused AdamW): by 1 / coefficient that is not the bits of torch's clipping,
        # which multiplies. The extra pass over the gradient adds about a quarter to AdamW's time.
        if isinstance(gradient_scale, Tensor) or gradient_scale != 1.0:
            torch._foreach_mul_(slabs[1], gradient_scale)  # pyright: ignore[reportPrivateImportUsage]
        decay = self.weight_decay if weight_decay is None else weight_decay
        self.compute(*slabs, step=step, lr=lr, weight_decay=decay, keys=keys)

    def _check(self, weight: Tensor, *others: Tensor) -> None:
        """Kernels read pieces as plain arrays of the first one's length and type: a wrong one corrupts memory."""
        found = [(t.numel(), t.dtype, t.device, t.is_contiguous()) for t in (weight, *others)]
        wanted = [(weight.numel(), self.weight_dtype), (weight.numel(), torch.float32)]
        wanted += [(shape.numel(), dtype) for shape, dtype in self.state_of(weight.shape).values()]
        assert found == [(size, dtype, weight.device, True) for size, dtype in wanted], (
            f"{found}, {wanted}, contiguous, expected for {type(self).__name__} of a weight {tuple(weight.shape)}"
        )


def pieces_of(slab: Slab) -> list[Tensor]:
    return [slab] if isinstance(slab, Tensor) else list(slab)


def tiles(size: int, device: torch.device, elements: Mapping[str, int] = TILE_ELEMENTS) -> Iterator[slice]:
    """[0, size) in slices of so many elements; the last may be shorter."""
    step = elements[device.type]
    return (slice(start, min(start + step, size)) for start in range(0, size, step))
