"""``hp-memory launch``: renders or runs msrun on one node or many, for the trainer or for another program."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import OmegaConf

from hp_memory.commands import train
from hp_memory.config import HPConfig, validate
from hp_memory.errors import ConfigError
from hp_memory.experiment import checked_plan, launch_settings, launch_workers
from hp_memory.launch.job import launch
from hp_memory.paths import make_run_dir, run_dir_path


def run(cfg: HPConfig) -> int:
    """Launches ``launch.task`` where it is set, else the trainer; returns the launch's exit code."""
    joins = _joins_another_node(cfg)
    if cfg.launch.task:
        validate(cfg)
        only_named = joins or cfg.launch.dry_run
        run_dir = run_dir_path(cfg.run_dir, cfg.run_root, cfg.name) if only_named else _own_run_dir(cfg)
        return launch(launch_settings(cfg), lambda world_size: tuple(cfg.launch.task), run_dir, os.environ)
    if joins:
        checked_plan(cfg)
        return launch_workers(cfg, train.WORKERS[cfg.engine], Path(cfg.run_dir))
    return train.run(cfg)


def _joins_another_node(cfg: HPConfig) -> bool:
    """Whether this is a further node started by hand: the run directory is then node 0's, filled already."""
    settings = cfg.launch
    if settings.node_rank < 0 or settings.num_nodes < 2 or settings.dry_run:
        return False
    if cfg.run_dir is None:
        raise ConfigError("run_dir", None, "give the same one to every node, on a file system they share")
    if settings.node_rank > 0 and not (Path(cfg.run_dir) / "config.yaml").exists():
        raise ConfigError("run_dir", cfg.run_dir, "node 0 hasn't filled it yet; start node 0 first, with the same one")
    return settings.node_rank > 0


def _own_run_dir(cfg: HPConfig) -> Path:
    """Another program brings its own config; ours says how it was launched."""
    run_dir = make_run_dir(cfg.run_dir, cfg.run_root, cfg.name)
    OmegaConf.save(OmegaConf.structured(cfg), run_dir / "config.yaml")
    return run_dir
