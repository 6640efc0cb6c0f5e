"""Adafactor without relative steps (Shazeer & Stern 2018, https://arxiv.org/abs/1804.04235), in place.

A matrix (n, k) keeps n + k second moments instead of n k, and by default no first moment. Leading dimensions count matrices.

    beta2 = 1 - step^-0.8      row = beta2 row + (1 - beta2) mean_k(g^2 + eps)       col: the same with mean_n
    u = g / sqrt(row col / mean(row))                              u = u / max(1, RMS(u) / threshold)
    w = w (1 - lr decay) - lr u                                    (beta1: an exp_avg of lr u instead of lr u)

A vector keeps its second moments in full, as `row`; its `col` is empty. Weights are fp32, or bfloat16 rounded at random
(`stochastic_rounding.py`), which is 2 bytes of weight and next to none of state.

Two passes, because each update needs sums over the whole parameter:
    measure   reads the gradient alone (twice), updates row and col, leaves the divisor max(1, RMS(u) / threshold)
    apply     reads gradient and weight, updates the weight
Both go through blocks of rows, with a few temporaries of a block, and accumulators for the columns of 32 blocks: megabytes,
whatever the parameter's size. All sums are element-wise additions in an order that shape alone decides: along a row by
halves; along a column each 32nd block into the same accumulator, and these by halves. So bits do not depend on threads,
and no reduction of a library's choosing is among them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from headrace.optim.rule import TILE_ELEMENTS, Rule
from headrace.optim.stochastic_rounding import round_stochastically

# Both decide the order of sums: changing one changes last bits.
_BLOCK_ELEMENTS = 7 << 12
_ACCUMULATED_BLOCKS = 32


@dataclass(frozen=True)
class Adafactor(Rule):
    """The rule and its constants."""

    beta1: float | None = None
    decay_rate: float = -0.8
    """Exponent of beta2 = 1 - step^decay_rate."""
    eps: float = 1e-30
    """Added to squared gradients; the paper's eps1."""
    clip_threshold: float = 1.0
    """Largest RMS of a parameter's update, before lr."""
    weight_decay: float = 0.0
    weight_dtype: torch.dtype = torch.float32

    needs_whole_parameter: ClassVar[bool] = True
    cut_elements: ClassVar[int] = 0

    def __post_init__(self) -> None:
        assert self.beta1 is None or 0.0 <= self.beta1 < 1.0, self
        assert self.decay_rate < 0.0 < self.eps and self.clip_threshold > 0.0 and self.weight_decay >= 0.0, self
        assert self.weight_dtype in (torch.float32, torch.bfloat16), self

    @property
    def exact(self) -> bool:
        return self.weight_dtype is torch.float32

    def state_of(self, shape: Sequence[int]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        shape = torch.Size(shape)
        factored = len(shape) >= 2
        row = shape[:-1] if factored else shape
        col = shape[:-2] + shape[-1:] if factored else (0,)
        state = {"row": (torch.Size(row), torch.float32), "col": (torch.Size(col), torch.float32)}
        return state if self.beta1 is None else state | {"exp_avg": (shape, torch.float32)}

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
        assert self.exact or keys is not None, "bfloat16 weights need a key each"
        for i, (w, g, *own) in enumerate(zip(weights, gradients, *state, strict=True)):
            if w.numel():
                gradient = g.view(w.shape)
                divisor = self.measure(gradient, *own[:2], step=step)
                self._apply(
                    w, gradient, *own, divisor=divisor, step=step, lr=lr, weight_decay=weight_decay,
                    key=keys[i] if keys is not None else None,
                )  # fmt: skip

    @torch.no_grad()
    def measure(self, gradient: Tensor, row: Tensor, col: Tensor, *, step: int) -> Tensor:
        """The first pass: update row and col, and return the update's divisor, a Tensor ()."""
        g, factored = _as_matrices(gradient)
        rows, cols = _views(g, row, col, factored)
        new_share = float(step) ** self.decay_rate
        old_share = 1.0 - new_share

        row_sums = torch.empty_like(rows)
        col_sums = torch.empty_like(cols) if cols is not None else None
        accumulators = torch.zeros(0, device=g.device)
        period = _ACCUMULATED_BLOCKS * _rows_of_block(g)
        for matrices, lines in _blocks(g):
            squares = g[matrices, lines].square()
            if col_sums is not None:
                if lines == slice(0, g.shape[1]):  # whole matrices
                    col_sums[matrices].copy_(_sum(squares.clone(), 1))
                else:
                    if lines.start == 0:
                        accumulators = torch.zeros(1, min(period, g.shape[1]), g.shape[2], device=g.device)
                    start = lines.start % period
                    accumulators[:, start : start + lines.stop - lines.start].add_(squares)
                    if lines.stop == g.shape[1]:
                        col_sums[matrices].copy_(_sum(accumulators, 1))
            row_sums[matrices, lines].copy_(_sum(squares, 2))
        rows.mul_(old_share).add_(row_sums.div_(g.shape[2]).add_(self.eps).mul_(new_share))
        if cols is not None and col_sums is not None:
            cols.mul_(old_share).add_(col_sums.div_(g.shape[1]).add_(self.eps).mul_(new_share))

        by_row, by_col = _factors(rows, cols)
        for matrices, lines in _blocks(g):
            u = _direction(g, by_row, by_col, matrices, lines)
            row_sums[matrices, lines].copy_(_sum(u.square_(), 2))
        return _sum(row_sums.view(-1), 0).div(g.numel()).sqrt_().div_(self.clip_threshold).clamp_(min=1.0)

    def _apply(
        self,
        weight: Tensor,
        gradient: Tensor,
        row: Tensor,
        col: Tensor,
        *exp_avg: Tensor,
        divisor: Tensor,
        step: int,
        lr: float,
        weight_decay: float,
        key: int | None,
    ) -> None:
        """The second pass: update the weight with what `measure` left."""
        g, factored = _as_matrices(gradient)
        w, _ = _as_matrices(weight)
        by_row, by_col = _factors(*_views(g, row, col, factored))
        scale = lr / divisor
        first = 0  # the block's first element
        for matrices, lines in _blocks(g):
            u = _direction(g, by_row, by_col, matrices, lines).mul_(scale)
            if self.beta1 is not None:
                m = _as_matrices(exp_avg[0])[0][matrices, lines]
                u = m.mul_(self.beta1).add_(u.mul_(1.0 - self.beta1))
            block = w[matrices, lines]
            new = block.to(torch.float32)  # block itself, where weights are fp32
            if weight_decay:
                new.mul_(1.0 - lr * weight_decay)
            new.sub_(u)
            if not self.exact:
                assert key is not None
                round_stochastically(new, block, key=key, step=step, first=first)
            first += new.numel()


def _as_matrices(tensor: Tensor) -> tuple[Tensor, bool]:
    """A view (matrices, n, k), and whether it is factored; a vector is (1, n, 1)."""
    factored = tensor.dim() >= 2
    return tensor.view(-1, *tensor.shape[-2:]) if factored else tensor.view(1, -1, 1), factored


def _views(g: Tensor, row: Tensor, col: Tensor, factored: bool) -> tuple[Tensor, Tensor | None]:
    """row as (matrices, n) and col as (matrices, k), or None for a vector."""
    return row.view(g.shape[:2]), col.view(g.shape[0], g.shape[2]) if factored else None


def _rows_of_block(g: Tensor) -> int:
    return max(1, _BLOCK_ELEMENTS // g.shape[2])


def _blocks(g: Tensor) -> Iterator[tuple[slice, slice]]:
    """Cuts (matrices, rows) of g (matrices, n, k) in order: whole matrices, or rows of one.

    Where tiles are larger (CUDA), a block is as long as the accumulators; its bits are those of the 32 it stands for.
    """
    blocks_at_once = 1 if TILE_ELEMENTS[g.device.type] <= _BLOCK_ELEMENTS else _ACCUMULATED_BLOCKS
    num_matrices, num_rows, width = g.shape
    rows = min(num_rows, _rows_of_block(g) * blocks_at_once)
    matrices = max(1, TILE_ELEMENTS[g.device.type] // (num_rows * width)) if rows == num_rows else 1
    for m in range(0, num_matrices, matrices):
        for r in range(0, num_rows, rows):
            yield slice(m, min(m + matrices, num_matrices)), slice(r, min(r + rows, num_rows))


def _factors(rows: Tensor, cols: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """What to multiply a gradient by: one factor a row (matrices, n, 1) and one a column (matrices, 1, k)."""
    if cols is None:
        return rows.rsqrt()[:, :, None], None
    mean = _sum(rows.clone(), 1).div(rows.shape[1])
    return (rows / mean[:, None]).rsqrt_()[:, :, None], cols.rsqrt()[:, None, :]


def _direction(g: Tensor, by_row: Tensor, by_col: Tensor | None, matrices: slice, lines: slice) -> Tensor:
    """The update of a block before clipping, lr and momentum; a new tensor."""
    if by_col is None:
        return g[matrices, lines] * by_row[matrices, lines]
    return (g[matrices, lines] * by_col[matrices]).mul_(by_row[matrices, lines])


def _sum(x: Tensor, dim: int) -> Tensor:
    """The sum over a dimension, added by halves in place; x is overwritten, and the result is a view of it."""
    size = x.shape[dim]
    while size > 1:
        half = size // 2
        size -= half
        x.narrow(dim, 0, half).add_(x.narrow(dim, size, half))
    return x.select(dim, 0)
