"""What splitting backward costs and buys: dx and dw against one whole backward, in pairs in one process.

    python benchmarks/pipeline_split.py --out split.json

Stages: pure overhead (tiny), a wide one, and the same under a checkpoint with and without a session. Modes alternate
step by step; only the paired ratios mean something on a shared machine. They are given as median [quartiles].
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="0", GLOG_v="3")

import mindspore as ms
import numpy as np
import rich.console
from mindspore import Parameter, Tensor, mint, nn, ops

from hp_memory.activation import checkpoint_wrapper
from hp_memory.pipeline.session import RecomputeSession
from hp_memory.pipeline.split_backward import SplitBackward, record, whole_backward
from hp_memory.report.table import Table
from hp_memory.train.process import use_one_thread

SHAPES = {  # name: (rows, width, layers, checkpoint)
    "overhead: 16 rows, width 16": (16, 16, 8, False),
    "wide: 256 rows, width 512": (256, 512, 6, False),
    "wide, checkpointed, one session": (256, 512, 6, True),
    "wide, checkpointed, no session": (256, 512, 6, True),
}


class Layer(nn.Cell):
    """silu(x @ w): one matmul forward, one for dx, one for dw."""

    def __init__(self, width: int) -> None:
        super().__init__()
        scale = width**-0.5
        self.w = Parameter(Tensor((np.random.standard_normal((width, width)) * scale).astype(np.float32)), name="w")

    def construct(self, x: Tensor) -> Tensor:
        return ops.silu(mint.matmul(x, self.w))


class Stage:
    """A stage of the pipeline, its input and the gradient of its output."""

    def __init__(self, rows: int, width: int, layers: int, checkpoint: bool) -> None:
        cells = [Layer(width) for _ in range(layers)]
        self.weights = [cell.w for cell in cells]
        self.calls = [checkpoint_wrapper(cell) if checkpoint else cell for cell in cells]
        self.x, self.grad = (Tensor(np.random.standard_normal((rows, width)).astype(np.float32)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for call in self.calls:
            x = call(x)
        return x

    def recorded(self, rule: str) -> tuple[RecomputeSession, Tensor]:
        session = RecomputeSession("benchmark", rule)
        with session.recording():
            return session, record(self.forward, self.x, inputs=[self.x])

    def whole(self, rule: str) -> dict[str, float]:
        session, out = self.recorded(rule)
        start = time.perf_counter()
        with session.use("whole"):
            found = whole_backward((out,), (self.grad,), (self.x, *self.weights))
        found[0].asnumpy()
        return {"whole": time.perf_counter() - start}

    def halves(self, rule: str) -> dict[str, float]:
        session, out = self.recorded(rule)
        split = SplitBackward((out,), (self.x,), self.weights)
        start = time.perf_counter()
        with session.use("dx"):
            split.dx((self.grad,))[0].asnumpy()
        middle = time.perf_counter()
        with session.use("dw"):
            split.dw()[0].asnumpy()
        return {"dx": middle - start, "dw": time.perf_counter() - middle}


def measure(shape: tuple[int, int, int, bool], rule: str, pairs: int) -> dict[str, list[float]]:
    """Ratios to the whole backward of the same pair."""
    stage = Stage(*shape)
    ratios: dict[str, list[float]] = {"dx": [], "dw": [], "dx + dw": []}
    for i in range(pairs + 2):
        found = stage.whole(rule) | stage.halves(rule) if i % 2 else stage.halves(rule) | stage.whole(rule)
        if i >= 2:  # two pairs to warm up
            ratios["dx"].append(found["dx"] / found["whole"])
            ratios["dw"].append(found["dw"] / found["whole"])
            ratios["dx + dw"].append((found["dx"] + found["dw"]) / found["whole"])
    return ratios


def spread(values: list[float]) -> str:
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} [{low:.2f}-{high:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--out", help="write the ratios here as JSON")
    args = parser.parse_args()
    ms.set_device("CPU")
    use_one_thread()
    np.random.seed(0)
    found = {}
    for name, shape in SHAPES.items():
        found[name] = measure(shape, "none" if name.endswith("no session") else "share", args.pairs)
    rows = [(name, *(spread(v) for v in ratios.values())) for name, ratios in found.items()]
    caption = f"time as a ratio to the whole backward of the same pair, median and quartiles of {args.pairs} pairs"
    table = Table("Split backward", ("stage", "dx", "dw", "dx + dw"), rows, caption)
    rich.console.Console(width=120).print(table.rich())
    if args.out:
        with open(args.out, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
