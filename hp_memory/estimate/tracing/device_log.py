"""What MindSpore allocates on a CPU, by its own debug log: the start and the end of every block of device memory.

The wheel has no allocator statistics for a CPU, and the high-water mark of the process holds what its pool loses. The
log has every block, so a peak can be measured and taken apart. Start the process with ``ENVIRONMENT`` and its standard
error in a file, run what is to be measured inside ``recording(name)``, and give the file to ``read``.
"""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mindspore import MsDispatchMode

ENVIRONMENT = {"GLOG_v": "3", "GLOG_logtostderr": "1", "MS_SUBMODULE_LOG_v": "{CORE:0}"}

_MARK = "hp_memory.device_log"
# Device type 1 is the CPU.
_BLOCK = re.compile(r"(Construct|Destruct) device address:(\w+) device type:1 size:(\d+) .*?device point:(\w+)")


@dataclass(eq=False)
class Block:
    """One block of device memory; views of it are the same block.

    Attributes:
        result: whether it was there when the run's results were, and went with them.
    """

    nbytes: int
    result: bool = False


@dataclass
class Recorded:
    """One recorded run: its operations, and every coming (+1) and going (-1) of a block during one of them."""

    ops: list[str] = field(default_factory=list)
    events: list[tuple[int, int, Block]] = field(default_factory=list)

    def alive(self, results: bool) -> np.ndarray:
        """The most bytes alive during each operation, beyond what was there before; with or without the results.

        Some kernels keep blocks until they run again: where the same ran before, the new ones take the old ones' place.
        """
        most = np.full(len(self.ops), np.iinfo(np.int64).min)
        now = at = 0
        for position, sign, block in self.events:
            most[at : position + 1] = np.maximum(most[at : position + 1], now)
            now += sign * block.nbytes * (results or not block.result)
            at = position
            most[at] = max(most[at], now)
        most[at:] = np.maximum(most[at:], now)
        return most


@contextmanager
def recording(name: str) -> Iterator[Callable[[], None]]:
    """Marks in the log where the run begins and ends, and every operation in between.

    Yields:
        To be called as soon as the results are there. Let go of them before the end.
    """
    _mark(f"begin {name}")
    with _Operations():
        yield lambda: _mark("results")
    gc.collect()
    _mark("end")


class _Operations(MsDispatchMode):
    def __ms_dispatch__(self, func: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        _mark(f"op {func.name}")
        return func(*args, **(kwargs or {}))


def _mark(words: str) -> None:
    # Past Python's buffers: the log's own lines must stand before and after it.
    os.write(2, f"{_MARK} {words}\n".encode())


def read(lines: Iterable[str]) -> dict[str, Recorded]:
    """The recorded runs of a log, by name. The log must be that of ``launch_blocking``, which keeps the order."""
    reader = _Reader()
    for line in lines:
        if line.startswith(_MARK):
            reader.mark(*line.split()[1:])
        elif event := _BLOCK.search(line):
            reader.block(*event.groups())
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found: dict[str, Recorded] = {}
        self.running: Recorded | None = None
        self.over = False
        self.pointers: dict[str, str] = {}
        self.users: Counter[str] = Counter()
        self.blocks: dict[str, Block] = {}

    def mark(self, what: str, name: str = "") -> None:
        if what == "op":
            assert self.running is not None, "the log names an operation before a layer"
            self.running.ops.append(name)
        elif what == "results":
            self.over = True
        else:
            self.running = self.found.setdefault(name, Recorded()) if what == "begin" else None
            self.over = False

    def block(self, verb: str, address: str, nbytes: str, pointer: str) -> None:
        if verb == "Construct":
            self.pointers[address] = pointer
            self.users[pointer] += 1
            if self.users[pointer] == 1:
                self.blocks[pointer] = Block(int(nbytes))
                self._note(1, self.blocks[pointer])
        elif address in self.pointers:
            pointer = self.pointers.pop(address)
            self.users[pointer] -= 1
            if not self.users[pointer]:
                self._note(-1, self.blocks.pop(pointer))

    def _note(self, sign: int, block: Block) -> None:
        if self.running is None or not self.running.ops:
            return
        if self.over:
            block.result = block.result or sign < 0
        else:
            self.running.events.append((len(self.running.ops) - 1, sign, block))
