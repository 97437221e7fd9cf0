"""Host memory within a budget. Buffers are used again: pinning memory takes longer than filling it."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import Any


class Buffer:
    """Some host memory, given back to its pool when nobody refers to it any more.

    Attributes:
        memory: what the pool's ``allocate`` returned for ``nbytes``.
        nbytes: its size.
    """

    __slots__ = ("__weakref__", "_pool", "memory", "nbytes")

    def __init__(self, pool: Pool, memory: Any, nbytes: int) -> None:
        self._pool = pool
        self.memory = memory
        self.nbytes = nbytes

    def __del__(self) -> None:
        self._pool.give(self.memory, self.nbytes)


class Pool:
    """At most ``limit`` bytes of host memory, in use or kept for the next use.

    Attributes:
        used: bytes of the buffers that are out.
        peak: the most of them so far.
    """

    def __init__(self, limit: int, allocate: Callable[[int], Any]) -> None:
        self.limit = limit
        self.used = 0
        self.peak = 0
        self._allocate = allocate
        self._free: defaultdict[int, list[Any]] = defaultdict(list)
        self._idle = 0  # bytes in ``_free``
        self._lock = threading.RLock()  # a buffer may die while its own thread takes another

    def take(self, nbytes: int) -> Buffer | None:
        """A buffer of ``nbytes``, or None where the budget has no room for it."""
        with self._lock:
            if self.used + nbytes > self.limit:
                return None
            free = self._free[nbytes]
            if free:
                memory = free.pop()
                self._idle -= nbytes
            else:
                self._make_room(nbytes)
                memory = self._allocate(nbytes)
            self.used += nbytes
            self.peak = max(self.peak, self.used)
            return Buffer(self, memory, nbytes)

    def give(self, memory: Any, nbytes: int) -> None:
        """Takes a buffer's memory back."""
        with self._lock:
            self.used -= nbytes
            self._free[nbytes].append(memory)
            self._idle += nbytes

    def _make_room(self, nbytes: int) -> None:
        """Lets go of idle memory of other sizes until ``nbytes`` more are within the limit."""
        for size in sorted(self._free, reverse=True):
            while self._free[size] and self.used + self._idle + nbytes > self.limit:
                self._free[size].pop()
                self._idle -= size
