"""What all ranks must hold alike: a collective that only some of them call, or replay, would wait forever."""

from __future__ import annotations

import hashlib
import json

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
    """As ``same``, for the hash of a plan."""
    same("plan", plan_hash)


def same(what: str, digest: str) -> None:
    """Compares a hexadecimal digest over all ranks, which must all call this.

    Raises:
        PlanMismatch: on every rank, naming the ranks by the digest they have.
    """
    if world_size() == 1:
        return
    digests = _gather(digest)
    if len(set(digests)) > 1:
        groups = {value: [rank for rank, other in enumerate(digests) if other == value] for value in digests}
        words = "; ".join(f"rank {', '.join(map(str, ranks))}: {what} {value}" for value, ranks in groups.items())
        raise PlanMismatch(f"the ranks don't agree on their {what} ({words})")


def digest(value: object) -> str:
    """Of JSON-ready data, for ``same``."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _gather(digest: str) -> list[str]:
    """Every rank's digest: a sum over a table in which each rank fills its own row."""
    number, digits = int(digest, 16), len(digest)
    table = np.zeros((world_size(), digits * 4 // _BITS), np.float32)
    table[dist.get_rank()] = [number >> (_BITS * i) & (2**_BITS - 1) for i in range(table.shape[1])]
    summed = Tensor(table, ms.float32)
    dist.all_reduce(summed)
    rows = summed.asnumpy().astype(np.int64).tolist()
    return [f"{sum(part << (_BITS * i) for i, part in enumerate(row)):0{digits}x}" for row in rows]
