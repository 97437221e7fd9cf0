"""All ranks must run one plan: a collective that only some of them replay would wait forever."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor
from mindspore.mint import distributed as dist

from hp_memory.errors import PlanMismatch
from hp_memory.runs.ranks import world_size as announced

# A float32 holds integers of this many bits exactly, and every backend sums float32.
_BITS = 16


def world_size() -> int:
    """Processes of this job; 1 where none was announced."""
    return dist.get_world_size() if dist.is_initialized() else announced()


def same_plan(plan_hash: str) -> None:
    """Compares the plan's hash over all ranks.

    Raises:
        PlanMismatch: on every rank, naming the ranks by the plan they hold.
    """
    if world_size() == 1:
        return
    hashes = _gather(plan_hash)
    if len(set(hashes)) > 1:
        groups = {value: [rank for rank, other in enumerate(hashes) if other == value] for value in hashes}
        words = "; ".join(f"rank {', '.join(map(str, ranks))}: plan {value}" for value, ranks in groups.items())
        raise PlanMismatch(f"the ranks hold different plans ({words})")


def _gather(plan_hash: str) -> list[str]:
    """Every rank's hash: a sum over a table in which each rank fills its own row."""
    number, digits = int(plan_hash, 16), len(plan_hash)
    table = np.zeros((world_size(), digits * 4 // _BITS), np.float32)
    table[dist.get_rank()] = [number >> (_BITS * i) & (2**_BITS - 1) for i in range(table.shape[1])]
    summed = Tensor(table, ms.float32)
    dist.all_reduce(summed)
    rows = summed.asnumpy().astype(np.int64).tolist()
    return [f"{sum(part << (_BITS * i) for i, part in enumerate(row)):0{digits}x}" for row in rows]
