"""Top-k selection and the reordering of rows around the experts."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, mint, ops
from mindspore.common._grad_function import _Function


class _TopK(_Function):
    """Saves the chosen indices only."""

    @staticmethod
    def forward(ctx, scores, k):
        # A stable sort, so that ties fall to the lower expert on every machine.
        chosen = np.argsort(-scores.asnumpy(), axis=-1, kind="stable")[:, :k].astype(np.int32)
        indices = Tensor(chosen)
        ctx.shape = scores.shape
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return mint.gather(scores, 1, indices), indices

    @staticmethod
    def backward(ctx, grad, _):
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
    def forward(ctx, x, indices):
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
    def backward(ctx, grad, _):
        (places,) = ctx.saved_tensors
        copies = ops.gather(grad, places, 0).reshape(-1, ctx.k, grad.shape[1])
        return mint.sum(copies, 1), None


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
    def forward(ctx, rows, places, probs):
        ctx.save_for_backward(rows, places, probs)
        return mint.sum(_copies(rows, places, probs) * probs.reshape(*probs.shape, 1), 1)

    @staticmethod
    def backward(ctx, grad):
        rows, places, probs = ctx.saved_tensors
        grad = grad.reshape(grad.shape[0], 1, grad.shape[1])
        dprobs = mint.sum(_copies(rows, places, probs) * grad, -1)
        dcopies = (grad * probs.reshape(*probs.shape, 1)).reshape(rows.shape)
        order = np.argsort(places.asnumpy(), kind="stable").astype(np.int32)
        return ops.gather(dcopies, Tensor(order), 0), None, dprobs


def _copies(rows: Tensor, places: Tensor, probs: Tensor) -> Tensor:
    return ops.gather(rows, places, 0).reshape(*probs.shape, rows.shape[1])


def token_unpermute(rows: Tensor, places: Tensor, probs: Tensor) -> Tensor:
    """The weighted sum over each token's copies: rows (T*k, H), places (T*k,), probs (T, k) to (T, H)."""
    return _TokenUnpermute.apply(rows, places, probs)


class _Reorder(_Function):
    """Saves the way back, which is all a permutation's gradient needs."""

    @staticmethod
    def forward(ctx, x, order, back):
        ctx.save_for_backward(back)
        return _take(x, order)

    @staticmethod
    def backward(ctx, grad):
        (back,) = ctx.saved_tensors
        return _take(grad, back), None, None


def _take(x: Tensor, order: Tensor) -> Tensor:
    return ops.gather(x, order, 0) if x.shape[0] else x + 0


def reorder(x: Tensor, order: Tensor, back: Tensor) -> Tensor:
    """Row i of the result is row ``order[i]`` of x (R, H); ``back`` is the inverse permutation, both (R,) int32."""
    return _Reorder.apply(x, order, back)
