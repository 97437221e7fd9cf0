"""What a chunk says it holds, against the growth of the process: a measure that no hook takes part in."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("mindspore")
ROWS, WIDTH = 2048, 512  # 4 MiB per activation


def make_chunk():
    from mindspore import Parameter, Tensor, mint, nn, ops

    from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper
    from hp_memory.pipeline.chunk import Chunk

    class Layer(nn.Cell):
        def __init__(self, i):
            super().__init__()
            weight = np.random.default_rng(i).standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
            self.w = Parameter(Tensor(weight), name=f"w{i}")
            self.act = checkpoint_exclude_wrapper(lambda x: ops.silu(x), name=f"{i}/act")

        def construct(self, x):
            return ops.tanh(self.act(mint.matmul(x, self.w)))

    class Part(nn.Cell):
        def __init__(self):
            super().__init__(auto_prefix=False)
            self.blocks = nn.CellList([Layer(i) for i in range(2)], auto_prefix=False)
            self.calls = [checkpoint_wrapper(block, name=f"layers.{i}") for i, block in enumerate(self.blocks)]

        def construct(self, x):
            for call in self.calls:
                x = call(x)
            return x

    return Chunk(0, Part(), observed=True)


@pytest.mark.parametrize("prefire", [False, True])
def test_held_bytes_are_what_the_process_grows_by(prefire):
    from mindspore import Tensor

    from hp_memory.compare.memory import growth_per_forward
    from hp_memory.pipeline.session import check_all_closed

    chunk, micros = make_chunk(), itertools.count()
    draw = np.random.default_rng(0)

    def forward():
        micro = next(micros)
        # Through an operation: a tensor made from an array lives outside the pool.
        x = Tensor(draw.standard_normal((ROWS, WIDTH)).astype(np.float32)) * 1.0
        chunk.forward(micro, (x,))
        if prefire:
            chunk.prefire(micro)

    grown = growth_per_forward(forward)
    # The pipeline's own buffers come on top: the chunk's output waits for its gradient.
    expected = chunk.held_bytes / len(chunk.in_flight) + ROWS * WIDTH * 4
    with pytest.raises(Exception, match="left open"):
        check_all_closed()
    assert grown == pytest.approx(expected, rel=0.1)
