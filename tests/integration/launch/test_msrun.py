"""The launcher against the real msrun: what its stand-in in the unit tests can't vouch for."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hp_memory.launch.command import msrun_argv
from hp_memory.launch.launcher import supervise
from hp_memory.launch.node import processes
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.settings import LaunchSettings

WORKER = str(Path(__file__).parent / "worker.py")


@pytest.fixture
def planned(tmp_path):
    def plan(*args: str, **settings):
        return plan_launch(LaunchSettings(heartbeat=0.5, lost_after=10.0, **settings), (WORKER, *args), tmp_path, {})

    return plan


def test_every_flag_we_pass_exists():
    argv = msrun_argv(
        LaunchSettings(), ("x",), world=2, local=2, node_rank="0", master_addr="a", master_port=1, log_dir="d"
    )
    ours = {word.partition("=")[0] for word in argv if word.startswith("--")}
    help_text = subprocess.run([Path(sys.executable).parent / "msrun", "--help"], capture_output=True, text=True).stdout
    assert ours <= set(re.findall(r"--\w+", help_text))


def test_rank_that_raises_is_named_long_before_msrun_would(planned):
    plan = planned("--steps=1000", "--pause=0.2", "--fault=raise", "--fault-rank=1", "--fault-step=3")
    last_step = {}

    def note(views):
        last_step.update({rank: time.monotonic() for rank, view in views.items() if view.state == "running"})

    outcome = supervise.run(plan, note)
    assert outcome.message == "rank 1 (node 0) failed: crash, exit code 1"
    assert outcome.log_tail[-1] == "ValueError: this rank was told to fail"
    assert time.monotonic() - last_step[1] < 10, "msrun alone takes half a minute more"
    assert processes.marked(plan.run_id) == []


def test_two_nodes_on_one_machine_form_one_cluster_without_a_second_scheduler(planned, tmp_path):
    plan = planned("--steps=2", nodes=["127.0.0.1", "127.0.0.2"], workers_per_node=1)
    outcome = supervise.run(plan)
    assert (outcome.exit_code, outcome.failures) == (0, [])
    for rank in (0, 1):
        assert f"rank {rank} done, world sum 3.0" in (tmp_path / f"logs/node_{rank}/worker_{rank}.log").read_text()
    assert not (tmp_path / "logs/node_1/scheduler.log").exists()


def test_launchers_end_by_signal_leaves_nothing_of_msrun(tmp_path):
    code = (
        "import sys; from pathlib import Path; from hp_memory.launch.launcher import supervise;"
        "from hp_memory.launch.plan import plan_launch; from hp_memory.launch.settings import LaunchSettings;"
        "plan = plan_launch(LaunchSettings(), (sys.argv[1], '--steps=1000'), Path(sys.argv[2]), {});"
        "sys.exit(supervise.run(plan).exit_code)"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code, WORKER, str(tmp_path)])
    run_id = plan_launch(LaunchSettings(), ("x",), tmp_path, {}).run_id

    def roles():
        return [processes.environment_of(pid).get("MS_ROLE") for pid in processes.marked(run_id)]

    while roles().count("MS_WORKER") < 2 or "MS_SCHED" not in roles():
        time.sleep(0.1)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(timeout=20) == 143
    assert processes.marked(run_id) == []
    assert os.path.exists(tmp_path / "logs/node_0/msrun.log")
