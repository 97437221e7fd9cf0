"""The Slurm batch file under a real Slurm of one node, started for the test."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hp_memory.launch import processes
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.settings import LaunchSettings

CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""


@pytest.fixture
def slurm(needs, tmp_path, monkeypatch) -> Iterator[None]:
    needs("slurmctld", "slurmd", "munged", "sbatch")
    folder = tmp_path / "slurm"
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, cpus=os.cpu_count()))
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    Path("/run/munge").mkdir(exist_ok=True)
    subprocess.run(["chown", "munge", "/run/munge"], check=True)
    daemons = [
        subprocess.Popen(words)
        for words in (["runuser", "-u", "munge", "--", "munged", "-F"], ["slurmctld", "-D", "-i"], ["slurmd", "-D"])
    ]
    try:
        wait_for(lambda: "idle" in output("sinfo", "-h", "-o", "%T"), 60)
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait()


def output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.5)


@pytest.fixture
def submitted(slurm, tmp_path):
    """Writes the batch file of the tiny recipe, submits it with these variables, waits; gives state and output."""
    run_dir = tmp_path / "run"
    words = [
        "launch", "recipe=tiny_moe", "launch=slurm", "launch.num_nodes=1", "launch.workers_per_node=2",
        "train.steps=3", "train.eval_batches=0", f"run_dir={run_dir}",
    ]  # fmt: skip
    subprocess.run([sys.executable, "-c", "from hp_memory.cli import main; main()", *words], check=True, cwd=tmp_path)

    def submit(**env: str) -> tuple[str, str]:
        done = subprocess.run(
            ["sbatch", "--parsable", str(run_dir / "launch" / "job.sbatch")],
            env=os.environ | env, check=True, capture_output=True, text=True,
        )  # fmt: skip
        job = done.stdout.strip()
        wait_for(lambda: not output("squeue", "-h", "-j", job), 250)
        return output("scontrol", "show", "job", job), (run_dir / "launch" / f"slurm-{job}.log").read_text()

    return submit


def test_batch_file_trains_and_leaves_no_process(submitted, tmp_path):
    run_dir = tmp_path / "run"
    state, text = submitted()
    assert "JobState=COMPLETED" in state, text
    assert "shared and writable" in text
    assert json.loads((run_dir / "result.json").read_text())["steps"] == 3
    assert processes.marked(plan_launch(LaunchSettings(), ("x",), run_dir, {}).run_id) == []


def test_node_that_fails_its_check_fails_the_job_before_msrun(submitted, tmp_path):
    state, text = submitted(RANK_TABLE_FILE="/old/rank_table.json")
    assert "JobState=FAILED" in state
    assert "RANK_TABLE_FILE=/old/rank_table.json" in text
    assert not list((tmp_path / "run").rglob("worker_*.log"))
