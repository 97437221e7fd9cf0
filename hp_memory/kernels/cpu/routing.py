"""Top-k selection and the reordering of rows around the experts."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, mint, ops

from hp_memory.kernels.cpu.shapes import spread_column, take_rows
from hp_memory.mindspore.private import Function as _Function


class _TopK(_Function):
    """Saves the chosen indices only."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
        # A stable sort, so that ties fall to the lower expert on every machine.
        chosen = np.argsort(-scores.asnumpy(), axis=-1, kind="stable")[:, :k].astype(np.int32)
        indices = Tensor(chosen)
        ctx.shape = scores.shape
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return mint.gather(scores, 1, indices), indices

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (indices,) = ctx.saved_tensors
        return ops.tensor_scatter_elements(ops.zeros(ctx.shape, grad.dtype), indices, grad, axis=1), None


def topk(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest of each row of scores (T, E), greatest first: values (T, k) and int32 indices (T, k)."""
    return _TopK.apply(scores, k)


def count_per_expert(indices: Tensor, num_experts: int) -> Tensor:
    """How often each expert was chosen: (E,) int32."""
    return Tensor(np.bincount(indices.asnumpy().ravel(), minlength=num_experts).astype(np.int32))


class _TokenPermute(_Function):
    """Saves the place of each row, as Ascend's MoeTokenPermuteGrad reads it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        k = indices.shape[1]
        order = np.argsort(indices.asnumpy().ravel(), kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(order.size)
        places = Tensor(place.astype(np.int32))
        ctx.k = k
        ctx.save_for_backward(places)
        ctx.mark_non_differentiable(places)
        return ops.gather(x, Tensor((order // k).astype(np.int32)), 0), places

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        copies = [ops.gather(grad, place, 0) for place in _columns(places.reshape(-1, ctx.k))]
        return sum(copies[1:], copies[0]), None


def token_permute(x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    """Copies each row once per chosen expert and orders the copies by expert.

    Args:
        x: (T, H).
        indices: (T, k) int32, the chosen experts.

    Returns:
        rows (T*k, H), and places (T*k,) int32: copy ``t*k + j`` stands in row ``places[t*k + j]``.
    """
    return _TokenPermute.apply(x, indices)


class _TokenUnpermute(_Function):
    """Saves what Ascend's MoeTokenUnpermuteGrad reads: the rows, their places and the weights."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, probs: Tensor) -> Tensor:
        ctx.save_for_backward(rows, places, probs)
        weights = [spread_column(column.reshape(-1, 1), rows.shape[1]) for column in _columns(probs)]
        parts = [copy * weight for copy, weight in zip(_copies(rows, places, probs), weights, strict=True)]
        return sum(parts[1:], parts[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor]:
        rows, places, probs = ctx.saved_tensors
        dprobs = [mint.sum(copy * grad, -1, True) for copy in _copies(rows, places, probs)]
        order = np.argsort(places.asnumpy(), kind="stable")
        token = Tensor((order // probs.shape[1]).astype(np.int32))
        weight = ops.gather(probs.reshape(-1, 1), Tensor(order.astype(np.int32)), 0)
        drows = ops.gather(grad, token, 0) * spread_column(weight, rows.shape[1])
        return drows, None, mint.cat(dprobs, 1)


def _copies(rows: Tensor, places: Tensor, probs: Tensor) -> list[Tensor]:
    """For each j the j-th copy of every token: k tensors (T, H)."""
    return [ops.gather(rows, place, 0) for place in _columns(places.reshape(probs.shape))]


def _columns(x: Tensor) -> list[Tensor]:
    """(T, k) as k contiguous (T,)."""
    return [column.reshape(-1).contiguous() for column in mint.split(x, 1, 1)]


def token_unpermute(rows: Tensor, places: Tensor, probs: Tensor) -> Tensor:
    """The weighted sum over each token's copies: rows (T*k, H), places (T*k,), probs (T, k) to (T, H)."""
    return _TokenUnpermute.apply(rows, places, probs)


class _Reorder(_Function):
    """Saves the way back, which is all a permutation's gradient needs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, back: Tensor) -> Tensor:
        ctx.save_for_backward(back)
        return take_rows(x, order)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (back,) = ctx.saved_tensors
        return take_rows(grad, back), None, None


def reorder(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """Row i of the result is row ``order[i]`` of x (R, H); ``back`` is the inverse permutation, both (R,) int32."""
    return _Reorder.apply(x, order, back)
