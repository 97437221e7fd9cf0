"""Starts workers as msrun does, in sessions of their own, and is as slow to say that one has failed."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for name in ("worker_num", "local_worker_num", "master_port", "node_rank", "cluster_time_out"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("master_addr", "log_dir", "join", "tail_worker_log"):
        parser.add_argument(f"--{name}")
    parser.add_argument("task", nargs=argparse.REMAINDER)
    return parser.parse_args()


def start(args: argparse.Namespace, name: str, **env: str) -> subprocess.Popen:
    with open(Path(args.log_dir) / name, "w") as log:
        return subprocess.Popen(
            ["python", *args.task], env=os.environ | env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )


def main() -> int:
    args = arguments()
    if "--not-at-all" in args.task:
        return 0
    Path(args.log_dir).mkdir(parents=True, exist_ok=True)
    first = args.node_rank * args.local_worker_num
    workers = {
        rank: start(args, f"worker_{rank}.log", MS_ROLE="MS_WORKER", RANK_ID=str(rank))
        for rank in range(first, first + args.local_worker_num)
    }
    while True:
        codes = {worker: worker.poll() for worker in workers.values()}
        for worker, code in codes.items():
            if code:
                print(f"Worker process {worker.pid} exit with exception. Error code: {code}.", flush=True)
                time.sleep(30)  # The scheduler takes its time to notice.
                return 1
        if all(code == 0 for code in codes.values()):
            return 0
        time.sleep(1)


if __name__ == "__main__":
    sys.exit(main())
