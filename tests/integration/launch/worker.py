"""A worker for the launcher's tests: joins the cluster, makes steps of one collective each, and fails on request."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--fault", default="", help="raise, exit, freeze, fill_disk or before_init")
    parser.add_argument("--fault-rank", type=int, default=1)
    parser.add_argument("--fault-step", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="no cluster and no MindSpore: one process")
    return parser.parse_args()


def note(rank: int, **record) -> None:
    file = Path(os.environ["HP_MEMORY_RUN_DIR"]) / "progress" / f"rank_{rank}.jsonl"
    file.parent.mkdir(exist_ok=True)
    with open(file, "a") as stream:
        stream.write(json.dumps(record) + "\n")


def fail(args: argparse.Namespace, rank: int, step: int) -> None:
    if rank != args.fault_rank or step != args.fault_step:
        return
    if args.fault == "raise":
        raise ValueError("this rank was told to fail")
    if args.fault == "exit":
        sys.exit(3)
    if args.fault == "freeze":
        time.sleep(1000)
    if args.fault == "fill_disk":
        fill_disk(Path(os.environ["HP_MEMORY_RUN_DIR"]))


def fill_disk(folder: Path) -> None:
    with open(folder / "checkpoint", "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def join():
    import mindspore as ms
    from mindspore import communication

    ms.set_device("CPU")
    ms.runtime.launch_blocking()
    ms.set_context(runtime_num_threads=1)
    communication.init()
    add = ms.ops.AllReduce()
    return lambda value: float(add(ms.Tensor([value], ms.float32)).asnumpy()[0])


def main() -> None:
    args = arguments()
    rank = int(os.environ["RANK_ID"])
    if args.fault == "before_init" and os.environ.get("MS_ROLE") == "MS_WORKER" and rank == args.fault_rank:
        sys.exit("hp-memory: layout.default='sve': unknown")
    total = (lambda value: value) if args.alone else join()
    for step in range(args.steps):
        begin = time.monotonic()
        fail(args, rank, step)
        loss = total(float(rank + step))
        time.sleep(args.pause)
        note(rank, step=step, loss=loss, seconds=time.monotonic() - begin)
    print(f"rank {rank} done, world sum {loss}")


if __name__ == "__main__":
    main()
