"""Scores each token's experts, and chooses among them. The choice is made once: a replay could choose others."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore import dtype as mstype

from hp_memory.kernels import devices
from hp_memory.mindspore.private import Function as _Function
from hp_memory.models.reference.layers import matrix
from hp_memory.models.settings import ModelSettings


class _WithLoss(_Function):
    """Passes a tensor through and gives an auxiliary loss the gradient 1 of a term added to the model's loss."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.like = (loss.shape, loss.dtype)
        return x + 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        shape, dtype = ctx.like
        return grad, ops.ones(shape, dtype)


class Router(nn.Cell):
    """Scores, the top k of them, and a loss that balances the load: regions ``router.gate`` and ``router.choose``.

    ``load`` counts the tokens each expert got since ``take_load`` was last called.
    """

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.weight = matrix("weight", settings.hidden_size, settings.num_experts)
        self.load = Parameter(ops.zeros((settings.num_experts,), mstype.float32), name="load", requires_grad=False)
        self.settings = settings
        self.kernels = devices.kernels()

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (T, H) to the weights (T, k), the experts (T, k) int32 and the tokens per expert (E,) int32."""
        return self.choose(self.gate(x))

    def gate(self, x: Tensor) -> Tensor:
        """x (T, H) to scores (T, E)."""
        logits = mint.matmul(x, self.weight)
        return mint.sigmoid(logits) if self.settings.scoring == "sigmoid" else ops.softmax(logits, -1)

    def choose(self, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores (T, E) to what ``construct`` returns: all that depends on comparing them, and the counters."""
        chosen, indices = self.kernels.topk(scores, self.settings.top_k)
        counts = self.kernels.count_per_expert(indices, self.settings.num_experts)
        self.load.copy_(self.load + counts.astype(mstype.float32))
        probs = chosen / mint.sum(chosen, -1, True)
        if self.settings.routed_scaling_factor != 1.0:
            probs = probs * self.settings.routed_scaling_factor
        return _WithLoss.apply(probs, self._balance_loss(scores, counts)), indices, counts

    def _balance_loss(self, scores: Tensor, counts: Tensor) -> Tensor:
        """coeff * E * sum_e(share of choices of e * mean score of e): coeff if balanced (Switch Transformer)."""
        share = counts.astype(mstype.float32) / (scores.shape[0] * self.settings.top_k)
        scale = self.settings.aux_loss_coeff * self.settings.num_experts
        return mint.sum(mint.mean(scores, 0) * share) * scale

    def take_load(self) -> np.ndarray:
        """Tokens per expert (E,) of this rank since the last call."""
        load = self.load.asnumpy().copy()
        self.load.copy_(ops.zeros(self.load.shape, self.load.dtype))
        return load
