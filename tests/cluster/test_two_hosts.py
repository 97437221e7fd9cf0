"""Two hosts with two workers each, over ssh, with MindSpore: what works, and every fault with what is printed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hp_memory.launch import checks as rules
from hp_memory.launch.launcher import preflight, supervise
from hp_memory.launch.node import processes
from hp_memory.launch.plan import LaunchPlan, plan_launch
from hp_memory.launch.script import check_node, render
from hp_memory.launch.settings import LaunchSettings

WORKER = str(Path(__file__).parents[1] / "integration" / "launch" / "worker.py")
ENDLESS = ("--steps=10000", "--pause=0.3")


@pytest.fixture
def plan_for(cluster, tmp_path) -> Callable[..., LaunchPlan]:
    def plan(*args: str, run_dir: Path = tmp_path, **settings) -> LaunchPlan:
        wanted = {"nodes": cluster.addresses, "connect": cluster.ssh, "heartbeat": 0.5, "lost_after": 6.0} | settings
        return plan_launch(LaunchSettings(**wanted), (WORKER, *args), run_dir, {})

    return plan


class AtStep:
    """Does something once, as soon as every rank has made a step."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action, self.time = action, None

    def __call__(self, views) -> None:
        if self.time is None and all("step" in view.record for view in views.values()):
            self.time = time.monotonic()
            self.action()


def run(
    plan: LaunchPlan, action: Callable[[], object], say: Callable[[str], object] = print
) -> tuple[supervise.Outcome, float]:
    """The outcome, and how many seconds after the action the launcher was done."""
    at_step = AtStep(action)
    outcome = supervise.run(plan, at_step, say)
    assert at_step.time is not None, outcome
    seconds = time.monotonic() - at_step.time
    # For the fault table of docs/launch.md: pytest -rP shows it.
    print(f"{outcome.message}: {seconds:.0f} s;", *(found.in_words() for found in outcome.failures), sep="\n  ")
    return outcome, seconds


def worker(plan: LaunchPlan, rank: int) -> int:
    environments = {pid: processes.environment_of(pid) for pid in processes.marked(plan.run_id)}
    return next(
        pid for pid, env in environments.items() if env.get("MS_ROLE") == "MS_WORKER" and env["RANK_ID"] == str(rank)
    )


def nothing_left(plan: LaunchPlan, seconds: float = 0.0) -> bool:
    deadline = time.monotonic() + seconds
    while processes.marked(plan.run_id) and time.monotonic() < deadline:
        time.sleep(0.1)
    return processes.marked(plan.run_id) == []


def test_four_workers_on_two_hosts_sum_over_all_ranks(plan_for):
    plan = plan_for("--steps=3")
    rules.check(plan, {"data": 4})
    rules.refuse(preflight.preflight(plan), plan)
    seen = {}
    outcome = supervise.run(plan, seen.update)
    assert outcome.exit_code == 0
    # All-reduce of rank + step over ranks 0 to 3, at step 2.
    assert [view.record["loss"] for view in seen.values()] == [14.0] * 4
    assert nothing_left(plan)


def test_killed_worker_ends_both_hosts_within_seconds(plan_for):
    plan = plan_for(*ENDLESS)
    outcome, seconds = run(plan, lambda: os.kill(worker(plan, 3), signal.SIGKILL))
    assert (outcome.exit_code, outcome.failed_rank) == (1, 3)
    assert outcome.message.startswith("rank 3 (node 1) failed: killed")
    assert seconds < 12
    assert nothing_left(plan)


def test_host_that_is_cut_off_is_given_up_and_ends_its_own_processes(plan_for, cluster):
    plan = plan_for(*ENDLESS)
    said: list[str] = []
    try:
        outcome, seconds = run(plan, lambda: cluster.cut(1), said.append)
        assert seconds < 40
        assert outcome.message == "node 1 failed: node lost"
        assert outcome.log_tail == ("nothing heard for 6 s",)
        assert "can't be reached; it ends its processes by itself" in said[-1]
        # The launcher can't reach it any more: the host itself misses the launcher.
        assert nothing_left(plan, seconds=15)
    finally:
        cluster.mend(1)


def test_cut_between_hosts_shows_as_a_time_out(plan_for, cluster):
    plan = plan_for(*ENDLESS, connect=cluster.without_network, connect_shell=False)
    try:
        outcome, seconds = run(plan, lambda: cluster.cut(1))
    finally:
        cluster.mend(1)
    assert outcome.kind == "communication time-out"
    assert seconds < 60
    assert nothing_left(plan)


def test_frozen_rank_shows_as_a_time_out_of_the_others_and_is_named(plan_for):
    plan = plan_for(*ENDLESS, "--fault=freeze", "--fault-rank=3", "--fault-step=3")
    outcome, seconds = run(plan, lambda: None)
    assert outcome.kind == "communication time-out"
    assert outcome.message.endswith("missing ranks: 3")
    assert seconds < 60
    assert nothing_left(plan)


def test_rank_that_raises_is_named_with_its_traceback(plan_for):
    plan = plan_for(*ENDLESS, "--fault=raise", "--fault-rank=1", "--fault-step=3")
    outcome, seconds = run(plan, lambda: None)
    assert outcome.message == "rank 1 (node 0) failed: crash, exit code 1"
    assert outcome.log_tail[-1] == "ValueError: this rank was told to fail"
    assert seconds < 12
    assert nothing_left(plan)


