"""Which worker ended first, and with what code."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from hp_memory.launch.node import processes
from hp_memory.launch.node.workers import WorkerWatch


@pytest.fixture
def workers():
    """Two sleeping workers; this process stands for msrun, which hasn't asked for their codes yet."""
    words = [sys.executable, "-c", "import time; time.sleep(60)"]
    env = {"MS_ROLE": "MS_WORKER"}
    started = [subprocess.Popen(words, env=env | {"RANK_ID": str(rank)}) for rank in range(2)]
    while len(processes.workers(os.getpid())) < 2:
        time.sleep(0.01)
    yield started
    for worker in started:
        worker.kill()
        worker.wait()


def kill(*victims: subprocess.Popen) -> None:
    for victim in victims:
        victim.kill()
        while processes.is_alive(victim.pid):
            time.sleep(0.01)


def test_killed_worker_is_seen_before_msrun_speaks(workers, tmp_path):
    watch = WorkerWatch(os.getpid(), (0, 1), tmp_path / "msrun.log")
    watch.poll()
    assert watch.codes == {}
    kill(workers[1])
    watch.poll()
    assert watch.codes == {1: -9}


def test_worker_that_msrun_names_comes_before_those_it_killed_for_its_sake(workers, tmp_path):
    log = tmp_path / "msrun.log"
    watch = WorkerWatch(os.getpid(), (0, 1), log)
    watch.poll()
    kill(*workers)
    log.write_text(f"Worker process {workers[1].pid} exit with exception. Error code: -9.\n")
    watch.poll()
    assert list(watch.codes.items()) == [(1, -9), (0, -9)]
