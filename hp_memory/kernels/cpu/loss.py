"""Cross entropy."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, ops

from hp_memory.mindspore.private import Function as _Function

_loss = ops.SparseSoftmaxCrossEntropyWithLogits()
_gradient = ops.SparseSoftmaxCrossEntropyWithLogits(is_grad=True)


class _CrossEntropy(_Function):
    """Saves the logits and the labels."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
        ctx.save_for_backward(logits, labels)
        return _loss(logits, labels)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, labels = ctx.saved_tensors
        return _gradient(logits, labels) * grad, None


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy in nats of logits (T, V) against labels (T,) int32: a scalar."""
    return _CrossEntropy.apply(logits, labels)
