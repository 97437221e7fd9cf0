"""The tiny recipe in one process: it is killed, the job restarts, and no loss changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

KILLER = str(Path(__file__).parent / "kill_worker.py")
COMMAND = [
    sys.executable, "-c", "from hp_memory.cli import main; main()", "launch", "recipe=tiny_moe", "launch=local",
    "parallel.data=1", "parallel.expert=1", "train.steps=5", "train.warmup_steps=2", "train.save_every=2",
    "train.eval_batches=0", "launch.max_restarts=1", "launch.restart_delay=0",
]  # fmt: skip


def started(run_dir: Path) -> subprocess.Popen:
    return subprocess.Popen(
        [*COMMAND, f"run_dir={run_dir}"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def losses(run_dir: Path) -> list[tuple[int, float]]:
    lines = (run_dir / "progress" / "rank_0.jsonl").read_text().splitlines()
    return [(record["step"], record["loss"]) for record in map(json.loads, lines) if "loss" in record]


def test_killed_process_costs_time_but_changes_no_loss(tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    with started(straight) as undisturbed, started(broken) as killed:
        subprocess.run([sys.executable, KILLER, str(broken), "0", "3"], check=True, timeout=120)
        text = killed.communicate(timeout=120)[0]
        assert undisturbed.communicate(timeout=120)[0]
    assert (undisturbed.returncode, killed.returncode) == (0, 0), text
    assert f"restart 1 of 1 from {broken}/checkpoints/step_00000002" in text
    assert sorted(set(losses(broken))) == losses(straight), "a step done twice gave another loss"
    assert len(losses(broken)) > len(losses(straight))
