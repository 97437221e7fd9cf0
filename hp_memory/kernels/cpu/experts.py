"""Grouped matmul and SwiGLU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mindspore import Tensor, mint, ops

from hp_memory.mindspore.private import Function as _Function

_right_turned = ops.MatMul(transpose_b=True)
_left_turned = ops.MatMul(transpose_a=True)


class _GroupedMatmul(_Function):
    """Saves what the Ascend primitive's backward reads: x, the weights and the group list."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group_list: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, group_list)
        return _rows([mint.matmul(x[a:b], weight[g]) for g, a, b in _groups(group_list)], (weight.shape[2],), x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight, group_list = ctx.saved_tensors
        groups = list(_groups(group_list))
        dx = _rows([_right_turned(grad[a:b], weight[g]) for g, a, b in groups], (weight.shape[1],), x)
        parts = {g: _left_turned(x[a:b], grad[a:b]) for g, a, b in groups}
        zero = ops.zeros(weight.shape[1:], weight.dtype)
        dweight = [parts.get(g, zero).reshape(1, *weight.shape[1:]) for g in range(weight.shape[0])]
        return dx, mint.cat(dweight, 0), None


def _groups(group_list: Tensor) -> Iterator[tuple[int, int, int]]:
    """(group, first row, end row) of each group that has rows."""
    start = 0
    for group, end in enumerate(group_list.asnumpy().tolist()):
        if end > start:
            yield group, start, end
        start = end


def _rows(parts: list[Tensor], width: tuple[int, ...], like: Tensor) -> Tensor:
    return mint.cat(parts, 0) if parts else ops.zeros((0, *width), like.dtype)


def grouped_matmul(x: Tensor, weight: Tensor, group_list: Tensor) -> Tensor:
    """Multiplies each group of rows with its own matrix.

    Args:
        x: (R, K), rows ordered by group.
        weight: (G, K, N).
        group_list: (G,) int64, the row at which each group ends.

    Returns:
        (R, N).
    """
    return _GroupedMatmul.apply(x, weight, group_list)


class _Swiglu(_Function):
    """Saves its input only, as Ascend's SwigluGrad does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        gate, up = _halves(x)
        return gate * mint.sigmoid(gate) * up

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate, up = _halves(x)
        sigmoid = mint.sigmoid(gate)
        silu = gate * sigmoid
        dgate = grad * up * (sigmoid + silu * (1 - sigmoid))
        return mint.cat((dgate, grad * silu), -1)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = mint.chunk(x, 2, -1)
    return gate.contiguous(), up.contiguous()


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) * up for x (R, 2F) = [gate | up]: (R, F)."""
    return _Swiglu.apply(x)
