"""Makes MindFormers importable and runnable on this machine, and says in one line each what that took."""

from __future__ import annotations

import importlib
import os

from hp_memory.errors import NeedsHyperParallel
from hp_memory.mindformers import standin

FIRST_CALL = "ParallelDims.from_config -> hyper_parallel.init_device_mesh"


def prepare(world_size: int = 1) -> list[str]:
    """Imports MindFormers with whatever stand-ins this machine needs, and registers our classes with it.

    Args:
        world_size: processes of this job.

    Returns:
        One line for each thing that was found or put in place.

    Raises:
        NeedsHyperParallel: for several processes without the real package.
    """
    lines = [standin.activate()]
    refuse_without_hyper_parallel(world_size)
    from hp_memory.mindformers import cpu_patch

    replaced = cpu_patch.apply()
    if replaced:
        lines.append(f"CPU: {len(replaced)} Ascend-only kernels have stand-ins, from {replaced[0]} to {replaced[-1]}")
    for module in ("callback", "qwen3_moe"):
        importlib.import_module(f"hp_memory.mindformers.{module}")
    return lines


def refuse_without_hyper_parallel(world_size: int) -> None:
    """MindFormers spreads a model over processes with HyperParallel's mesh, DTensor and fully_shard."""
    if world_size > 1 and standin.is_active():
        why = f"the first call that fails without it is {FIRST_CALL}"
        raise NeedsHyperParallel(f"MindFormers' Trainer on {world_size} processes", why)


def world_size() -> int:
    """Processes of this job, as msrun announces them; before any communication is initialised."""
    return int(os.environ.get("MS_WORKER_NUM", "1"))
