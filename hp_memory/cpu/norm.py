"""RMSNorm and rotary positions."""

from __future__ import annotations

from mindspore import Tensor, mint, ops
from mindspore.common._grad_function import _Function


class _RmsNorm(_Function):
    """Saves what Ascend's RmsNormGrad reads: x, the reciprocal deviation per row, and the weight."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        rstd = ops.rsqrt(mint.mean(x * x, -1, True) + eps)
        ctx.save_for_backward(x, rstd, weight)
        return x * rstd * weight

    @staticmethod
    def backward(ctx, grad):
        x, rstd, weight = ctx.saved_tensors
        unit = x * rstd
        scaled = grad * weight
        dx = (scaled - unit * mint.mean(scaled * unit, -1, True)) * rstd
        return dx, mint.sum(grad * unit, 0), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of the rows of x (T, H), scaled by weight (H,)."""
    return _RmsNorm.apply(x, weight, eps)


class _RotaryQkv(_Function):
    """Saves no activation: a rotation's gradient is the rotation back. The tables belong to the model."""

    @staticmethod
    def forward(ctx, qkv, cos, sin, heads, kv_heads):
        ctx.tables, ctx.heads = (cos, sin), (heads, kv_heads)
        seq, dim = cos.shape
        x = qkv.reshape(-1, seq, heads + 2 * kv_heads, dim).transpose(0, 2, 1, 3).contiguous()
        rotated = _rotate(x[:, : heads + kv_heads], cos, sin)
        return rotated[:, :heads].contiguous(), rotated[:, heads:].contiguous(), x[:, heads + kv_heads :].contiguous()

    @staticmethod
    def backward(ctx, dq, dk, dv):
        cos, sin = ctx.tables
        back = _rotate(mint.cat((dq, dk), 1), cos, -sin)
        dx = mint.cat((back, dv), 1).transpose(0, 2, 1, 3)
        return dx.reshape(-1, sum(ctx.heads) * cos.shape[1] + ctx.heads[1] * cos.shape[1]), None, None, None, None


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    turned = mint.cat((-x[..., half:], x[..., :half]), -1)
    return x * cos + turned * sin


def rotary_qkv(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Splits a projection into heads and turns queries and keys by their position.

    Args:
        qkv: (B*S, (heads + 2 * kv_heads) * D), heads of q, then k, then v.
        cos: (S, D), see ``hp_memory.models.reference.attention``; ``sin`` likewise.

    Returns:
        q (B, heads, S, D), k and v (B, kv_heads, S, D).
    """
    return _RotaryQkv.apply(qkv, cos, sin, heads, kv_heads)
