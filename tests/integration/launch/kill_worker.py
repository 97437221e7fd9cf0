"""``python kill_worker.py RUN_DIR RANK STEP``: kills a rank's worker once it has made that step."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

from hp_memory.launch.node import processes
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.progress import progress_file
from hp_memory.launch.settings import LaunchSettings


def has_made(run_dir: Path, rank: int, step: int) -> bool:
    file = progress_file(run_dir, rank)
    lines = file.read_text().splitlines() if file.exists() else ()
    return any("loss" in record and record["step"] >= step for record in map(json.loads, lines))


def main() -> None:
    run_dir, rank, step = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    run_id = plan_launch(LaunchSettings(), ("x",), run_dir, {}).run_id
    while not has_made(run_dir, int(rank), step):
        time.sleep(0.02)
    for pid in processes.marked(run_id):
        env = processes.environment_of(pid)
        if env.get("MS_ROLE", "MS_WORKER") == "MS_WORKER" and env.get("RANK_ID") == rank:
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
