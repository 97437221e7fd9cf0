"""The launch plan: every node's command and environment, as data that can be printed before anything starts."""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from omegaconf import OmegaConf

from hp_memory.errors import ConfigError
from hp_memory.launch import command, environment, hosts
from hp_memory.launch.hosts import Host
from hp_memory.launch.secrets import hidden
from hp_memory.launch.settings import LaunchSettings, refuse_control

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class NodePlan:
    """One node's share of the job."""

    rank: int
    host: str
    here: bool
    """Started on this machine without a connection."""
    ranks: tuple[int, ...]
    """Global ranks of its workers."""
    argv: tuple[str, ...]
    env: dict[str, str]
    """Set on top of the node's own environment."""
    log_dir: str


@dataclass(frozen=True)
class LaunchPlan:
    """The whole job as data."""

    run_id: str
    run_dir: str
    cwd: str
    python: str
    task: tuple[str, ...]
    world_size: int
    total_nodes: int
    master_addr: str
    master_port: int
    nodes: tuple[NodePlan, ...]
    """The nodes this launcher starts: all of the job, or with ``node_rank`` one of them."""
    inherited: dict[str, str]
    """Variables of another job in the launching shell: refused by ``check``."""
    settings: LaunchSettings
    resume: str = ""
    """The checkpoint that a job which was begun before goes on from."""

    def scheduler_port(self, node: int) -> int | None:
        """The port msrun's scheduler listens on, on the one node that has it; None elsewhere."""
        return self.master_port if node == 0 and self.settings.launcher == "msrun" else None

    @property
    def is_spread(self) -> bool:
        """Whether nodes other than this machine need to reach the scheduler."""
        scheduled = self.settings.action in ("slurm", "volcano") and self.total_nodes > 1
        return scheduled or any(not node.here for node in self.nodes)

    def size_in_words(self) -> str:
        """How many workers where, and the scheduler's address if there is one."""
        scheduler = f", scheduler at {self.master_addr}:{self.master_port}" if self.settings.launcher == "msrun" else ""
        return f"{self.world_size} workers on {self.total_nodes} node(s){scheduler}"

    def in_words(self) -> str:
        """Every command and environment, as text for people."""
        head = f"{self.size_in_words()}, run directory {self.run_dir}"
        return "\n\n".join([head, *(self._node_in_words(node) for node in self.nodes)])

    def _node_in_words(self, node: NodePlan) -> str:
        how = "directly" if node.here else "through `" + shlex.join(reach(self.settings, node.host)) + "`"
        lines = [
            f"node {node.rank} ({node.host}), started {how}, ranks {node.ranks[0]}-{node.ranks[-1]}, in {self.cwd}:"
        ]
        lines += [f"  {name}={shlex.quote(value)}" for name, value in hidden(node.env).items()]
        return "\n".join([*lines, f"  {shlex.join(node.argv)}"])

    def to_dict(self) -> dict:
        """Plain data, saved with the run."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict) -> LaunchPlan:
        """The inverse of ``to_dict``, after JSON has made lists of the tuples."""
        settings = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(LaunchSettings), data["settings"]))
        nodes = (NodePlan(**n | {"ranks": tuple(n["ranks"]), "argv": tuple(n["argv"])}) for n in data["nodes"])
        return cls(**data | {"task": tuple(data["task"]), "nodes": tuple(nodes), "settings": settings})


def world_size(settings: LaunchSettings, path: str = "launch") -> int:
    """Workers of the whole job, from the hostfile as it is now.

    Raises:
        ConfigError: nodes that can't be read or whose slots don't suffice.
    """
    settings.validate(path)
    listed = hosts.listed_hosts(settings, path)
    return (len(listed) or max(settings.num_nodes, 1)) * hosts.workers_on_each(listed, settings, path)


def reach(settings: LaunchSettings, host: str) -> list[str]:
    """The command that reaches a node, before what it is to run there."""
    return [word.replace("{host}", host) for word in settings.connect]


def plan_launch(
    settings: LaunchSettings,
    task: tuple[str, ...],
    run_dir: Path,
    env: Mapping[str, str],
    path: str = "launch",
    resume: str = "",
) -> LaunchPlan:
    """Lays out the job; starts and writes nothing (a port of 0 is replaced by one that is free now).

    Args:
        task: what msrun starts on every rank, e.g. ``("python", "-m", "package.worker", "--run-dir", "runs/1")``.
        run_dir: exists already, or will before ``run``; shared by all nodes.
        env: the launching shell's environment.
        resume: the checkpoint that a job which was begun before goes on from.

    Raises:
        ConfigError: settings that don't fit together, a hostfile that can't be read.
    """
    settings.validate(path)
    refuse_control("run_dir", str(run_dir))
    if not task:
        raise ConfigError(f"{path}.task", task, "is empty")
    listed = hosts.listed_hosts(settings, path)
    local = hosts.workers_on_each(listed, settings, path)
    total = len(listed) or max(settings.num_nodes, 1)
    master = settings.master_addr or _default_master(listed, total)
    port = settings.master_port or free_port()
    run_path, run_id = str(Path(run_dir).absolute()), _run_id(run_dir)

    plan = LaunchPlan(
        run_id, run_path, os.getcwd(), settings.python or sys.executable, tuple(task), total * local, total,
        master, port, (), environment.inherited_job(env), settings, resume,
    )  # fmt: skip
    if listed:
        places = [(rank, host, hosts.is_this_machine(host.name)) for rank, host in enumerate(listed)]
    else:
        places = [(max(settings.node_rank, 0), Host("localhost"), True)]
    return replace(plan, nodes=tuple(_node_plan(plan, env, local, *place) for place in places))


def _node_plan(plan: LaunchPlan, env: Mapping[str, str], local: int, rank: int, host: Host, here: bool) -> NodePlan:
    logs = command.log_dir(plan.run_dir, rank)
    variables = environment.node_variables(
        plan.settings, env, run_id=plan.run_id, run_dir=plan.run_dir, node=rank,
        address=hosts.address_of(host.name) or host.name, logs=logs, resume=plan.resume,
    )  # fmt: skip
    if plan.settings.launcher == "process":
        argv = command.process_argv(plan.task, plan.python)
    else:
        second = here and rank > 0 and hosts.is_this_machine(plan.master_addr)
        argv = command.msrun_argv(
            plan.settings, plan.task, world=plan.world_size, local=local, node_rank=str(rank),
            master_addr=plan.master_addr, master_port=plan.master_port, log_dir=logs,
            program=command.SAME_MACHINE if second else ("msrun",),
        )  # fmt: skip
    return NodePlan(rank, host.name, here, tuple(range(rank * local, (rank + 1) * local)), tuple(argv), variables, logs)


def _default_master(listed: list[Host], total: int) -> str:
    return listed[0].name if total > 1 and listed else LOOPBACK


def _run_id(run_dir: Path) -> str:
    """The mark every process of the run carries in its environment; the same for every attempt of a run."""
    return hashlib.sha1(str(Path(run_dir).absolute()).encode()).hexdigest()[:12]


def free_port() -> int:
    """A port no one listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]
