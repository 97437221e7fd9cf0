"""Copies on threads of their own: order, bandwidth, failures."""

from __future__ import annotations

import threading

import numpy as np
import pytest

pytest.importorskip("mindspore")

from mindspore import Tensor

from hp_memory.errors import HostCopyError
from hp_memory.host.pool import Pool
from hp_memory.host.threads import Threads


@pytest.fixture(autouse=True)
def _quiet(mindspore):
    """Every test here needs the session's MindSpore."""


def start(transport, n=64):
    x = Tensor(np.arange(n, dtype=np.float32))
    return x, transport.copy_out(x, Pool(1 << 24, transport.allocate).take(x.nbytes))


def test_the_way_back_waits_for_the_way_out():
    gate, order = threading.Event(), []

    def before(lane, nbytes):
        if lane == "out":
            assert gate.wait(10)
        order.append(lane)

    transport = Threads(before=before)
    x, out = start(transport)
    back = out.back()
    assert not out.done()
    gate.set()
    assert np.array_equal(back.take().asnumpy(), x.asnumpy())
    assert order == ["out", "in"]


def test_a_lane_keeps_its_order_and_the_other_runs_beside_it():
    gate, seen = threading.Event(), []

    def before(lane, nbytes):
        if nbytes == 512:
            assert gate.wait(10)
        seen.append((lane, nbytes))

    transport = Threads(before=before)
    _, first = start(transport, 64)
    first.wait()
    _, held = start(transport, 128)
    _, behind = start(transport, 32)
    assert first.back().take().shape == (64,)
    assert not behind.done()
    gate.set()
    behind.wait()
    assert held.done()
    assert seen == [("out", 256), ("in", 256), ("out", 512), ("out", 128)]


def test_a_copy_takes_as_long_as_the_link_needs(monkeypatch):
    from hp_memory.host import threads

    slept = []
    monkeypatch.setattr(threads.time, "sleep", slept.append)
    transport = Threads(bandwidth=2**22)
    _, out = start(transport, 2**20)
    out.wait()
    assert len(slept) == 4
    assert 0.9 < max(slept) <= 1.0  # four MiB at four MiB a second, if the clock stood still


def test_what_fails_says_so_where_it_is_wanted():
    def before(lane, nbytes):
        raise OSError("no more pinned pages")

    transport = Threads(before=before)
    _, out = start(transport)
    with pytest.raises(HostCopyError, match="no more pinned pages"):
        out.wait()
    with pytest.raises(HostCopyError, match="no more pinned pages"):
        out.back().take()


def test_a_copy_that_was_called_off_never_runs():
    gate, seen = threading.Event(), []

    def before(lane, nbytes):
        assert gate.wait(10)
        seen.append(nbytes)

    transport = Threads(before=before)
    _, first = start(transport, 16)
    _, second = start(transport, 32)
    assert second.cancel()
    assert second.done()
    second.wait()
    gate.set()
    first.wait()
    assert not first.cancel()
    _, last = start(transport, 8)
    last.wait()
    assert seen == [64, 32]
