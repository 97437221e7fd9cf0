"""The Slurm batch file under a real Slurm of two nodes, started for the test: a namespace and a host name each."""

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

from hp_memory.launch.node import processes
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.settings import LaunchSettings

KILLER = str(Path(__file__).parents[1] / "integration" / "launch" / "kill_worker.py")
NAMES = ("hpnode1", "hpnode2")
CONFIG = """\
ClusterName=test
SlurmctldHost={host}({bridge})
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd_%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd_%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# What the training needs beside the launch; a second submission is to find a checkpoint.
TINY = [
    "recipe=tiny_moe", "parallel.data=4", "parallel.expert=4", "train.steps=6", "train.warmup_steps=2",
    "train.save_every=2", "train.eval_batches=0",
]  # fmt: skip
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def slurm(cluster, needs, tmp_path_factory) -> Iterator[None]:
    needs("slurmctld", "slurmd", "munged", "sbatch", "nsenter", "unshare")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", *(f"spool_{node}" for node in NAMES)):
        (folder / name).mkdir()
    hosts = folder / "hosts"
    lines = [f"{address} {name}\n" for name, address in zip(NAMES, cluster.addresses, strict=True)]
    hosts.write_text("127.0.0.1 localhost\n" + "".join(lines))
    nodes = "".join(
        f"NodeName={name} NodeAddr={address} CPUs={os.cpu_count()} State=UNKNOWN\n"
        for name, address in zip(NAMES, cluster.addresses, strict=True)
    )
    config = folder / "slurm.conf"
    config.write_text(
        CONFIG.format(host=socket.gethostname().partition(".")[0], bridge=cluster.gateway, folder=folder, nodes=nodes)
    )
    os.environ["SLURM_CONF"] = str(config)
    Path("/run/munge").mkdir(exist_ok=True)
    subprocess.run(["chown", "munge", "/run/munge"], check=True)
    daemons = [["runuser", "-u", "munge", "--", "munged", "-F"], ["slurmctld", "-D", "-i"]]
    daemons += [slurmd(namespace, name, hosts) for namespace, name in zip(cluster.namespaces, NAMES, strict=True)]
    running = [subprocess.Popen(words) for words in daemons]
    try:
        wait_for(lambda: output("sinfo", "-h", "-N", "-o", "%T") == "idle\nidle", 60)
        yield
    finally:
        for daemon in reversed(running):
            daemon.terminate()
            daemon.wait()
        del os.environ["SLURM_CONF"]


def slurmd(namespace: str, name: str, hosts: Path) -> list[str]:
    """The daemon of one node, which has a name of its own and knows the others' addresses."""
    # Not `ip netns exec`: that mounts a new /sys, in which slurmd misses its cgroups.
    inside = f"hostname {name} && mount --bind {hosts} /etc/hosts && exec slurmd -D"
    return ["nsenter", f"--net=/run/netns/{namespace}", "unshare", "--uts", "--mount", "sh", "-c", inside]


def output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.5)


@pytest.fixture
def run_dir(tmp_path) -> Path:
    """With a batch file for two nodes with two workers each."""
    path = tmp_path / "run"
    words = [*TINY, "launch=slurm", "launch.num_nodes=2", "launch.workers_per_node=2", f"run_dir={path}"]
    words += ["launch.cluster_time_out=120"]
    command = [sys.executable, "-c", "from hp_memory.cli import main; main()", "launch", *words]
    subprocess.run(command, check=True, cwd=tmp_path)
    return path


def submit(run_dir: Path, **env: str) -> str:
    """The new job's number."""
    words = ["sbatch", "--parsable", str(run_dir / "launch" / "job.sbatch")]
    return subprocess.run(words, env=os.environ | env, check=True, capture_output=True, text=True).stdout.strip()


def end_of(job: str, run_dir: Path) -> tuple[str, str]:
    """Waits for it; its state and what it printed."""
    wait_for(lambda: not output("squeue", "-h", "-j", job), 300)
    state = output("scontrol", "show", "job", job).partition("JobState=")[2].split()[0]
    return state, (run_dir / "launch" / f"slurm-{job}.log").read_text()


def nothing_left(run_dir: Path) -> bool:
    return processes.marked(plan_launch(LaunchSettings(), ("x",), run_dir, {}).run_id) == []


def test_job_that_failed_goes_on_where_it_was_when_it_is_submitted_again(slurm, run_dir):
    job = submit(run_dir)
    subprocess.run([sys.executable, KILLER, str(run_dir), "3", "3"], check=True, timeout=300)
    state, text = end_of(job, run_dir)
    assert state == "FAILED", text
    assert text.count("shared and writable") == 2, "each node has checked itself"
    assert nothing_left(run_dir)
    state, text = end_of(submit(run_dir), run_dir)
    assert state == "COMPLETED", text
    assert json.loads((run_dir / "result.json").read_text())["steps"] == 6
    assert nothing_left(run_dir)
    lines = (run_dir / "progress" / "rank_3.jsonl").read_text().splitlines()
    losses = [(record["step"], record["loss"]) for record in map(json.loads, lines) if "loss" in record]
    assert [step for step, _ in losses][:2] == [1, 2]
    assert [step for step, _ in sorted(set(losses))] == [1, 2, 3, 4, 5, 6], "a step done twice gave another loss"
    assert len(losses) > 6


def test_node_that_fails_its_check_fails_the_job_before_msrun(slurm, run_dir):
    state, text = end_of(submit(run_dir, RANK_TABLE_FILE="/old/rank_table.json"), run_dir)
    assert state == "FAILED"
    assert "environment.RANK_TABLE_FILE='/old/rank_table.json'" in text
    assert not list(run_dir.rglob("worker_*.log"))
