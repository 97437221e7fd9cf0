"""Causal attention with the memory behaviour of a flash kernel: no (S, S) matrix outlives the forward."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.common._grad_function import _Function

# Ascend's FlashAttentionScore repeats the softmax statistics over 8 columns.
STATISTICS_COLUMNS = 8


class _CausalAttention(_Function):
    """Saves what FlashAttentionScoreGrad reads: q, k, v, the output, and the softmax's maximum and sum per row."""

    @staticmethod
    def forward(ctx, q, k, v):
        scores = _scores(q, k)
        top = mint.max(scores, -1, True)[0]
        weights = mint.exp(scores - top)
        total = mint.sum(weights, -1, True)
        out = _join(mint.matmul(weights / total, _share(v, q)))
        ctx.save_for_backward(q, k, v, out, _repeat(top), _repeat(total))
        return out

    @staticmethod
    def backward(ctx, grad):
        q, k, v, out, top, total = ctx.saved_tensors
        shape, scale = q.shape, q.shape[-1] ** -0.5
        weights = mint.exp(_scores(q, k) - top[..., :1]) / total[..., :1]
        grad, out = _split(grad, shape), _split(out, shape)
        dv = mint.matmul(_turn(weights), grad)
        dweights = mint.matmul(grad, _turn(_share(v, q)))
        dscores = weights * (dweights - mint.sum(grad * out, -1, True)) * scale
        dq = mint.matmul(dscores, _share(k, q))
        dk = mint.matmul(_turn(dscores), q)
        return dq, _gather_shared(dk, k), _gather_shared(dv, v)


def _scores(q: Tensor, k: Tensor) -> Tensor:
    seq = q.shape[2]
    hidden = Tensor(np.triu(np.full((seq, seq), -1e30, np.float32), 1))
    return mint.matmul(q, _turn(_share(k, q))) * (q.shape[-1] ** -0.5) + hidden


def _turn(x: Tensor) -> Tensor:
    return x.transpose(0, 1, 3, 2)


def _repeat(column: Tensor) -> Tensor:
    return ops.tile(column, (1, 1, 1, STATISTICS_COLUMNS))


def _share(kv: Tensor, q: Tensor) -> Tensor:
    """Each key or value head, once per query head of its group."""
    groups = q.shape[1] // kv.shape[1]
    if groups == 1:
        return kv
    b, n, s, d = kv.shape
    return ops.tile(kv.reshape(b, n, 1, s, d), (1, 1, groups, 1, 1)).reshape(b, n * groups, s, d)


def _gather_shared(grad: Tensor, kv: Tensor) -> Tensor:
    b, n, s, d = kv.shape
    return grad if grad.shape[1] == n else mint.sum(grad.reshape(b, n, -1, s, d), 2)


def _join(x: Tensor) -> Tensor:
    b, n, s, d = x.shape
    return x.transpose(0, 2, 1, 3).contiguous().reshape(b * s, n * d)


def _split(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    b, n, s, d = shape
    return x.reshape(b, s, n, d).transpose(0, 2, 1, 3).contiguous()


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax attention of q (B, N, S, D) to k and v (B, N_kv, S, D) at earlier or equal positions: (B*S, N*D)."""
    return _CausalAttention.apply(q, k, v)
