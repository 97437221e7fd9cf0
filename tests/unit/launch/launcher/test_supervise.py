from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hp_memory.launch.failure import Failure
from hp_memory.launch.launcher import supervise
from hp_memory.launch.launcher.supervise import Outcome
from hp_memory.launch.node import processes


def wait_for(condition, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError("it never happened")


def later(action, *args) -> threading.Thread:
    thread = threading.Thread(target=action, args=args, daemon=True)
    thread.start()
    return thread


def workers_of(plan) -> dict[int, int]:
    """Rank -> pid, once all are there."""

    def found():
        environments = {pid: processes.environment_of(pid) for pid in processes.marked(plan.run_id)}
        ranks = {int(e["RANK_ID"]): pid for pid, e in environments.items() if e.get("MS_ROLE") == "MS_WORKER"}
        return ranks if len(ranks) == plan.world_size else None

    return wait_for(found)


def test_good_run_ends_with_zero_and_shows_the_last_step_of_every_rank(planned):
    seen = {}
    outcome = supervise.run(planned("--steps=2"), on_progress=seen.update)
    assert (outcome.exit_code, outcome.kind, outcome.failures) == (0, "", [])
    assert {rank: (view.state, view.record["step"]) for rank, view in seen.items()} == {0: ("done", 1), 1: ("done", 1)}


def test_failing_rank_is_named_with_its_log_and_ends_the_others_at_once(planned):
    plan = planned("--steps=100", "--pause=0.2", "--fault=raise", "--fault-rank=1", "--fault-step=2")
    outcome = supervise.run(plan)
    assert (outcome.exit_code, outcome.failed_rank, outcome.kind) == (1, 1, "crash")
    assert outcome.log_tail[-1] == "ValueError: this rank was told to fail"
    assert outcome.message == "rank 1 (node 0) failed: crash, exit code 1"
    assert outcome.seconds < 10, "msrun's own way out takes half a minute"
    assert processes.marked(plan.run_id) == []


def test_killed_worker_is_told_apart_from_those_ended_for_its_sake(planned):
    plan = planned("--steps=1000", "--pause=0.1")
    later(lambda: os.kill(workers_of(plan)[1], signal.SIGKILL))
    outcome = supervise.run(plan)
    assert (outcome.exit_code, outcome.failed_rank) == (1, 1), outcome
    assert outcome.kind.startswith("killed")
    assert processes.marked(plan.run_id) == []


def test_worker_that_exits_before_msrun_asks_keeps_its_code(outcome_of):
    outcome = outcome_of("--fault=exit", "--fault-rank=0", "--fault-step=0")
    assert (outcome.failed_rank, outcome.failures[0].code) == (0, 3)


def test_msrun_that_runs_nothing_and_returns_zero_is_a_failure(outcome_of):
    outcome = outcome_of("--not-at-all")
    assert (outcome.exit_code, outcome.kind) == (1, "msrun ended without running its workers")


def test_missing_program_is_a_failure(planned):
    plan = planned()
    nodes = tuple(replace(node, argv=("no-such-program",)) for node in plan.nodes)
    outcome = supervise.run(replace(plan, nodes=nodes))
    assert (outcome.exit_code, outcome.kind) == (1, "launcher can't start")
    assert "no-such-program" in outcome.log_tail[0]


def test_one_process_without_msrun(outcome_of):
    assert outcome_of("--steps=1", launcher="process", workers_per_node=1).exit_code == 0
    failed = outcome_of("--fault=exit", "--fault-rank=0", launcher="process", workers_per_node=1)
    assert (failed.exit_code, failed.failed_rank, failed.failures[0].code) == (1, 0, 3)


def test_two_nodes_on_this_machine_are_both_ended_when_one_fails(planned):
    plan = planned(
        "--steps=1000", "--pause=0.1", "--fault=raise", "--fault-rank=3", "--fault-step=5",
        nodes=["127.0.0.1", "127.0.0.2"], workers_per_node=2,
    )  # fmt: skip
    plan = without_the_second_scheduler(plan)
    outcome = supervise.run(plan)
    assert outcome.message == "rank 3 (node 1) failed: crash, exit code 1"
    assert outcome.seconds < 15
    assert processes.marked(plan.run_id) == []


def without_the_second_scheduler(plan):
    """The stand-in has no scheduler, so it needs no wrapper against a second one."""
    words = plan.task
    nodes = tuple(
        replace(n, argv=("msrun", *[a for a in n.argv[: -len(words)] if a.startswith("--")], *words))
        for n in plan.nodes
    )
    return replace(plan, nodes=nodes)


@pytest.mark.parametrize(("timed_out", "lost", "missing"), [([0], [3], "3"), ([0, 1], [], "2, 3"), ([], [], "")])
def test_missing_ranks_are_the_schedulers_or_those_who_did_not_give_up(planned, timed_out, lost, missing):
    plan = planned(nodes=["127.0.0.1", "127.0.0.2"])
    job = supervise._Supervision(plan, lambda views: None, print, [])
    job._take(1, {"event": "failed", "failure": Failure("communication time-out", 1, 2, 1).to_dict()})
    job._take(0, {"event": "ended", "left": [], "why": "", "timed_out": timed_out, "missing": lost})
    assert ", ".join(map(str, job._outcome().failures[0].missing)) == missing


def test_second_launch_on_a_port_is_refused(planned, run_dir):
    plan = planned("--steps=1000", "--pause=0.1", master_port=29876)
    first: list[Outcome] = []
    thread = later(lambda: first.append(supervise.run(plan)))
    workers_of(plan)
    second = supervise.run(replace(plan, run_id="another"))
    assert (second.exit_code, second.kind) == (1, "port taken")
    processes.end(plan.run_id)
    thread.join(20)
    assert first[0].exit_code == 1


def test_stalled_rank_is_reported_and_may_end_the_job(planned):
    said: list[str] = []
    plan = planned("--steps=1000", "--pause=60", stall_after=1.5, stall_ends=True)
    outcome = supervise.run(plan, say=said.append)
    assert (outcome.exit_code, outcome.kind) == (1, "stalled")
    assert "has made no step for 1.5 s" in said[0]
    assert processes.marked(plan.run_id) == []


LAUNCHER = """
import sys
from pathlib import Path
from hp_memory.launch.launcher import supervise
from hp_memory.launch.plan import plan_launch
from hp_memory.launch.settings import LaunchSettings
python, worker, run_dir = sys.argv[1:]
settings = LaunchSettings(python=python, heartbeat=0.2, lost_after=2.0)
task = (worker, "--alone", "--steps=1000", "--pause=0.1")
print(supervise.run(plan_launch(settings, task, Path(run_dir), {})).message)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, None), (signal.SIGTERM, None), (signal.SIGKILL, -9)])
def test_signal_to_the_launcher_leaves_no_process(planned, python, run_dir, number, code):
    plan = planned()
    worker = plan.task[0]
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, python, worker, str(run_dir)], stdout=subprocess.PIPE, text=True
    )
    workers_of(plan)
    launcher.send_signal(number)
    out, _ = launcher.communicate(timeout=20)
    # Even a launcher that can't say goodbye is missed: its nodes' stdin ends.
    wait_for(lambda: not processes.marked(plan.run_id))
    if code is None:
        assert f"ended by {signal.Signals(number).name}" in out
    else:
        assert launcher.returncode == code


def test_what_a_closed_or_stopped_terminal_sends_is_ignored(planned, python, run_dir):
    plan = planned()
    words = [sys.executable, "-c", LAUNCHER, python, plan.task[0], str(run_dir)]
    launcher = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    workers_of(plan)
    for number in (signal.SIGHUP, signal.SIGTSTP, signal.SIGTTOU):
        launcher.send_signal(number)
    time.sleep(3)  # longer than the node waits for a word
    assert len(processes.marked(plan.run_id)) >= 2
    launcher.send_signal(signal.SIGTERM)
    assert "ended by SIGTERM" in launcher.communicate(timeout=20)[0]


def test_launcher_that_falls_silent_is_given_up_by_its_node(planned, python, run_dir):
    plan = planned()
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER, python, plan.task[0], str(run_dir)])
    workers_of(plan)
    launcher.send_signal(signal.SIGSTOP)
    try:
        # Two seconds of silence, and two for SIGTERM.
        wait_for(lambda: not processes.marked(plan.run_id), seconds=15)
    finally:
        launcher.kill()
        launcher.wait()


def node_program(plan) -> int:
    """The pid of what the launcher started here: the parent of msrun, which is the parent of the workers."""

    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    return parent(parent(next(iter(workers_of(plan).values()))))


@pytest.mark.parametrize(
    ("number", "why"),
    [(signal.SIGKILL, "the connection ended with code -9"), (signal.SIGSTOP, "nothing heard for 2 s")],
)
def test_node_program_that_is_lost_is_swept_after(planned, number, why):
    plan = planned("--steps=1000", "--pause=0.1")
    later(lambda: os.kill(node_program(plan), number))
    outcome = supervise.run(plan)
    assert (outcome.exit_code, outcome.kind, outcome.log_tail[0]) == (1, "node lost", why)
    assert processes.marked(plan.run_id) == []
