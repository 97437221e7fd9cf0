"""Causal attention with the memory behaviour of a flash kernel: no (S, S) matrix outlives the forward."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from mindspore import Tensor, mint, ops

from hp_memory.kernels.cpu.shapes import heads_first, positions_first, spread_column
from hp_memory.mindspore.private import Function as _Function

# Ascend's FlashAttentionScore repeats the softmax statistics over 8 columns.
STATISTICS_COLUMNS = 8

_matmul = ops.BatchMatMul()
_matmul_right_turned = ops.BatchMatMul(transpose_b=True)
_matmul_left_turned = ops.BatchMatMul(transpose_a=True)


class _CausalAttention(_Function):
    """Saves what FlashAttentionScoreGrad reads: q, k, v, the output, and the softmax's maximum and sum per row."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = _scores(q, k)
        weights = ops.softmax(scores, -1)
        out = _join(_matmul(weights, _share(v, q)))
        # The greatest weight is exp(0) / sum.
        total = 1 / mint.max(weights, -1, True)[0]
        top = mint.max(scores, -1, True)[0]
        ctx.save_for_backward(q, k, v, out, *(spread_column(x, STATISTICS_COLUMNS) for x in (top, total)))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v, out, top, total = ctx.saved_tensors
        seq, scale = q.shape[2], q.shape[3] ** -0.5
        weights = mint.exp(_scores(q, k) - _per_row(top, seq)) / _per_row(total, seq)
        grad, out = _split(grad, q.shape), _split(out, q.shape)
        dv = _matmul_left_turned(weights, grad)
        along = spread_column(mint.sum(grad * out, -1, True), seq)
        dscores = weights * (_matmul_right_turned(grad, _share(v, q)) - along) * scale
        dk = _matmul_left_turned(dscores, q)
        return _matmul(dscores, _share(k, q)), _sum_shared(dk, k), _sum_shared(dv, v)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    products = _matmul_right_turned(q, _share(k, q))
    return products * (q.shape[3] ** -0.5) + _future(products.shape)


@lru_cache(maxsize=8)
def _future(shape: tuple[int, ...]) -> Tensor:
    """A large negative bias at future positions: (B, N, S, S)."""
    return Tensor(np.broadcast_to(np.triu(np.full(shape[2:], -1e30, np.float32), 1), shape).copy())


def _per_row(statistics: Tensor, width: int) -> Tensor:
    return spread_column(mint.narrow(statistics, -1, 0, 1), width)


def _share(kv: Tensor, q: Tensor) -> Tensor:
    """Each key or value head, once per query head of its group."""
    groups = q.shape[1] // kv.shape[1]
    if groups == 1:
        return kv
    b, n, s, d = kv.shape
    return ops.tile(kv.reshape(b * n, s * d), (1, groups)).reshape(b, n * groups, s, d)


def _sum_shared(grad: Tensor, kv: Tensor) -> Tensor:
    """The way back of ``_share``: the gradients of a group's heads, summed."""
    b, n, s, d = kv.shape
    groups = grad.shape[1] // n
    parts = mint.split(grad.reshape(b * n, groups * s * d), s * d, -1)
    return sum(parts[1:], parts[0]).reshape(kv.shape)


def _join(x: Tensor) -> Tensor:
    b, n, s, d = x.shape
    joined = ops.gather(x.reshape(-1, d), positions_first(b, s, n), 0).reshape(b * s, n * d)
    # A copy, for good: of a view, the matmul that saves it would keep a copy of its own.
    return mint.cat((joined,), 0)


def _split(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    b, n, s, d = shape
    return ops.gather(x.reshape(-1, d), heads_first(b, s, n, 0, n), 0).reshape(shape)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention of q (B, N, S, D) to k and v (B, N_kv, S, D) at earlier or equal positions: (B*S, N*D)."""
    return _CausalAttention.apply(q, k, v)
