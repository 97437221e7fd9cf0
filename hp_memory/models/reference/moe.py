"""The experts of one layer, spread over a group of ranks, a method per region."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, nn
from mindspore import dtype as mstype

from hp_memory.kernels import devices
from hp_memory.kernels.groups import Group
from hp_memory.models.reference.layers import matrix
from hp_memory.models.reference.mlp import Mlp
from hp_memory.models.reference.router import Router
from hp_memory.models.settings import ModelSettings

# Sizes in the docstrings: T tokens of this rank, k experts per token, H hidden size, F inner width of an expert,
# R rows that this rank's experts receive, G experts on this rank.


class Moe(nn.Cell):
    """Routed experts and a shared one. Every region is called through ``self`` at each forward, to be replaceable.

    Attributes:
        received_rows: R of the last forward.
    """

    def __init__(self, settings: ModelSettings, group: Group) -> None:
        super().__init__()
        self.group = group
        self.local_experts = settings.num_experts // group.size
        self.received_rows = 0
        self.router = Router(settings)
        self.up_weight = matrix("up_weight", self.local_experts, settings.hidden_size, 2 * settings.expert_ffn_size)
        self.down_weight = matrix("down_weight", self.local_experts, settings.expert_ffn_size, settings.hidden_size)
        if settings.shared_experts:
            self.shared_experts = Mlp(settings.hidden_size, settings.shared_experts * settings.expert_ffn_size)
        self.has_shared_experts = settings.shared_experts > 0
        self.kernels, self.collectives = devices.kernels(), devices.collectives()

    def construct(self, x: Tensor) -> Tensor:
        probs, indices, tokens_per_expert = self.router(x)
        metadata = self.counts(tokens_per_expert)
        rows, places = self.permute(x, indices)
        rows = self.experts_path(rows, *metadata)
        routed = self.unpermute(rows, places, probs)
        return routed + self.shared_experts(x) if self.has_shared_experts else routed

    def experts_path(self, rows: Tensor, *metadata: Any) -> Tensor:
        """The span from ``all2all.in`` to ``all2all.out``: rows (T*k, H) to rows (T*k, H)."""
        in_splits, out_splits, order, back, group_list = metadata
        received = self.all2all_in(rows, out_splits, in_splits)
        hidden = self.gmm_up(self.resort(received, order, back), group_list)
        result = self.gmm_down(self.act(hidden), group_list)
        return self.all2all_out(self.unsort(result, back, order), in_splits, out_splits)

    def counts(self, tokens_per_expert: Tensor) -> tuple[tuple[int, ...], tuple[int, ...], Tensor, Tensor, Tensor]:
        """What the exchange and the grouped matmuls need to know, found once and on the host.

        Returns:
            rows sent to each rank, rows received from each, the received rows' order by local expert (R,) int32,
            its inverse (R,) int32, and the row at which each local expert ends (G,) int64.
        """
        everyone = [part.asnumpy() for part in self.collectives.gather_list(tokens_per_expert, self.group)]
        sent = everyone[self.group.index].reshape(self.group.size, self.local_experts)
        first = self.group.index * self.local_experts
        received = np.stack(everyone)[:, first : first + self.local_experts]
        expert_of_row = np.repeat(np.tile(np.arange(self.local_experts), self.group.size), received.ravel())
        order = np.argsort(expert_of_row, kind="stable").astype(np.int32)
        back = np.argsort(order, kind="stable").astype(np.int32)
        ends = np.cumsum(received.sum(0))
        self.received_rows = int(ends[-1])
        return _ints(sent.sum(1)), _ints(received.sum(1)), Tensor(order), Tensor(back), Tensor(ends, mstype.int64)

    def permute(self, x: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        """x (T, H) to rows ordered by expert (T*k, H) and each copy's place (T*k,)."""
        return self.kernels.token_permute(x, indices)

    def all2all_in(self, rows: Tensor, out_splits: tuple[int, ...], in_splits: tuple[int, ...]) -> Tensor:
        """Rows (T*k, H) to the ranks of their experts; returns (R, H), ordered by sender, then expert."""
        return self.collectives.all_to_all_single(rows, out_splits, in_splits, self.group)

    def resort(self, rows: Tensor, order: Tensor, back: Tensor) -> Tensor:
        """Received rows (R, H) ordered by local expert."""
        return self.kernels.reorder(rows, order, back)

    def gmm_up(self, rows: Tensor, group_list: Tensor) -> Tensor:
        """(R, H) to (R, 2F)."""
        return self.kernels.grouped_matmul(rows, self.up_weight, group_list)

    def act(self, hidden: Tensor) -> Tensor:
        """(R, 2F) to (R, F)."""
        return self.kernels.swiglu(hidden)

    def gmm_down(self, hidden: Tensor, group_list: Tensor) -> Tensor:
        """(R, F) to (R, H)."""
        return self.kernels.grouped_matmul(hidden, self.down_weight, group_list)

    def unsort(self, rows: Tensor, back: Tensor, order: Tensor) -> Tensor:
        """Expert order (R, H) back to the order of arrival."""
        return self.kernels.reorder(rows, back, order)

    def all2all_out(self, rows: Tensor, in_splits: tuple[int, ...], out_splits: tuple[int, ...]) -> Tensor:
        """Rows (R, H) back to the ranks of their tokens: (T*k, H)."""
        return self.collectives.all_to_all_single(rows, in_splits, out_splits, self.group)

    def unpermute(self, rows: Tensor, places: Tensor, probs: Tensor) -> Tensor:
        """The weighted sum of each token's k rows: (T*k, H) to (T, H)."""
        return self.kernels.token_unpermute(rows, places, probs)


def _ints(values: np.ndarray) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
