"""The parts that attention and experts share."""

from __future__ import annotations

from mindspore import Parameter, Tensor, nn, ops
from mindspore import dtype as mstype

from hp_memory.kernels import devices


def matrix(name: str, *shape: int) -> Parameter:
    """A trainable parameter that ``init.initialise`` fills later."""
    return Parameter(ops.zeros(shape, mstype.float32), name=name)


class RmsNorm(nn.Cell):
    """Root-mean-square norm over the last dimension, with a weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(ops.ones((width,), mstype.float32), name="weight")
        self.eps = eps
        self.kernels = devices.kernels()

    def construct(self, x: Tensor) -> Tensor:
        return self.kernels.rms_norm(x, self.weight, self.eps)
