from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from hp_memory.launch.node import processes

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)


@pytest.fixture
def start():
    """Starts marked processes in sessions of their own."""
    started: list[subprocess.Popen] = []

    def begin(
        code: str = "print('ready', flush=True); import time; time.sleep(60)", node: str = "0"
    ) -> subprocess.Popen:
        env = {"HP_MEMORY_RUN_ID": f"test-{os.getpid()}", "HP_MEMORY_NODE": node}
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=env, start_new_session=True, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        process.stdout.readline()
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


RUN = f"test-{os.getpid()}"


def test_marked_processes_are_found_by_run_and_node(start):
    first, second = start(node="0"), start(node="1")
    assert set(processes.marked(RUN)) == {first.pid, second.pid}
    assert processes.marked(RUN, 1) == [second.pid]
    assert processes.marked("another") == []


def test_end_spares_other_nodes_and_kills_what_ignores_sigterm(start):
    kind, stubborn, other = start(), start(STUBBORN), start(node="1")
    assert processes.end(RUN, 0, grace=0.3) == []
    assert (kind.wait(), stubborn.wait()) == (-signal.SIGTERM, -signal.SIGKILL)
    assert processes.is_alive(other.pid)


def test_exit_code_of_a_process_nobody_has_asked_yet(start):
    process = start("import sys; print('ready', flush=True); sys.exit(7)")
    while processes.is_alive(process.pid):
        time.sleep(0.01)
    assert processes.exit_code(process.pid) == 7
    killed = start()
    killed.kill()
    while processes.is_alive(killed.pid):
        time.sleep(0.01)
    assert processes.exit_code(killed.pid) == -signal.SIGKILL
    assert processes.marked(RUN) == []


def test_process_that_does_not_exist():
    assert not processes.is_alive(2**22 + 1)
    assert processes.exit_code(2**22 + 1) is None
    assert processes.environment_of(2**22 + 1) == {}


def test_sweep_spares_the_script_that_calls_it():
    script = f"{sys.executable} -m hp_memory.launch.script.sweep $HP_MEMORY_RUN_ID $HP_MEMORY_NODE; echo still here"
    env = os.environ | {"HP_MEMORY_RUN_ID": RUN, "HP_MEMORY_NODE": "0"}
    done = subprocess.run(["bash", "-c", f"sleep 60 & {script}"], env=env, capture_output=True, text=True, timeout=30)
    assert done.stdout == "still here\n"
    assert processes.marked(RUN) == []
