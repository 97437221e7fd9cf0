"""Jobs with their real trainers: a worker is killed, the job restarts, and no loss changes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from hp_memory.launch.node import processes
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.settings import LaunchSettings

KILLER = str(Path(__file__).parents[1] / "integration" / "launch" / "kill_worker.py")
HP_MEMORY = [sys.executable, "-c", "from hp_memory.cli import main; main()", "launch"]
TINY = [
    "recipe=tiny_moe", "train.steps=8", "train.warmup_steps=2", "train.save_every=3", "train.eval_batches=0",
    "launch.heartbeat=0.5", "launch.lost_after=6", "launch.min_disk_gib=1", "launch.min_host_memory_gib=1",
    "launch.cluster_time_out=120",
]  # fmt: skip
# A straight run, a killed one and its second attempt are more than pytest's usual patience on two cores.
pytestmark = pytest.mark.timeout(600)


def train(run_dir: Path, *overrides: str) -> str:
    words = [*HP_MEMORY, f"run_dir={run_dir}", *overrides]
    done = subprocess.run(words, capture_output=True, text=True, timeout=400, cwd=run_dir.parent)
    assert done.returncode == 0, done.stdout + done.stderr
    assert processes.marked(plan_launch(LaunchSettings(), ("x",), run_dir, {}).run_id) == []
    return done.stdout


def losses(run_dir: Path, rank: int) -> dict[int, set[float]]:
    """Step -> every loss that was seen at it, over all attempts."""
    seen: dict[int, set[float]] = {}
    for line in (run_dir / "progress" / f"rank_{rank}.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "loss" in record:
            seen.setdefault(record["step"], set()).add(record["loss"])
    return seen


def kill(run_dir: Path, rank: int, step: int, then: Callable[[], object] = lambda: None) -> None:
    """Kills that worker after that step, in the background, and does something more then."""

    def work() -> None:
        subprocess.run([sys.executable, KILLER, str(run_dir), str(rank), str(step)], check=True)
        then()

    threading.Thread(target=work, daemon=True).start()


@pytest.fixture(scope="module")
def hostfile(cluster, tmp_path_factory) -> Path:
    """Lists all hosts."""
    file = tmp_path_factory.mktemp("hosts") / "hosts"
    list_hosts(file, [*cluster.addresses, cluster.spare])
    return file


@pytest.fixture(scope="module")
def two_hosts(cluster, hostfile) -> list[str]:
    """Two of the hosts in the hostfile, with two workers each."""
    connect = "[" + ",".join(f"'{word}'" for word in cluster.ssh) + "]"
    return [
        *TINY, "parallel.data=4", "parallel.expert=4", f"launch.hostfile={hostfile}", "launch.num_nodes=2",
        f"launch.connect={connect}", "launch.restart_delay=0",
    ]  # fmt: skip


def list_hosts(hostfile: Path, hosts: list[str]) -> None:
    hostfile.write_text("".join(f"{host} slots=2\n" for host in hosts))


@pytest.fixture(scope="module")
def straight(two_hosts, tmp_path_factory) -> Path:
    """The run directory of an undisturbed run."""
    run_dir = tmp_path_factory.mktemp("straight") / "run"
    text = train(run_dir, *two_hosts)
    assert "4 workers on 2 node(s)" in text
    return run_dir


def test_two_hosts_train_the_tiny_recipe(straight):
    result = json.loads((straight / "result.json").read_text())
    assert result["last_loss"] < result["first_loss"]
    assert {file.name for file in (straight / "reports").iterdir()} == {f"rank_{r}.json" for r in range(4)}


def test_killed_worker_costs_time_but_changes_no_loss_also_on_a_spare_host(
    straight, two_hosts, hostfile, cluster, tmp_path
):
    broken = tmp_path / "broken"

    def after_the_kill() -> None:
        # What a rank leaves that dies while it saves; and the second host is taken out.
        shutil.copytree(broken / "checkpoints/step_00000003", broken / "checkpoints/step_00000004")
        (broken / "checkpoints/step_00000004/complete.json").unlink()
        list_hosts(hostfile, [cluster.addresses[0], cluster.spare])

    kill(broken, rank=3, step=5, then=after_the_kill)
    # The second scheduler binds the port right after the first one has ended.
    port = "launch.master_port=29333"
    text = train(broken, *two_hosts, "launch.max_restarts=1", port)
    assert "rank 3 (node 1) failed: killed" in text
    assert f"restart 1 of 1 from {broken}/checkpoints/step_00000003\n" in text
    for rank in range(4):
        assert losses(broken, rank) == losses(straight, rank)
        assert sorted(losses(broken, rank)) == list(range(1, 9))
    plans = [json.loads((broken / "launch" / f"plan_{attempt}.json").read_text()) for attempt in (0, 1)]
    assert [plan["nodes"][1]["host"] for plan in plans] == [cluster.addresses[1], cluster.spare]


@pytest.mark.skipif(find_spec("mindformers") is None, reason="mindformers isn't installed (uv sync)")
def test_killed_mindformers_trainer_goes_on_with_the_same_losses(tmp_path):
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    words = ["recipe=tiny_deepseek_v3", "train.steps=5", "train.micro_batches=1", "train.save_every=2", "launch=local"]
    train(straight, *words)

    def leave_half_a_checkpoint() -> None:
        half = broken / "checkpoints" / "iteration_00000003"
        half.mkdir()
        (half / "checkpoint-model-0000000-0000001.safetensors").write_bytes(b"half")

    kill(broken, rank=0, step=3, then=leave_half_a_checkpoint)
    text = train(broken, *words, "launch.max_restarts=1", "launch.restart_delay=3")
    assert f"restart 1 of 1 from {broken}/checkpoints/iteration_00000002\n" in text
    assert losses(broken, 0) == losses(straight, 0)
    assert json.loads((broken / "result.json").read_text())["steps"] == 5


def test_two_hosts_started_by_hand_train_together(cluster, tmp_path):
    run_dir = tmp_path / "run"
    by_hand = [
        *TINY, "launch=by_hand", "parallel.data=2", "parallel.expert=2", "launch.workers_per_node=1",
        "launch/hccl=default", f"launch.master_addr={cluster.addresses[0]}", f"run_dir={run_dir}",
    ]  # fmt: skip

    def start(rank: int) -> subprocess.Popen:
        words = ["ip", "netns", "exec", cluster.namespaces[rank], *HP_MEMORY, *by_hand, f"launch.node_rank={rank}"]
        return subprocess.Popen(words, cwd=tmp_path)

    first = start(0)
    while not (run_dir / "config.yaml").exists() and first.poll() is None:
        time.sleep(0.1)
    second = start(1)
    assert (second.wait(timeout=280), first.wait(timeout=60)) == (0, 0)
    assert sorted(losses(run_dir, 0)) == list(range(1, 9))
    assert {"plan_0.json", "plan_0_node_1.json"} <= {file.name for file in (run_dir / "launch").iterdir()}
