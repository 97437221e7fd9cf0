"""``hp-memory launch``: renders or runs msrun on one node or many, for the trainer or for another program."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from omegaconf import OmegaConf

from hp_memory.config import HPConfig, validate
from hp_memory.errors import ConfigError
from hp_memory.experiment import checked_plan, launch_workers, prepare_run_dir
from hp_memory.launch.job import launch
from hp_memory.paths import make_run_dir

WORKER = "hp_memory.train.worker"


def run(cfg: HPConfig) -> int:
    """Launches ``launch.task`` where it is set, else the trainer; returns the launch's exit code."""
    _check_run_dir(cfg)
    if cfg.launch.task:
        return _launch_other(cfg)
    plan = checked_plan(cfg)
    # A dry run writes nothing; scripts and job files are started later and find their config in the run directory.
    return launch_workers(cfg, WORKER, _run_dir(cfg, lambda: prepare_run_dir(cfg, plan)))


def _check_run_dir(cfg: HPConfig) -> None:
    """Nodes that are started one by one must all be told the same run directory; node 0 fills it."""
    launch_settings = cfg.launch
    if launch_settings.node_rank < 0 or launch_settings.num_nodes < 2 or launch_settings.dry_run:
        return
    if cfg.run_dir is None:
        raise ConfigError("run_dir", None, "give the same one to every node, on a file system they share")
    if launch_settings.node_rank > 0 and not (Path(cfg.run_dir) / "config.yaml").exists():
        raise ConfigError("run_dir", cfg.run_dir, "node 0 hasn't filled it yet; start node 0 first, with the same one")


def _run_dir(cfg: HPConfig, prepare: Callable[[], Path]) -> Path:
    if cfg.launch.dry_run:
        return Path(cfg.run_dir or cfg.run_root)
    return Path(cfg.run_dir or "") if cfg.launch.node_rank > 0 else prepare()


def _launch_other(cfg: HPConfig) -> int:
    """Another program, which brings its own config: only the launch is ours."""
    validate(cfg)

    def prepare() -> Path:
        run_dir = make_run_dir(cfg.run_dir, cfg.run_root, cfg.name)
        OmegaConf.save(OmegaConf.structured(cfg), run_dir / "config.yaml")
        return run_dir

    return launch(cfg.launch, lambda world_size: tuple(cfg.launch.task), _run_dir(cfg, prepare), os.environ)
