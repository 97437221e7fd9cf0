"""What a step takes when regions wait on the host, against the bandwidth of the way there, as JSON.

    python benchmarks/host_offload.py                                  # asynchronous dispatch, on a CPU
    python benchmarks/host_offload.py --rows 512 --megabytes 50 400

A stack of blocks (norm, two matrix products with a gate between them) trains without checkpoints, and with the products
and the gate offloaded over a link of each bandwidth, the copies on their own threads. Steps take turns, ratios are of
paired steps. On two cores the copies' processor time comes out of the compute's: ``inf`` shows that alone.
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
from mindspore import Parameter, Tensor, mint, nn, ops

from hp_memory.activation import offload_wrapper
from hp_memory.host.threads import Threads
from hp_memory.host.window import Window


class Block(nn.Cell):
    """x + down(gate(up(norm(x))))."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        draw = np.random.default_rng(seed)
        shapes = {"first": (width, 4 * width), "second": (2 * width, width)}
        for name, shape in shapes.items():
            value = draw.standard_normal(shape, np.float32) / np.sqrt(shape[0])
            setattr(self, name, Parameter(Tensor(value), name=f"{name}{seed}"))
        self.norm = nn.LayerNorm((width,))

    def up(self, x: Tensor) -> Tensor:
        """First product."""
        return mint.matmul(x, self.first)

    def gate(self, h: Tensor) -> Tensor:
        """SwiGLU."""
        left, right = mint.chunk(h, 2, dim=1)
        return ops.silu(left) * right

    def down(self, a: Tensor) -> Tensor:
        """Second product."""
        return mint.matmul(a, self.second)

    def construct(self, x: Tensor) -> Tensor:
        """The whole block."""
        return x + self.down(self.gate(self.up(self.norm(x))))


def stack(args: argparse.Namespace, window: Window | None):
    """A function that makes one step and returns its loss."""
    blocks = [Block(args.width, seed) for seed in range(args.blocks)]
    weights = [w for block in blocks for w in block.trainable_params()]
    for block in blocks if window is not None else ():
        for part in ("up", "gate", "down"):
            setattr(block, part, offload_wrapper(getattr(block, part), window=window, name=part))

    def loss(x: Tensor) -> Tensor:
        for block in blocks:
            x = block(x)
        return (x * x).mean()

    step = ms.value_and_grad(loss, None, weights)
    return lambda x: float(step(x)[0].asnumpy())


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[25, 50, 100, 200, 400, 800], help="a second")
    args = parser.parse_args()
    ms.set_device("CPU")
    windows = {
        str(mb): Window(Threads(None if mb == float("inf") else mb * 1e6), 1 << 32, 1 << 16, prefetch=4, pending=6)
        for mb in (*args.megabytes, float("inf"))
    }
    runs = {"none": stack(args, None), **{name: stack(args, window) for name, window in windows.items()}}
    x = Tensor(np.random.default_rng(9).standard_normal((args.rows, args.width), np.float32))
    losses = {name: run(x) for name, run in runs.items()}
    before = {name: (w.moves.waited_out, w.moves.waited_in, w.moves.moved_bytes) for name, w in windows.items()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(args.steps):
        for name, run in runs.items():
            began = time.perf_counter()
            run(x)
            seconds[name].append(time.perf_counter() - began)
    found = {"none": {"ms": 1e3 * statistics.median(seconds["none"])}}
    for name, window in windows.items():
        moves, (out, back, nbytes) = window.moves, before[name]
        found[name] = {
            "ms": 1e3 * statistics.median(seconds[name]),
            "over none": statistics.median(a / b for a, b in zip(seconds[name], seconds["none"], strict=True)),
            "ms waited out": 1e3 * (moves.waited_out - out) / args.steps,
            "ms waited in": 1e3 * (moves.waited_in - back) / args.steps,
            "MB moved": (moves.moved_bytes - nbytes) / args.steps / 1e6,
            "recalled": moves.recalled,
            "same loss": losses[name] == losses["none"],
        }
    print(json.dumps({"sizes": vars(args), "by MB/s": found}, indent=1))


if __name__ == "__main__":
    main()
