from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from hp_memory.errors import ConfigError
from hp_memory.launch.launcher.job import launch
from hp_memory.launch.node import processes
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.settings import LaunchSettings

RESUMABLE = str(Path(__file__).parents[1] / "resumable.py")


@pytest.fixture
def job(python, run_dir):
    """Launches on the stand-in for msrun; returns exit code and what was printed."""

    def start(*task: str, parallel=None, env=None, **settings) -> tuple[int, str]:
        quick = {"python": python, "heartbeat": 0.2, "lost_after": 2.0, "restart_delay": 0.1, "min_disk_gib": 0.01}
        console = Console(file=io.StringIO(), width=200)
        code = launch(LaunchSettings(**quick | settings), lambda world: task, run_dir, env or {}, parallel, console)
        return code, console.file.getvalue()

    yield start
    assert processes.marked(plan_launch(LaunchSettings(), ("x",), run_dir, {}).run_id) == []


def losses(run_dir, rank=0):
    """Step -> set of losses that were ever seen at it."""
    seen: dict[int, set] = {}
    for line in (run_dir / "progress" / f"rank_{rank}.jsonl").read_text().splitlines():
        record = json.loads(line)
        seen.setdefault(record["step"], set()).add(record["loss"])
    return seen


def test_job_restarts_from_the_last_complete_checkpoint_with_the_same_losses(job, run_dir, tmp_path):
    code, text = job(RESUMABLE, "1", max_restarts=2)
    assert code == 0
    assert "rank 1 (node 0) failed" in text
    assert f"restart 1 of 2 from {run_dir}/checkpoints/step_00000004" in text, "step 8 was half written"
    for rank in (0, 1):
        seen = losses(run_dir, rank)
        assert sorted(seen) == list(range(1, 13))
        assert all(len(values) == 1 for values in seen.values())
    assert (run_dir / "logs_attempt_0" / "node_0" / "worker_1.log").exists()
    assert json.loads((run_dir / "launch" / "outcome_0.json").read_text())["failed_rank"] == 1
    assert json.loads((run_dir / "launch" / "outcome_1.json").read_text())["exit_code"] == 0


def test_job_gives_up_after_max_restarts(job):
    code, text = job(RESUMABLE, "9", max_restarts=1)
    assert code == 1
    assert "restart 1 of 1" in text


def test_mistake_in_the_config_is_not_tried_again(job):
    code, text = job(RESUMABLE, "9", "hp_memory.errors.ConfigError: layout", max_restarts=3)
    assert code == 1
    assert "restart" not in text


def test_node_taken_out_between_attempts_is_replaced_by_a_spare_one(job, run_dir, monkeypatch):
    hostfile = run_dir / "hosts"
    hostfile.write_text("127.0.0.1\n127.0.0.2\n127.0.0.3\n")
    from hp_memory.launch.launcher import job as module
    from hp_memory.launch.launcher.restart import keep_logs

    def operator(run_dir_, attempt):
        hostfile.write_text("127.0.0.1\n127.0.0.3\n")
        keep_logs(run_dir_, attempt)

    monkeypatch.setattr(module.restart, "keep_logs", operator)
    # The stand-in needs no wrapper against a second scheduler.
    monkeypatch.setattr("hp_memory.launch.command.SAME_MACHINE", ("msrun",))
    code, _ = job(RESUMABLE, "1", max_restarts=1, hostfile=str(hostfile), num_nodes=2, workers_per_node=1)
    assert code == 0
    hosts = [[node["host"] for node in plan["nodes"]] for plan in plans(run_dir)]
    assert hosts == [["127.0.0.1", "127.0.0.2"], ["127.0.0.1", "127.0.0.3"]]


def plans(run_dir):
    return [json.loads(file.read_text()) for file in sorted((run_dir / "launch").glob("plan_*.json"))]


def test_fewer_nodes_than_the_parallel_sizes_need_end_the_restarts(python, run_dir, monkeypatch):
    hostfile = run_dir / "hosts"
    hostfile.write_text("127.0.0.1\n127.0.0.2\n")
    monkeypatch.setattr("hp_memory.launch.command.SAME_MACHINE", ("msrun",))
    from hp_memory.launch.launcher import job as module

    monkeypatch.setattr(module.restart, "keep_logs", lambda *_: hostfile.write_text("127.0.0.1\n"))
    settings = LaunchSettings(
        python=python, heartbeat=0.2, lost_after=2.0, restart_delay=0.1, max_restarts=1, hostfile=str(hostfile),
        workers_per_node=1,
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=200)
    code = launch(settings, lambda world: (RESUMABLE, "1"), run_dir, {}, {"data": 2}, console)
    assert code == 1
    assert "needs 2 workers, the launch has 1" in console.file.getvalue()


def test_dry_run_shows_everything_and_touches_nothing(job, run_dir):
    code, text = job("train.py", "--x=1 2", dry_run=True, env={"HCCL_BUFFSIZE": "200"})
    assert code == 0
    assert "msrun --worker_num=2" in text
    assert "train.py '--x=1 2'" in text
    assert "HCCL_BUFFSIZE=200" in text
    assert list(run_dir.iterdir()) == []


@pytest.mark.parametrize(
    ("action", "files"), [("scripts", ["node_0.sh", "token_0"]), ("slurm", ["job.sbatch", "node.sh", "token_0"])]
)
def test_scripts_are_written_and_nothing_is_started(job, run_dir, action, files):
    code, text = job("train.py", action=action)
    assert code == 0
    assert sorted(path.name for path in (run_dir / "launch").iterdir()) == ["expected.json", *files]
    assert f"wrote {run_dir}/launch/{files[0]}" in text


def test_check_refuses_before_anything_is_written(job, run_dir):
    with pytest.raises(ConfigError, match="MS_ROLE"):
        job("train.py", env={"MS_ROLE": "MS_WORKER"})
    with pytest.raises(ConfigError, match="needs 3 workers"):
        job("train.py", parallel={"data": 3})
    assert list(run_dir.iterdir()) == []


def test_preflight_refuses_with_the_table_shown(job, run_dir):
    with pytest.raises(ConfigError, match=r"launch.min_disk_gib.*GiB free"):
        job("train.py", min_disk_gib=10**9)
    assert not (run_dir / "logs" / "node_0" / "msrun.log").exists()


def test_task_of_the_settings_replaces_the_trainer(job, run_dir):
    code, text = job("train.py", dry_run=True, task=["run_mindformer.py", "--config", "exported.yaml"])
    assert code == 0
    assert text.rstrip().endswith("run_mindformer.py --config exported.yaml")
