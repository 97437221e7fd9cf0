"""A job whose loss depends on all steps before: it dies in the middle of a checkpoint as often as it is told to."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from hp_memory.runs import checkpoint
from hp_memory.runs.checkpoint import CheckpointInfo
from hp_memory.runs.files import sum_of

STEPS, EVERY, DEADLY_STEP, RANKS = 12, 4, 8, 2


def main() -> None:
    deaths, words = int(sys.argv[1]), " ".join(sys.argv[2:])
    rank, run_dir = int(os.environ["RANK_ID"]), Path(os.environ["HP_MEMORY_RUN_DIR"])
    step, value = begin(os.environ.get("HP_MEMORY_RESUME", ""), rank)
    (run_dir / "progress").mkdir(exist_ok=True)
    while step < STEPS:
        step, value = step + 1, value * 48271 % 2147483647
        with open(run_dir / "progress" / f"rank_{rank}.jsonl", "a") as file:
            file.write(json.dumps({"step": step, "loss": value}) + "\n")
        if step % EVERY == 0:
            folder = checkpoint.folder_of(run_dir, step)
            if rank == 1 and step == DEADLY_STEP:
                die_again(run_dir / "deaths", folder, deaths, words)
            save(folder, rank, step, value)


def begin(resume: str, rank: int) -> tuple[int, int]:
    if not resume:
        return 0, 1
    return checkpoint.read_info(Path(resume)).step, int(checkpoint.load_rank(Path(resume), rank)["value"][0])


def die_again(count: Path, folder: Path, deaths: int, words: str) -> None:
    """Leaves half a file behind."""
    before = int(count.read_text()) if count.exists() else 0
    if before < deaths:
        count.write_text(str(before + 1))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rank_1.partial").write_text("half of")
        sys.exit(words or 3)


def save(folder: Path, rank: int, step: int, value: int) -> None:
    """Every rank goes on when all have saved."""
    checkpoint.save_rank(folder, rank, step, {"value": np.array([value])})
    files = [folder / f"rank_{other}.safetensors" for other in range(RANKS)]
    while not (folder / "complete.json").exists():
        if rank == 0 and all(file.exists() for file in files):
            checkpoint.mark_complete(folder, CheckpointInfo(step, "", RANKS, 1, tuple(map(sum_of, files))))
        time.sleep(0.02)


if __name__ == "__main__":
    main()
