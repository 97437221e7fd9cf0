"""RMSNorm."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, mint, ops

from hp_memory.kernels.cpu.shapes import spread_column, spread_row
from hp_memory.mindspore.private import Function as _Function


class _RmsNorm(_Function):
    """Saves what Ascend's RmsNormGrad reads: x, the reciprocal deviation per row, and the weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rstd = ops.rsqrt(mint.mean(x * x, -1, True) + eps)
        ctx.save_for_backward(x, rstd, weight)
        return x * spread_column(rstd, x.shape[1]) * spread_row(weight, x.shape[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, rstd, weight = ctx.saved_tensors
        rstd = spread_column(rstd, x.shape[1])
        unit = x * rstd
        scaled = grad * spread_row(weight, x.shape[0])
        along = spread_column(mint.mean(scaled * unit, -1, True), x.shape[1])
        return (scaled - unit * along) * rstd, mint.sum(grad * unit, 0), None


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm of the rows of x (T, H), scaled by weight (H,)."""
    return _RmsNorm.apply(x, weight, eps)
