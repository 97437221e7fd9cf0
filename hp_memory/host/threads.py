"""Copies on a CPU: a thread for each lane, whose bandwidth and delays can be set to stand for a link."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from mindspore import Tensor

from hp_memory.errors import HostCopyError
from hp_memory.host.pool import Buffer

Lane = Literal["out", "in"]
_PIECE = 1 << 20  # bytes between two looks at the clock


class _Copy:
    """A copy in a lane. ``began`` and ``cancelled`` are decided once, under the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = self._cancelled = False
        self._finished = threading.Event()
        self._error: Exception | None = None

    def begin(self) -> bool:
        with self._lock:
            self._began = not self._cancelled
            return self._began

    def end(self, error: Exception | None) -> None:
        self._error = error
        self._finished.set()

    def done(self) -> bool:
        return self._finished.is_set()

    def wait(self) -> None:
        self._finished.wait()
        if self._error is not None:
            raise HostCopyError(str(self._error)) from self._error

    def cancel(self) -> bool:
        with self._lock:
            self._cancelled = not self._began
        if self._cancelled:
            self._finished.set()  # nobody waits for what never runs
        return self._cancelled


class Out(_Copy):
    """A copy to the host; what is needed to make the tensor again."""

    def __init__(self, threads: Threads, source: Tensor, buffer: Buffer) -> None:
        super().__init__()
        self._threads = threads
        self.buffer = buffer
        self.shape = tuple(source.shape)
        self.dtype: Any = None  # NumPy's, known when the copy has run

    def back(self) -> In:
        return self._threads.copy_in(self)


class In(_Copy):
    """A copy to the device."""

    def __init__(self) -> None:
        super().__init__()
        self.array: np.ndarray | None = None

    def take(self) -> Tensor:
        self.wait()
        return Tensor.from_numpy(self.array)


class Threads:
    """Copies that really happen, each lane on a thread of its own.

    Args:
        bandwidth: of each lane, in bytes per second; None copies as fast as the machine does.
        before: called on the lane's thread before each copy with the lane and the bytes; may sleep or raise.
    """

    def __init__(self, bandwidth: float | None = None, before: Callable[[Lane, int], None] | None = None) -> None:
        self.bandwidth = bandwidth
        self.before = before
        self._lanes: dict[Lane, queue.SimpleQueue] = {"out": queue.SimpleQueue(), "in": queue.SimpleQueue()}
        for lane, jobs in self._lanes.items():
            threading.Thread(target=_serve, args=(jobs,), name=f"hp_memory copies {lane}", daemon=True).start()

    def allocate(self, nbytes: int) -> np.ndarray:
        return np.empty(nbytes, np.uint8)

    def copy_out(self, source: Tensor, buffer: Buffer) -> Out:
        copy = Out(self, source, buffer)

        def run() -> None:
            array = source.asnumpy()  # waits until it is computed; shares the memory
            copy.dtype = array.dtype
            self._move("out", array.reshape(-1).view(np.uint8), buffer.memory)

        self._lanes["out"].put((copy, run))
        return copy

    def copy_in(self, out: Out) -> In:
        """See :meth:`Outgoing.back`."""
        copy = In()

        def run() -> None:
            out.wait()
            bytes_of_it = np.empty(out.buffer.nbytes, np.uint8)
            self._move("in", out.buffer.memory, bytes_of_it)
            copy.array = bytes_of_it.view(out.dtype).reshape(out.shape)

        self._lanes["in"].put((copy, run))
        return copy

    def _move(self, lane: Lane, source: np.ndarray, target: np.ndarray) -> None:
        if self.before is not None:
            self.before(lane, source.nbytes)
        began = time.perf_counter()
        for start in range(0, source.nbytes, _PIECE):
            piece = slice(start, start + _PIECE)
            np.copyto(target[piece], source[piece])
            if self.bandwidth is not None:
                due = began + min(start + _PIECE, source.nbytes) / self.bandwidth
                time.sleep(max(0.0, due - time.perf_counter()))


def _serve(jobs: queue.SimpleQueue) -> None:
    while True:
        _run(*jobs.get())


def _run(copy: _Copy, run: Callable[[], None]) -> None:
    """In a call of its own: a thread that waits for its next copy holds nothing of the last one."""
    if not copy.begin():
        return
    try:
        run()
    except Exception as error:  # raised again where the tensor is wanted
        copy.end(error)
    else:
        copy.end(None)
