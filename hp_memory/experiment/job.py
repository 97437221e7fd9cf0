"""From an experiment to a running job: its run directory, and the launch of its workers."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hp_memory.config.schema import HPConfig
from hp_memory.errors import ConfigError
from hp_memory.launch.launcher import restart
from hp_memory.launch.launcher.job import TaskFor, checked, launch
from hp_memory.launch.secrets import hidden_below
from hp_memory.launch.settings import LaunchSettings
from hp_memory.layout import ActivationPlan, plan_file
from hp_memory.offload import apply as offload
from hp_memory.runs import owner
from hp_memory.runs.environment import environment
from hp_memory.runs.files import write_whole
from hp_memory.runs.paths import make_run_dir


def prepare_run_dir(cfg: HPConfig, plan: ActivationPlan) -> Path:
    """Makes the run directory and leaves in it what the run is: config, plan as data and in words, environment.

    One that the same command has begun, and that has a checkpoint, is taken as it is: the launch goes on from there.
    """
    run_dir = own_run_dir(cfg)
    write_whole(run_dir / plan_file.NAME, plan_file.text(plan))
    write_whole(run_dir / "plan.txt", f"plan {plan.hash()}\n{plan.in_words()}\n")
    write_whole(run_dir / "environment.json", json.dumps(environment(), indent=1))
    return run_dir


def own_run_dir(cfg: HPConfig) -> Path:
    """The run directory with ``config.yaml`` in it, which has no private value of ``launch.env``.

    Raises:
        ConfigError: if it isn't ours alone, or holds a run that can't be gone on with.
    """
    run_dir = make_run_dir(cfg.run_dir, cfg.run_root, cfg.name)
    file = run_dir / "config.yaml"
    written = OmegaConf.create(hidden_below(OmegaConf.to_container(OmegaConf.structured(cfg), enum_to_str=True)))
    if file.exists():
        _refuse_to_go_on(run_dir, written)
    else:
        write_whole(file, OmegaConf.to_yaml(written))
    return run_dir


def _refuse_to_go_on(run_dir: Path, asked: Any) -> None:
    """Raises ConfigError unless this is the same command's run, unfinished, with a checkpoint."""
    if OmegaConf.load(run_dir / "config.yaml") != asked:
        raise ConfigError("run_dir", str(run_dir), "holds a run with other settings already; choose another")
    if restart.has_ended_well(run_dir):
        raise ConfigError("run_dir", str(run_dir), "holds a run already, which has ended well; choose another")
    if restart.last_complete(run_dir) is None:
        raise ConfigError("run_dir", str(run_dir), "holds a run already, without a checkpoint to go on from")


def launch_settings(cfg: HPConfig) -> LaunchSettings:
    """The launch, with HyperOffload's settings in every worker's environment set before its program's first line."""
    env = offload.worker_environment(cfg.offload, cfg.launch.env, "launch.env")
    return replace(cfg.launch, env=env, task=offload.worker_task(cfg.offload, cfg.launch.task, "launch.task"))


def check_launch(cfg: HPConfig) -> None:
    """Refuses what the launch's settings alone show to be wrong, before anything is printed or written.

    Raises:
        ConfigError: naming the setting.
    """
    checked(launch_settings(cfg), _task_for(cfg, "", Path()), Path(cfg.run_root), os.environ, _sizes(cfg))


def launch_workers(cfg: HPConfig, module: str, run_dir: Path) -> int:
    """Starts ``python -m module --run-dir DIR`` on every rank and watches it to its end; returns the exit code."""
    try:
        return launch(launch_settings(cfg), _task_for(cfg, module, run_dir), run_dir, os.environ, _sizes(cfg))
    except ConfigError:
        # Nothing ran: the corrected command may use the same directory, unless it is another node's or has run before.
        if cfg.launch.node_rank <= 0 and not restart.attempts(run_dir):
            (run_dir / "config.yaml").unlink(missing_ok=True)
        raise
    finally:
        owner.release(run_dir)


def _task_for(cfg: HPConfig, module: str, run_dir: Path) -> TaskFor:
    def task_for(world_size: int) -> tuple[str, ...]:
        if world_size != cfg.parallel.world_size:
            why = f"starts {world_size} workers; data x tensor x context x pipeline need {cfg.parallel.world_size}"
            raise ConfigError("launch.workers_per_node", cfg.launch.workers_per_node, why)
        return ("python", "-m", module, "--run-dir", str(run_dir))

    return task_for


def _sizes(cfg: HPConfig) -> dict[str, int]:
    return {name: getattr(cfg.parallel, name) for name in ("data", "tensor", "context", "pipeline")}
