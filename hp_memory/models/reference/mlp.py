"""The dense MLP of a dense layer, and the one that every token visits beside the experts."""

from __future__ import annotations

from mindspore import Tensor, mint, nn

from hp_memory.kernels import devices
from hp_memory.models.reference.layers import matrix


class Mlp(nn.Cell):
    """SwiGLU between two matrices. Regions ``mlp.up``, ``act`` and ``down`` of a dense layer, or of shared experts."""

    def __init__(self, hidden_size: int, ffn_size: int) -> None:
        super().__init__()
        self.up_weight = matrix("up_weight", hidden_size, 2 * ffn_size)
        self.down_weight = matrix("down_weight", ffn_size, hidden_size)
        self.kernels = devices.kernels()

    def construct(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))

    def up(self, x: Tensor) -> Tensor:
        return mint.matmul(x, self.up_weight)

    def act(self, x: Tensor) -> Tensor:
        return self.kernels.swiglu(x)

    def down(self, x: Tensor) -> Tensor:
        return mint.matmul(x, self.down_weight)
