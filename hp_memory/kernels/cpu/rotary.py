"""Heads and rotary positions."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from mindspore import Tensor, mint, ops

from hp_memory.kernels.cpu.shapes import heads_first, positions_first
from hp_memory.mindspore.private import Function as _Function


class _RotaryQkv(_Function):
    """Saves no activation: a rotation's gradient is the rotation back. The tables belong to the model."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, ...]:
        ctx.way = (cos, sin, heads, kv_heads)
        seq, dim = cos.shape
        total = heads + 2 * kv_heads
        batch = qkv.shape[0] // seq
        rows = qkv.reshape(-1, dim)

        def pick(first: int, count: int) -> Tensor:
            return ops.gather(rows, heads_first(batch, seq, total, first, count), 0)

        q, k, v = pick(0, heads), pick(heads, kv_heads), pick(heads + kv_heads, kv_heads)
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        return tuple(part.reshape(batch, -1, seq, dim) for part in (q, k, v))

    @staticmethod
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, None, None, None, None]:
        cos, sin, heads, kv_heads = ctx.way
        batch, _, seq, dim = dq.shape
        dq, dk = _rotate(dq.reshape(-1, dim), cos, -sin), _rotate(dk.reshape(-1, dim), cos, -sin)
        parts = [part.reshape(batch, -1, seq, dim) for part in (dq, dk, dv)]
        total = heads + 2 * kv_heads
        rows = ops.gather(mint.cat(parts, 1).reshape(-1, dim), positions_first(batch, seq, total), 0)
        return rows.reshape(batch * seq, total * dim), None, None, None, None


def _rotate(rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """rows (n*S, D), positions running fastest."""
    times = (rows.shape[0] // cos.shape[0], 1)
    return rows * ops.tile(cos, times) + mint.matmul(rows, _quarter_turn(cos.shape[1])) * ops.tile(sin, times)


@lru_cache(maxsize=8)
def _quarter_turn(dim: int) -> Tensor:
    """(D, D): x @ it is (-second half, first half). A matrix of zeros and ±1, so the product is exact."""
    half = np.eye(dim // 2, dtype=np.float32)
    zero = np.zeros_like(half)
    return Tensor(np.block([[zero, half], [-half, zero]]))


def rotary_qkv(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Splits a projection into heads and turns queries and keys by their position.

    Args:
        qkv: (B*S, (heads + 2 * kv_heads) * D), heads of q, then k, then v.
        cos: (S, D), see ``hp_memory.models.reference.attention``; ``sin`` likewise.

    Returns:
        q (B, heads, S, D), k and v (B, kv_heads, S, D).
    """
    return _RotaryQkv.apply(qkv, cos, sin, heads, kv_heads)
