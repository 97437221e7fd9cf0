"""Data movement that is fast on MindSpore's CPU kernels, whose broadcasts and strided copies are ten times slower."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from mindspore import Tensor, ops


def spread_column(column: Tensor, width: int) -> Tensor:
    """A column (..., 1) repeated to (..., width)."""
    return ops.tile(column, (*(1,) * (column.ndim - 1), width))


def spread_row(row: Tensor, rows: int) -> Tensor:
    """A row (H,) repeated to (rows, H)."""
    return ops.tile(row, (rows, 1))


def take_rows(x: Tensor, order: Tensor) -> Tensor:
    """Rows of x (R, ...) in another order; also for no rows at all, which the gather kernel refuses."""
    return ops.gather(x, order, 0) if order.shape[0] else ops.zeros((0, *x.shape[1:]), x.dtype)


@lru_cache(maxsize=64)
def heads_first(batch: int, seq: int, heads: int, first: int, count: int) -> Tensor:
    """Where (B, count, S) finds its rows in (B, S, heads): the transposition of heads ``first`` and following."""
    rows = np.arange(batch * seq * heads, dtype=np.int32).reshape(batch, seq, heads)
    return Tensor(rows[:, :, first : first + count].transpose(0, 2, 1).ravel())


@lru_cache(maxsize=64)
def positions_first(batch: int, seq: int, heads: int) -> Tensor:
    """Where (B, S, heads) finds its rows in (B, heads, S): the way back."""
    rows = np.arange(batch * seq * heads, dtype=np.int32).reshape(batch, heads, seq)
    return Tensor(rows.transpose(0, 2, 1).ravel())
