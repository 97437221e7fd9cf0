"""Makes MindFormers importable and runnable on this machine, and says in one line each what that took."""

from __future__ import annotations

import importlib

import mindspore as ms

from hp_memory.mindformers import standin


def prepare(world_size: int = 1) -> list[str]:
    """Imports MindFormers with whatever stand-ins this machine needs, and registers our classes with it.

    Args:
        world_size: processes of this job.

    Returns:
        One line for each thing that was found or put in place.

    Raises:
        NeedsHyperParallel: for several processes without the real package.
    """
    standin.refuse_ranks(world_size)
    on_cpus = world_size > 1 and ms.get_context("device_target") == "CPU"
    if on_cpus:
        # First: msrun's scheduler ends here.
        importlib.import_module("hp_memory.mindformers.cpu_collectives").join()
    lines = [standin.activate()]
    from hp_memory.mindformers import cpu_patch

    replaced = cpu_patch.apply()
    if on_cpus:
        importlib.import_module("hp_memory.mindformers.cpu_collectives").apply()
    if replaced:
        lines.append(f"CPU: {len(replaced)} Ascend-only kernels have stand-ins, from {replaced[0]} to {replaced[-1]}")
    importlib.import_module("hp_memory.mindformers.register")
    importlib.import_module("hp_memory.mindformers.generic_models")
    return lines
