"""The order in which an Ascend transport asks its streams and events; no device runs here."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

pytest.importorskip("mindspore")

from mindspore import Tensor

from hp_memory.host import streams
from hp_memory.host.pool import Pool


class Runtime:
    """Logs what each stream is asked, by the stream's name."""

    def __init__(self):
        self.log, self.made = [], 0
        self.compute = self._stream("compute")
        self.current = self.compute

    def _stream(self, name):
        log = self.log

        class Stream:
            def __repr__(self):
                return name

            def wait_event(self, event):
                log.append(f"{name} waits for {event.name}")

            def record_event(self):
                event = Event(f"{name}#{sum(line.startswith(f'{name} records') for line in log)}")
                log.append(f"{name} records {event.name}")
                return event

        class Event:
            passed = False

            def __init__(self, label):
                self.name = label

            def query(self):
                return self.passed

            def synchronize(self):
                log.append(f"the host waits for {self.name}")

        return Stream()

    def Stream(self):
        self.made += 1
        return self._stream({1: "out", 2: "in"}[self.made])

    def StreamCtx(self, stream):
        @contextlib.contextmanager
        def ctx():
            before, self.current = self.current, stream
            yield
            self.current = before

        return ctx()

    def current_stream(self):
        return self.current


@pytest.fixture
def runtime(mindspore, monkeypatch):
    # Pinned memory is the device runtime's; ordinary memory is filled in the same way.
    monkeypatch.setattr(streams.Streams, "allocate", lambda self, n: Tensor(np.zeros(n, np.uint8)))
    return Runtime()


def test_copies_wait_for_what_they_need_and_compute_only_for_what_came_back(runtime):
    transport = streams.Streams(runtime)
    x = Tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    out = transport.copy_out(x, Pool(1 << 10, transport.allocate).take(x.nbytes))
    assert runtime.log == ["compute records compute#0", "out waits for compute#0", "out records out#0"]
    assert not out.done()
    assert not out.cancel()
    runtime.log.clear()
    back = out.back()
    assert runtime.log == [
        "compute records compute#0",  # the memory it will fill is free from here on
        "in waits for compute#0",
        "in waits for out#0",
        "in records in#0",
    ]
    runtime.log.clear()
    assert np.array_equal(back.take().asnumpy(), x.asnumpy())
    assert runtime.log == ["compute waits for in#0"]
    out.wait()
    assert runtime.log[-1] == "compute waits for out#0"


def test_memory_that_a_copy_still_fills_is_not_freed(runtime):
    transport = streams.Streams(runtime)
    x = Tensor(np.zeros(4, np.float32))
    out = transport.copy_out(x, Pool(1 << 10, transport.allocate).take(x.nbytes))
    out.back()  # brought back ahead of time, and never read
    assert runtime.log[-1] == "the host waits for in#0"


def test_a_source_may_go_when_its_event_has_passed(runtime):
    transport = streams.Streams(runtime)
    x = Tensor(np.zeros(4, np.float32))
    out = transport.copy_out(x, Pool(1 << 10, transport.allocate).take(x.nbytes))
    out.event.passed = True
    assert out.done()


def test_the_device_decides_the_transport(mindspore, monkeypatch):
    from hp_memory.host import transport
    from hp_memory.host.threads import Threads

    assert isinstance(transport.of_device(), Threads)
    monkeypatch.setattr(transport.ms, "get_context", lambda key: "Ascend")
    monkeypatch.setattr(streams, "Streams", lambda: "streams")
    assert transport.of_device() == "streams"
