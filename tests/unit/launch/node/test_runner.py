"""What a full disk looks like on a node, without a full disk: tests/cluster has a real one."""

from __future__ import annotations

import errno

import pytest

from hp_memory.launch.launcher import supervise
from hp_memory.launch.node import runner


@pytest.fixture
def node(planned) -> runner.Runner:
    plan = planned()
    return runner.Runner(supervise.order_for(plan, plan.nodes[0]))


@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, "disk full"), (errno.EACCES, "launcher can't start")])
def test_log_that_cannot_be_opened(node, monkeypatch, number, kind):
    def start():
        raise OSError(number, "cause")

    monkeypatch.setattr(node, "_start", start)
    found = node._start_and_watch()
    assert (found.kind, found.tail) == (kind, (f"[Errno {number}] cause",))


def test_worker_that_could_not_write_a_word_on_a_full_disk(node, monkeypatch, run_dir):
    monkeypatch.setattr(runner, "_is_full", lambda path: path == str(run_dir))
    found = node._describe(1, 1)
    assert found.in_words() == "rank 1 (node 0) failed: disk full, exit code 1"
    assert found.tail[0].startswith(f"no space left below {run_dir}")
