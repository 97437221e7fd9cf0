"""How much memory a forward's graph holds, from the process's resident set: a measure that no hook takes part in."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable
from statistics import median

import mindspore as ms
from mindspore import Tensor, ops

from hp_memory.activation.probe import resident_bytes
from hp_memory.mindspore.private import executor

MIB = 2**20


def growth_per_forward(forward: Callable[[], Tensor], forwards: int = 8) -> float:
    """Bytes by which the process grows per forward whose graph is kept: the median over ``forwards`` of them.

    Kind of figure: MEASURED, after forward. Rounding and free blocks of the allocator blur it by some percent.
    """
    recorded = executor.grad_flag()
    executor.set_grad_flag(True)
    held, sizes = [forward()], []
    filler = _fill_pool()
    try:
        for _ in range(forwards + 1):
            held.append(forward())
            sizes.append(_settled())
    finally:
        executor.set_grad_flag(recorded)
        held.clear()
        filler.clear()
    return median(after - before for before, after in itertools.pairwise(sizes))


def _fill_pool(limit: int = 20_000) -> list[Tensor]:
    """Takes every free block of the memory pool, large ones first, so that what is held from now on is new memory."""
    filler: list[Tensor] = []
    for nbytes in (4 * MIB, MIB, MIB // 4, MIB // 16):
        grown, before = 0, resident_bytes()
        while grown < 4 and len(filler) < limit:
            filler.append(ops.zeros((nbytes // 4,), ms.float32))
            executor.sync()
            now = resident_bytes()
            grown, before = (grown + 1 if now - before > nbytes // 2 else 0), now
    return filler


def _settled() -> int:
    executor.sync()
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return resident_bytes()
