"""What every update rule has: the state it needs for a parameter, and one call that updates in place.

    rule.update(weight, gradient, *state, step=, lr=, weight_decay=, gradient_scale=, keys=)

`state` is one argument for each role of `state_of`, in its order. Each argument is one tensor, or a list with one view
for each parameter; a rule owns none of them and remembers nothing, so the state is wherever the store keeps it.
All state starts as zeros.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

Slab = Tensor | Sequence[Tensor]

TILE_ELEMENTS = {"cpu": 7 << 12, "cuda": 1 << 22}
"""Elements to compute at once. CPU: few enough that torch uses one thread (its limit is 32,768) and temporaries stay in
the cache. A rule's many short operations gain nothing from a second thread, and would wait for it each time: a
thread that is busy with the model's forward or backward pass costs them milliseconds. CUDA: worth a launch."""


class Rule(ABC):
    """A frozen dataclass of constants with these members."""

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

    @abstractmethod
    def state_of(self, shape: Sequence[int]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        """Shape and dtype of each state tensor of a parameter of this shape; the roles are the same for all shapes."""

    @property
    @abstractmethod
    def update(self) -> Callable[..., None]:
        """One update, in place: see the module's docstring. Gradients are left multiplied by gradient_scale."""


def pieces_of(slab: Slab) -> list[Tensor]:
    return [slab] if isinstance(slab, Tensor) else list(slab)


def scale_gradients(gradients: list[Tensor], gradient_scale: float | Tensor) -> None:
    """Multiply in place: the clip coefficient, over the loss scale. A Tensor () may stay on the device."""
    if gradients and (isinstance(gradient_scale, Tensor) or gradient_scale != 1.0):
        torch._foreach_mul_(gradients, gradient_scale)  # pyright: ignore[reportPrivateImportUsage]


def tiles(size: int, device: torch.device) -> Iterator[slice]:
    """[0, size) in slices of TILE_ELEMENTS; the last may be shorter."""
    step = TILE_ELEMENTS[device.type]
    return (slice(start, min(start + step, size)) for start in range(0, size, step))
