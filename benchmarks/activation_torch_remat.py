"""The block of activation_overhead.py in torch_remat, the closest peer: one region saved, against its own checkpoint.

Needs torch (a CPU build) and torch-remat, in an environment of their own:

    python -m venv remat && remat/bin/pip install torch torch-remat
    remat/bin/python benchmarks/activation_torch_remat.py --out torch_remat.json

Context, not a contest: another framework, other kernels. Only its ratio to its own plain checkpoint compares.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch_remat as remat

BLOCKS = {"pure overhead": (16, 16, 60), "wide": (16, 512, 60), "real saving": (1024, 512, 6)}


def block(mode: str, width: int) -> tuple[Callable, list[torch.Tensor]]:
    w = (torch.eye(width) * 0.5).requires_grad_()
    v = (torch.eye(width) * 0.5).requires_grad_()

    def project(x: torch.Tensor) -> torch.Tensor:
        return x @ w

    def plain(x: torch.Tensor) -> torch.Tensor:
        y = torch.nn.functional.silu(x * 1.1)
        if mode == "exclude":
            y = remat.region(project, "project", recompute=False)(y)
            remat.recompute_needs_tensor(y)
        else:
            y = project(y)
        return torch.nn.functional.silu(y) @ v

    return plain if mode == "plain" else remat.checkpoint(region_name="block")(plain), [w, v]


def one_step(cells: list[Callable], weights: list, x: torch.Tensor) -> float:
    began = time.thread_time()
    out = x
    for cell in cells:
        out = cell(out)
    torch.autograd.grad(out, [x, *weights], torch.ones_like(out))
    return time.thread_time() - began


def compare(rows: int, width: int, blocks: int, pairs: int) -> dict:
    x = torch.randn(rows, width).requires_grad_()
    stacks = {}
    for mode in ("plain", "checkpoint", "exclude"):
        made = [block(mode, width) for _ in range(blocks)]
        stacks[mode] = [cell for cell, _ in made], [w for _, weights in made for w in weights]
    times: dict[str, list[float]] = {mode: [] for mode in stacks}
    for pair in range(-2, pairs):
        for mode in list(stacks) if pair % 2 else list(reversed(stacks)):
            seconds = one_step(*stacks[mode], x)
            if pair >= 0:
                times[mode].append(seconds)
    ratios = [a / b for a, b in zip(times["exclude"], times["checkpoint"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return {
        "microseconds per block": {m: statistics.median(t) / blocks * 1e6 for m, t in times.items()},
        "exclude / checkpoint": {"median": middle, "q25": low, "q75": high},
    }


def saved_report(mode: str, rows: int, width: int) -> str:
    """torch_remat's own account of what one block holds after forward."""
    cell, _ = block(mode, width)
    return remat.format_saved_tensors_report(cell(torch.randn(rows, width).requires_grad_()).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--out", help="write the figures to this JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = {
        "torch": torch.__version__,
        "blocks": {name: compare(*sizes, options.pairs) for name, sizes in BLOCKS.items()},
        "held": {mode: saved_report(mode, 1024, 512) for mode in ("checkpoint", "exclude")},
    }
    print(json.dumps(found, indent=1))
    if options.out:
        with open(options.out, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
