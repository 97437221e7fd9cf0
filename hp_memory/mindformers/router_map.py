"""MindFormers' router as its two regions: scores, which a replay may make again, and the choice, made once.

All that depends on comparing scores is in ``choose``: the experts, the counts, the routing map of the auxiliary loss.
Comparing has no gradient, so nothing of it is saved; the gradients that pass through ``choose`` read the experts'
indices and some numbers per token. The large tensors (the gate's float32 input, the scores) belong to ``gate``.
"""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, mint
from mindspore import dtype as mstype

from hp_memory.errors import InstallError
from hp_memory.mindformers.seams import Part
from hp_memory.mindspore.private import no_grad as _no_grad

# Sizes in the docstrings: S positions, B sequences, T = S * B tokens, E experts, k of them per token.
_TINY = 1e-20  # MindFormers': no sum of scores is zero


class Router(Part):
    """In place of ``TopKRouter.construct``."""

    INNER = ("_compute_aux_loss", "compute_routing_scores_for_aux_loss")
    KNOWN = (
        "DTensor NotImplementedError ValueError _apply_aux_loss _apply_global_aux_loss _apply_seq_aux_loss "
        "_compute_aux_loss _compute_router_scores _debug_force_load_balance _debug_force_load_balance_routing "
        "_get_node_limited_routing_scores _hash_routing aux_loss_type bool cast compute_routing_scores_for_aux_loss "
        "config div float32 functional gather get histc int int32 int64 is_hash_layer isinstance linear mint "
        "moe_aux_loss_coeff moe_router_dtype mstype mul nn num_expert_groups num_experts ops reshape route_norm "
        "route_scale scatter_ score_func shape sigmoid softmax softplus sqrt sum to_local top_k topk weight "
        "zeros_like"
    )

    def __init__(self, cell: Any) -> None:
        super().__init__(cell)
        if cell.is_hash_layer:
            raise InstallError("a router that looks experts up by token (moe_n_hash_layers) isn't mapped")
        # 2.1 has one function for the scores, and derives those of the auxiliary loss from them.
        self.newer = hasattr(cell, "_compute_router_scores")

    def forward(self, x: Tensor, expert_bias: Tensor | None = None, input_ids: Tensor | None = None) -> tuple:
        """x (S, B, H) to weights (T, k), experts (T, k) int64 and tokens per expert (E,)."""
        del input_ids  # only a table by token reads them
        seq_length, batch, _ = x.shape
        scores, balance = self.gate(x)
        return self.choose(scores, balance, expert_bias, seq_length, batch)

    def gate(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scores (T, E) float32, and those that the auxiliary loss balances, None without one."""
        cell = self.cell
        rows = cell.cast(cell.reshape(x, (-1, x.shape[-1])), cell.config.moe_router_dtype)
        weight = cell.weight
        if self.newer and isinstance(weight, self.module.DTensor):
            weight = weight.to_local()
        logits = cell.linear(rows, weight)
        scores = cell._compute_router_scores(logits) if self.newer else self._scores(logits)
        return scores, self._balanced(logits, scores) if cell.moe_aux_loss_coeff > 0 else None

    def _scores(self, logits: Tensor) -> Tensor:
        cell = self.cell
        logits = cell.cast(logits, mstype.float32)
        if cell.score_func == "sigmoid":
            return cell.sigmoid(logits)
        if cell.score_func == "softmax":
            return cell.softmax(logits, dim=1)
        if cell.score_func == "sqrtsoftplus":
            return cell.sqrt(cell.softplus(logits))
        raise NotImplementedError(f"Unknown score function {cell.score_func}")

    def _balanced(self, logits: Tensor, scores: Tensor) -> Tensor:
        """Scores that sum to 1 for each token."""
        kind = self.cell.score_func
        if not self.newer:
            if kind == "softmax":
                return mint.softmax(logits, dim=-1, dtype=mstype.float32)
            if kind == "sigmoid":
                scores = mint.sigmoid(logits)
            else:
                scores = mint.sqrt(mint.nn.functional.softplus(self.cell.cast(logits, mstype.float32)))
        elif kind == "softmax":
            return scores
        return scores / (scores.sum(dim=-1, keepdim=True) + _TINY)

    def choose(
        self, scores: Tensor, balance: Tensor | None, expert_bias: Tensor | None, seq_length: int, batch: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What ``forward`` returns; the auxiliary loss is counted, and its gradient tied to the weights."""
        cell = self.cell
        experts = self._best(scores, expert_bias)
        weights = cell.gather(scores, dim=1, index=experts)
        if cell._debug_force_load_balance:
            experts, weights = cell._debug_force_load_balance_routing(scores, experts)
        if cell.route_norm:
            weights = cell.div(weights, cell.sum(weights, dim=-1, keepdim=True) + _TINY)
        weights = cell.mul(weights, cell.route_scale)
        counts = cell.histc(experts, bins=cell.num_experts, min=0, max=cell.num_experts)
        if self.newer:
            counts = cell.cast(counts, mstype.int32)
        if balance is not None:
            weights = self._with_loss(weights, balance, experts, seq_length, batch)
        return weights, experts, counts

    def _best(self, scores: Tensor, bias: Tensor | None) -> Tensor:
        """The experts of each token (T, k) int64: the best by score and bias, within the best groups."""
        cell = self.cell
        with _no_grad():
            if self.newer and isinstance(bias, self.module.DTensor):
                bias = bias.to_local()
            compared = scores if bias is None else scores + bias
            if cell.num_expert_groups > 0:
                compared = cell._get_node_limited_routing_scores(compared)
            _, experts = cell.topk(compared, k=cell.top_k, dim=-1, sorted=False)
            return cell.cast(experts, mstype.int64)

    def _with_loss(self, weights: Tensor, balance: Tensor, experts: Tensor, seq_length: int, batch: int) -> Tensor:
        cell = self.cell
        losses = {
            "aux_loss": cell._apply_aux_loss,
            "seq_aux_loss": cell._apply_seq_aux_loss,
            "global_aux_loss": cell._apply_global_aux_loss,
        }
        if cell.aux_loss_type not in losses:
            raise ValueError(f"Unknown aux_loss_type {cell.aux_loss_type}")
        return losses[cell.aux_loss_type](weights, balance, self._routed(balance, experts), seq_length, batch)

    def _routed(self, balance: Tensor, experts: Tensor) -> Tensor:
        """For the loss, the experts by score alone: their indices (T, k) in 2.1, a map (T, E) of ones in 2.0."""
        cell = self.cell
        with _no_grad():
            if not cell._debug_force_load_balance:
                _, experts = mint.topk(balance, k=cell.top_k, dim=1)
            if self.newer:
                return experts
            routed = mint.zeros_like(balance).int()
            routed.scatter_(1, experts, 1)
            return routed
