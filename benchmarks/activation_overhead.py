"""Host cost of checkpoints and excluded regions, measured in pairs: all modes alternate step by step in one process.

    python benchmarks/activation_overhead.py --out overhead.json --asynchronous

With ``--asynchronous`` kernels are dispatched as in a training run, and it is measured too how far the host runs ahead:
the share of a forward's time to its result that is left when the call returns.

Only the paired ratios mean something on a shared machine; they are given as median and quartiles. Beside the wall clock
stands the processor time of the thread that runs Python, which other processes disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="0", GLOG_v="3")

import mindspore as ms
import numpy as np
from mindspore import mint, nn, ops
from mindspore._c_expression import run_backward
from mindspore.graph.api import _pynative_executor as executor

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, observe, report

BLOCKS = {  # name: (rows, width, blocks, goal for exclusion / own checkpoint)
    "pure overhead": (16, 16, 60, 1.05),
    "wide": (16, 512, 60, 1.03),
    "real saving": (1024, 512, 6, 0.95),
}
NATIVE_GOAL = 1.05
PAIRS = (("exclude", "checkpoint"), ("checkpoint", "native"), ("checkpoint", "plain"), ("exclude", "plain"))


class Block(nn.Cell):
    """x * 1.1 -> silu -> matmul -> silu -> matmul; the first matmul is the region that may be excluded."""

    def __init__(self, width: int) -> None:
        super().__init__()
        value = (np.eye(width) * 0.5).astype(np.float32)
        self.w = ms.Parameter(ms.Tensor(value), name="w")
        self.v = ms.Parameter(ms.Tensor(value), name="v")

    def project(self, x: ms.Tensor) -> ms.Tensor:
        return mint.matmul(x, self.w)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return mint.matmul(ops.silu(self.project(ops.silu(x * 1.1))), self.v)


class Native(nn.Cell):
    """MindSpore's own non-reentrant recompute, replaying the whole block as ours does."""

    def __init__(self, block: nn.Cell) -> None:
        super().__init__()
        self.block = block

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return ms.recompute(self.block, x, use_reentrant=False, early_stop=False)


def excluded(width: int) -> nn.Cell:
    block = Block(width)
    block.project = checkpoint_exclude_wrapper(block.project)
    return checkpoint_wrapper(block)


MODES: dict[str, Callable[[int], nn.Cell]] = {
    "plain": Block,
    "native": lambda width: Native(Block(width)),
    "checkpoint": lambda width: checkpoint_wrapper(Block(width)),
    "exclude": excluded,
}


def stack(mode: str, width: int, blocks: int) -> tuple[list[nn.Cell], tuple[ms.Parameter, ...]]:
    cells = [MODES[mode](width) for _ in range(blocks)]
    return cells, tuple(p for cell in cells for p in cell.trainable_params())


CLOCKS = {"wall": time.perf_counter, "python thread": time.thread_time}


def one_step(cells: list[nn.Cell], weights: tuple, x: ms.Tensor) -> dict[str, float]:
    """Seconds by each clock of a forward and a backward to the input and all weights."""
    executor.sync()
    began = {name: clock() for name, clock in CLOCKS.items()}
    out = x
    for cell in cells:
        out = cell(out)
    run_backward(
        (out,), (ops.ones_like(out),), False, False, (x, *weights), allow_unreachable=True, accumulate_grad=False
    )
    executor.sync()
    return {name: clock() - began[name] for name, clock in CLOCKS.items()}


def ahead(cells: list[nn.Cell], x: ms.Tensor) -> float:
    """The share of a forward's time to its result that is left when the call returns."""
    executor.sync()
    began, out = time.perf_counter(), x
    for cell in cells:
        out = cell(out)
    returned = time.perf_counter()
    executor.sync()
    done = time.perf_counter()
    return (done - returned) / (done - began)


