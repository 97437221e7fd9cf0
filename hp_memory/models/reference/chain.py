"""The design document's smallest case: all2all, compute and gmm of one layer, between two replayed operations."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn

from hp_memory.models.reference.moe import Moe


class Chain(nn.Cell):
    """A layer's regions ``all2all.in``, ``compute.resort`` and ``gmm.up``, called through ``self`` as in ``Moe``.

    A norm before them and the activation after them are there to be replayed.
    """

    def __init__(self, moe: Moe, norm: nn.Cell) -> None:
        super().__init__()
        self.moe, self.norm = moe, norm

    def construct(self, rows: Tensor, *metadata: Any) -> Tensor:
        """Rows (T*k, H) and what ``Moe.counts`` returned, to (R, F)."""
        return self.moe.act(self.path(self.norm(rows), *metadata))

    def path(self, rows: Tensor, *metadata: Any) -> Tensor:
        """The three regions: (T*k, H) to (R, 2F)."""
        in_splits, out_splits, order, back, group_list = metadata
        received = self.moe.all2all_in(rows, out_splits, in_splits)
        return self.moe.gmm_up(self.moe.resort(received, order, back), group_list)
