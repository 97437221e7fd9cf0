"""Is this storage still owned? An independent check of what the hooks report, for a CPU without memory statistics.

MindSpore's CPU pool hands freed blocks out again before it takes new ones from the system. So: allocate until either
an allocation overlaps the block (it was free, a proof) or the pool had to grow several times in a row (it is owned).
"""

from __future__ import annotations

import gc
import os
from typing import NamedTuple

import mindspore as ms
from mindspore import Tensor, ops

from hp_memory.mindspore.private import executor


class Block(NamedTuple):
    """Where a storage is: its address and its size in bytes. Keeps nothing alive."""

    address: int
    nbytes: int


def block_of(tensor: Tensor) -> Block:
    storage = tensor.untyped_storage()
    return Block(storage.data_ptr(), storage.nbytes())


def resident_bytes() -> int:
    """Resident set size of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def was_freed(block: Block, growths: int = 4, limit: int = 400) -> bool:
    """True if the pool gave (part of) ``block`` out again, False if it had to grow ``growths`` times in a row instead.

    Reliable from about 1 MiB; fewer stray results with larger blocks. Allocates up to (free blocks + growths) blocks
    for a moment. Raises RuntimeError after ``limit`` allocations without a verdict.
    """
    executor.sync()
    gc.collect()
    # Half the size: a small live tensor may sit in an otherwise free block, which then isn't handed out whole.
    half = block.nbytes // 2
    kept, grown, resident = [], 0, resident_bytes()
    for _ in range(limit):
        probe = ops.zeros((half // 4,), ms.float32)
        executor.sync()
        kept.append(probe)
        if probe.data_ptr() < block.address + block.nbytes and block.address < probe.data_ptr() + half:
            return True
        now = resident_bytes()
        grown = grown + 1 if now - resident > half // 2 else 0
        resident = now
        if grown >= growths:
            return False
    raise RuntimeError(f"no verdict about a block of {block.nbytes} bytes after {limit} allocations")
