"""The tiny recipe with its real trainer: a rank is killed, the job restarts, and no loss changes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from hp_memory.launch import processes
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.settings import LaunchSettings

COMMAND = [
    sys.executable, "-c", "from hp_memory.cli import main; main()", "launch", "recipe=tiny_moe", "train.steps=8",
    "train.save_every=3", "train.eval_batches=0", "launch.heartbeat=0.5", "launch.lost_after=6",
]  # fmt: skip


def train(run_dir: Path, *overrides: str) -> str:
    words = [*COMMAND, f"run_dir={run_dir}", *overrides]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, cwd=run_dir.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(run_dir: Path, rank: int) -> dict[int, set[float]]:
    seen: dict[int, set[float]] = {}
    for line in (run_dir / "progress" / f"rank_{rank}.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            seen.setdefault(record["step"], set()).add(record["loss"])
    return seen


def kill_after_step(run_dir: Path, rank: int, step: int) -> None:
    """Kills one worker once it has got that far."""
    run_id = plan_launch(LaunchSettings(), ("x",), run_dir, {}).run_id
    file = run_dir / "progress" / f"rank_{rank}.jsonl"
    while not (file.exists() and step in losses(run_dir, rank)):
        time.sleep(0.02)
    for pid in processes.marked(run_id):
        env = processes.environment_of(pid)
        if env.get("MS_ROLE") == "MS_WORKER" and env.get("RANK_ID") == str(rank):
            os.kill(pid, signal.SIGKILL)
            return


def test_killed_rank_costs_time_but_changes_no_loss(tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    train(straight)
    threading.Thread(target=kill_after_step, args=(broken, 1, 5), daemon=True).start()
    # One port for both attempts: the second scheduler binds it right after the first one was killed.
    text = train(broken, "launch.max_restarts=1", "launch.restart_delay=0", "launch.master_port=29333")
    assert "rank 1 (node 0) failed: killed" in text
    assert f"restart 1 of 1 from {broken}/checkpoints/step_00000003" in text
    for rank in (0, 1):
        assert losses(broken, rank) == losses(straight, rank)
        assert sorted(losses(broken, rank)) == list(range(1, 9))


def test_two_hosts_train_the_tiny_recipe(cluster, tmp_path):
    nodes = "[" + ",".join(cluster.addresses) + "]"
    connect = "[" + ",".join(f"'{word}'" for word in cluster.ssh) + "]"
    text = train(
        tmp_path / "run", "parallel.data=4", "parallel.expert=4", f"launch.nodes={nodes}", f"launch.connect={connect}"
    )
    assert "4 workers on 2 node(s)" in text
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["last_loss"] < result["first_loss"]
    assert {file.name for file in (tmp_path / "run" / "reports").iterdir()} == {f"rank_{r}.json" for r in range(4)}


def test_two_hosts_started_by_hand_train_together(cluster, tmp_path):
    run_dir = tmp_path / "run"
    by_hand = [
        "launch=by_hand", "parallel.data=2", "parallel.expert=2", "launch.workers_per_node=1", "launch/hccl=default",
        "launch.min_disk_gib=1", "launch.min_host_memory_gib=1", f"launch.master_addr={cluster.addresses[0]}",
        "launch.cluster_time_out=120", f"run_dir={run_dir}",
    ]  # fmt: skip

    def start(rank: int) -> subprocess.Popen:
        words = ["ip", "netns", "exec", cluster.namespaces[rank], *COMMAND, *by_hand, f"launch.node_rank={rank}"]
        return subprocess.Popen(words, cwd=tmp_path)

    first = start(0)
    while not (run_dir / "config.yaml").exists() and first.poll() is None:
        time.sleep(0.1)
    second = start(1)
    assert (second.wait(timeout=280), first.wait(timeout=60)) == (0, 0)
    assert sorted(losses(run_dir, 0)) == list(range(1, 9))
    assert {"plan_0.json", "plan_0_node_1.json"} <= {file.name for file in (run_dir / "launch").iterdir()}