def quartiles(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": middle, "q25": low, "q75": high}


def in_turns(stacks: dict[str, tuple], x: ms.Tensor, pairs: int, inner: int) -> dict[str, dict[str, list[float]]]:
    """Clock -> mode -> seconds of a step in each pair. The modes alternate, in the other order every second time."""
    times = {clock: {mode: [] for mode in stacks} for clock in CLOCKS}
    for pair in range(-2, pairs):  # two rounds of warm-up: kernels, and the first forward that is watched
        taken = {clock: dict.fromkeys(stacks, 0.0) for clock in CLOCKS}
        for _ in range(inner):
            for mode in list(stacks) if pair % 2 else list(reversed(stacks)):
                for clock, seconds in one_step(*stacks[mode], x).items():
                    taken[clock][mode] += seconds / inner
        if pair >= 0:
            for clock, by_mode in taken.items():
                for mode, seconds in by_mode.items():
                    times[clock][mode].append(seconds)
    return times


def compare(rows: int, width: int, blocks: int, pairs: int, inner: int = 1) -> dict:
    """By clock: microseconds per block of each mode, and the paired ratios."""
    x = ms.Tensor(np.random.RandomState(0).randn(rows, width).astype(np.float32))
    x.requires_grad_()
    found: dict = {}
    stacks = {mode: stack(mode, width, blocks) for mode in MODES}
    for clock, times in in_turns(stacks, x, pairs, inner).items():
        ratios = {(a, b): [s / t for s, t in zip(times[a], times[b], strict=True)] for a, b in PAIRS}
        found[clock] = {
            "microseconds per block": {m: quartiles([t / blocks * 1e6 for t in v]) for m, v in times.items()},
            "ratios": {f"{a} / {b}": quartiles(values) for (a, b), values in ratios.items()},
        }
    shares = [{mode: ahead(cells, x) for mode, (cells, _) in stacks.items()} for _ in range(pairs)]
    found["host ahead"] = {mode: quartiles([share[mode] for share in shares]) for mode in stacks}
    return found


def retained(rows: int, width: int) -> dict[str, int]:
    """Bytes that one block of each mode holds after its forward, its input included."""
    held = {}
    for mode, make in MODES.items():
        cell, x = make(width), ms.Tensor(np.ones((rows, width), np.float32))
        x.requires_grad_()
        cell(x)  # the watched one
        with observe() as observation:
            out = cell(x)
            held[mode] = report(observation).total
        del out
    return held


def growth(counts: tuple[int, ...], pairs: int) -> dict:
    """Microseconds of one block by the number of a region's inputs, and by the number of tensors its body saves."""
    results = {}
    for count in counts:
        results[f"{count} inputs"] = _region_cost(count, 1, pairs)
        results[f"{count} saved tensors"] = _region_cost(1, count, pairs)
    return results


def _region_cost(inputs: int, saved: int, pairs: int) -> dict:
    def body(*tensors: ms.Tensor) -> ms.Tensor:
        out = tensors[0]
        for i in range(saved):
            out = tensors[i % inputs] * out
        return out

    def block(call: Callable) -> tuple[list, tuple]:
        return [checkpoint_wrapper(lambda x: call(*[x * 1.0 for _ in range(inputs)]))], ()

    x = ms.Tensor(np.ones((4, 4), np.float32))
    x.requires_grad_()
    stacks = {"checkpoint": block(body), "exclude": block(checkpoint_exclude_wrapper(body))}
    times = in_turns(stacks, x, pairs, 5)["python thread"]
    return {mode: quartiles([t * 1e6 for t in values]) for mode, values in times.items()}


def verdicts(found: dict) -> dict[str, str]:
    """Goal by goal and clock by clock: met or not, from the paired medians."""
    lines = {}
    for name, by_clock in found["blocks"].items():
        for clock in CLOCKS:
            figures = by_clock[clock]
            for pair, limit in (("exclude / checkpoint", BLOCKS[name][3]), ("checkpoint / native", NATIVE_GOAL)):
                median = figures["ratios"][pair]["median"]
                met = "met" if median <= limit else "not met"
                lines[f"{name}: {pair}, {clock}"] = f"{median:.3f} (goal {limit}) {met}"
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30, help="measured pairs per block (at least 30 mean something)")
    parser.add_argument("--blocks", type=int, help="stack this many instead, on a machine that is slow or busy")
    parser.add_argument("--only", choices=tuple(BLOCKS), action="append", help="measure these blocks only")
    parser.add_argument("--asynchronous", action="store_true", help="don't wait for each kernel")
    parser.add_argument("--out", help="write the figures to this JSON file")
    options = parser.parse_args()
    ms.set_device("CPU")
    if not options.asynchronous:
        ms.runtime.launch_blocking()
    ms.set_context(runtime_num_threads=1)
    executor.set_grad_flag(True)
    found: dict = {"pairs": options.pairs, "mindspore": ms.__version__, "load": os.getloadavg(), "blocks": {}}
    for name in options.only or BLOCKS:
        rows, width, blocks, _ = BLOCKS[name]
        found["blocks"][name] = compare(rows, width, options.blocks or blocks, options.pairs)
        found["blocks"][name]["bytes held by a block"] = retained(rows, width)
        print(name, json.dumps(found["blocks"][name]), flush=True)
    if not options.only:
        found["one region"] = compare(16, 16, 1, options.pairs, 10)
        found["growth"] = growth((1, 8, 32, 64), options.pairs)
    found["verdicts"] = verdicts(found)
    print(json.dumps(found, indent=1))
    if options.out:
        with open(options.out, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
