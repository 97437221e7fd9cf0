"""Gets the final kernel graph of a user's compiled training step, for :func:`hp_memory.offload.read_actor_set`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hp_memory.errors import ConfigError


def graph_of_call(function: Callable, *args: Any, directory: str) -> str:
    """Compile ``function`` (decorated with ``mindspore.jit``) on ``args`` and return the path of its graph dump.

    MindSpore reads the variables for saving graphs once, at the first compile of the process: compile nothing before,
    or set MS_DEV_SAVE_GRAPHS and MS_DEV_SAVE_GRAPHS_PATH before the process starts. Several graphs give several files,
    of which the one with most kernels is returned.

    Raises:
        ConfigError: no graph was written.
    """
    wanted = {"MS_DEV_SAVE_GRAPHS": "1", "MS_DEV_SAVE_GRAPHS_PATH": directory}
    before = {name: os.environ.get(name) for name in wanted}
    try:
        os.environ.update(wanted)
        function(*args)
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
    return largest_dump(directory)


def largest_dump(directory: str) -> str:
    found = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(directory)
        for name in names
        if name.startswith("final_actor_set_") and name.endswith(".ir")
    ]
    if not found:
        why = (
            "no final kernel graph was written. MindSpore reads MS_DEV_SAVE_GRAPHS at the first compile of a process: "
            "compile nothing before, or set the variable before the process starts"
        )
        raise ConfigError("directory", directory, why)
    return max(found, key=os.path.getsize)