def test_lost_ssh_connection_leaves_no_process(plan_for, cluster):
    plan = plan_for(*ENDLESS)

    def end_connection():
        # The client's end goes away without a word, as with a laptop that is closed.
        for pid in processes.all_pids():
            with contextlib.suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
                if words[0] == "ssh" and f"root@{cluster.addresses[1]}" in words:
                    os.kill(pid, signal.SIGKILL)

    outcome, seconds = run(plan, end_connection)
    assert outcome.message == "node 1 failed: node lost"
    assert seconds < 25
    assert nothing_left(plan, seconds=10)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signal_to_the_launcher_ends_both_hosts(plan_for, number, code):
    plan = plan_for(*ENDLESS)
    outcome, seconds = run(plan, lambda: signal.raise_signal(number))
    assert (outcome.exit_code, outcome.message) == (code, f"ended by {number.name}")
    assert seconds < 12
    assert nothing_left(plan)


def test_full_disk_is_named(plan_for, cluster, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    # An ssh server that runs already doesn't see what is mounted later; a new connection into the namespace does.
    near = partial(plan_for, connect=cluster.without_network, connect_shell=False)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        refused = {check.name: check for check in preflight.preflight(near(run_dir=small))}
        assert refused["disk"].status == "bad"
        fault = ("--fault=fill_disk", "--fault-rank=2", "--fault-step=6")
        plan = near(*ENDLESS, *fault, run_dir=small, min_disk_gib=0)
        outcome, seconds = run(plan, lambda: None)
        assert (outcome.exit_code, outcome.kind) == (1, "disk full")
        assert seconds < 20
        assert nothing_left(plan)
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_other_version_on_one_host_is_refused(plan_for, cluster, tmp_path):
    info = tmp_path / "other" / "mindspore-2.9.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: mindspore\nVersion: 2.9.0\n")
    enter = tmp_path / "enter"
    enter.write_text(
        f'#!/bin/sh\n[ $1 = {cluster.addresses[1]} ] && export PYTHONPATH={info.parent}\nexec ip netns exec "$@"\n'
    )
    enter.chmod(0o755)
    checks = preflight.preflight(plan_for(connect=[str(enter), "{host}"], connect_shell=False))
    text = next(check.text for check in checks if check.name == "mindspore")
    assert text == f"differs: 2.10.0 on {cluster.addresses[0]}; 2.9.0 on {cluster.addresses[1]}"


def test_taken_port_is_refused(plan_for, cluster):
    code = "import socket, time; s = socket.create_server(('', 29111)); print('ready', flush=True); time.sleep(60)"
    words = ["ip", "netns", "exec", cluster.namespaces[0], "python3", "-c", code]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as listener:
        try:
            listener.stdout.readline()
            checks = {check.name: check for check in preflight.preflight(plan_for(master_port=29111))}
        finally:
            listener.kill()
    assert (checks["port"].status, checks["port"].key) == ("bad", "launch.master_port")
    assert checks["port"].text == f"{cluster.addresses[0]}: port 29111 is in use"


def test_host_without_ssh_server_and_host_that_does_not_resolve_are_named(plan_for, cluster):
    nodes = [cluster.addresses[0], "10.77.41.99", "no-such-host.invalid"]
    (check,) = preflight.preflight(plan_for(nodes=nodes))
    assert (check.name, check.status) == ("reachable", "bad")
    assert "10.77.41.99: " in check.text
    assert "no-such-host.invalid: " in check.text
    assert cluster.addresses[0] not in check.text


def test_missing_host_costs_the_cluster_time_out_and_no_more(plan_for, cluster):
    """One of two nodes started by hand; the other never comes."""
    plan = plan_for(nodes=[], num_nodes=2, node_rank=0, master_addr="127.0.0.1", master_port=29112, cluster_time_out=10)
    outcome = supervise.run(plan)
    assert outcome.exit_code == 1
    assert outcome.kind == "cluster not built"
    assert outcome.seconds < 60
    assert nothing_left(plan)


def written(plan: LaunchPlan) -> list[Path]:
    """The scripts of all nodes, and what they check their node by."""
    check_node.write_expectation(plan)
    return [render.write(plan, name, text) for name, text in render.render(plan).items()]


def test_scripts_started_by_hand_form_one_cluster(plan_for, cluster, tmp_path):
    plan = plan_for("--steps=2", action="scripts")
    files = written(plan)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HP_MEMORY")}
    jobs = [
        subprocess.Popen(["ip", "netns", "exec", namespace, str(file)], env=clean)
        for namespace, file in zip(cluster.namespaces, files, strict=True)
    ]
    assert [job.wait(timeout=120) for job in jobs] == [0, 0]
    assert "rank 3 done, world sum 10.0" in (tmp_path / "logs" / "node_1" / "worker_3.log").read_text()
    assert nothing_left(plan)


def test_script_ended_by_a_signal_leaves_no_worker(plan_for, cluster):
    plan = plan_for(*ENDLESS, action="scripts")
    first = written(plan)[0]
    job = subprocess.Popen(["ip", "netns", "exec", cluster.namespaces[0], str(first)])
    while not any("MS_ROLE" in processes.environment_of(pid) for pid in processes.marked(plan.run_id)):
        assert job.poll() is None
        time.sleep(0.1)
    threading.Timer(1.0, job.terminate).start()
    assert job.wait(timeout=30) == 143
    assert nothing_left(plan)
