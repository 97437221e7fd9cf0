"""msrun's argument list. Lists only, never shell strings: nothing is quoted, so nothing can be misquoted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hp_memory.launch.settings import LaunchSettings

# msrun runs these first words as they are; anything else is a script that it starts with `python`.
RUN_VERBATIM = ("python", "python3", "pytest")
# Starts msrun for a further "node" that is really this machine (see same_machine.py).
SAME_MACHINE = ("python", "-m", "hp_memory.launch.node.same_machine")


def msrun_argv(
    settings: LaunchSettings,
    task: Sequence[str],
    *,
    world: int,
    local: int,
    node_rank: str,
    master_addr: str,
    master_port: int | str,
    log_dir: str,
    program: Sequence[str] = ("msrun",),
) -> list[str]:
    """The msrun command of one node. ``--join=True`` always: without it msrun returns 0 before the job has begun."""
    return [
        *program,
        f"--worker_num={world}",
        f"--local_worker_num={local}",
        f"--master_addr={master_addr}",
        f"--master_port={master_port}",
        f"--node_rank={node_rank}",
        f"--log_dir={log_dir}",
        "--join=True",
        f"--cluster_time_out={settings.cluster_time_out}",
        # Every worker's log is followed by tail otherwise, interleaved byte by byte; we read the files.
        "--tail_worker_log=-2",
        *task,
    ]


def process_argv(task: Sequence[str], python: str) -> list[str]:
    """The task as one process without msrun."""
    if task[0] in ("python", "python3"):
        return [python, *task[1:]]
    if task[0] in RUN_VERBATIM:
        return [python, "-m", *task]
    return [python, *task]


def log_dir(run_dir: str | Path, node: int | str) -> str:
    """Where a node's scheduler and worker logs go."""
    return f"{run_dir}/logs/node_{node}"
