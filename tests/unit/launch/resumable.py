"""A job whose loss depends on all steps before: it dies in the middle of a checkpoint as often as it is told to."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

STEPS, EVERY, DEADLY_STEP, RANKS = 12, 4, 8, 2


def main() -> None:
    deaths, words = int(sys.argv[1]), " ".join(sys.argv[2:])
    rank, run_dir = int(os.environ["RANK_ID"]), Path(os.environ["HP_MEMORY_RUN_DIR"])
    resume = os.environ.get("HP_MEMORY_RESUME")
    state = json.loads((Path(resume) / f"rank_{rank}.json").read_text()) if resume else {"step": 0, "value": 1}
    (run_dir / "progress").mkdir(exist_ok=True)
    while state["step"] < STEPS:
        state = {"step": state["step"] + 1, "value": state["value"] * 48271 % 2147483647}
        with open(run_dir / "progress" / f"rank_{rank}.jsonl", "a") as file:
            file.write(json.dumps({"step": state["step"], "loss": state["value"]}) + "\n")
        if state["step"] % EVERY == 0:
            folder = run_dir / "checkpoints" / f"step_{state['step']:08d}"
            folder.mkdir(parents=True, exist_ok=True)
            if rank == 1 and state["step"] == DEADLY_STEP:
                die_again(run_dir / "deaths", folder, deaths, words)
            save(folder, rank, state)


def die_again(count: Path, folder: Path, deaths: int, words: str) -> None:
    """Leaves half a file behind."""
    before = int(count.read_text()) if count.exists() else 0
    if before < deaths:
        count.write_text(str(before + 1))
        (folder / "rank_1.json").write_text('{"step": ')
        sys.exit(words or 3)


def save(folder: Path, rank: int, state: dict) -> None:
    """Every rank goes on when all have saved."""
    (folder / f"rank_{rank}.json").write_text(json.dumps(state))
    complete = folder / "complete.json"
    while not complete.exists():
        if rank == 0 and all(is_whole(folder / f"rank_{other}.json") for other in range(RANKS)):
            complete.write_text("{}")
        time.sleep(0.02)


def is_whole(file: Path) -> bool:
    try:
        return bool(json.loads(file.read_text()))
    except (OSError, ValueError):
        return False


if __name__ == "__main__":
    main()
