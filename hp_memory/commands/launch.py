"""``hp-memory launch``: renders or runs msrun on one node or many, for the trainer or for another program."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from hp_memory.commands import train
from hp_memory.config.schema import HPConfig, validate
from hp_memory.errors import ConfigError
from hp_memory.experiment import experiment
from hp_memory.experiment.job import launch_settings, launch_workers, own_run_dir
from hp_memory.launch.launcher.job import launch
from hp_memory.runs.paths import run_dir_path


def run(cfg: HPConfig) -> int:
    """Launches ``launch.task`` where it is set, else the trainer; returns the launch's exit code."""
    joins = _joins_another_node(cfg)
    if cfg.launch.task:
        validate(cfg)
        settings = launch_settings(cfg)
        only_named = joins is not None or cfg.launch.dry_run
        run_dir = run_dir_path(cfg.run_dir, cfg.run_root, cfg.name) if only_named else own_run_dir(cfg)
        return launch(settings, lambda world_size: tuple(settings.task), run_dir, os.environ)
    if joins:
        experiment.of("train", cfg)
        _refuse_other_config(cfg, Path(joins))
        return launch_workers(cfg, train.WORKERS[cfg.engine], Path(joins))
    return train.run(cfg)


def _joins_another_node(cfg: HPConfig) -> str | None:
    """The run directory that node 0 has filled, if this is a further node started by hand; else None."""
    settings = cfg.launch
    if settings.node_rank < 0 or settings.num_nodes < 2 or settings.dry_run:
        return None
    if cfg.run_dir is None:
        raise ConfigError("run_dir", None, "give the same one to every node, on a file system they share")
    if settings.node_rank > 0 and not (Path(cfg.run_dir) / "config.yaml").exists():
        raise ConfigError("run_dir", cfg.run_dir, "node 0 hasn't filled it yet; start node 0 first, with the same one")
    return cfg.run_dir if settings.node_rank > 0 else None


def _refuse_other_config(cfg: HPConfig, run_dir: Path) -> None:
    """The workers read node 0's config: whatever was typed otherwise here would go unread."""
    here, there = OmegaConf.structured(cfg), OmegaConf.load(run_dir / "config.yaml")
    for group in (name for name in here if name != "launch"):
        if here[group] != there[group]:
            key, mine, theirs = _first_difference(str(group), here[group], there[group])
            raise ConfigError(key, mine, f"node 0 has {theirs!r}; give every node the same settings")


def _first_difference(path: str, mine: Any, theirs: Any) -> tuple[str, Any, Any]:
    if isinstance(mine, DictConfig) and isinstance(theirs, DictConfig):
        key = next(str(key) for key in mine if key not in theirs or mine[key] != theirs[key])
        return _first_difference(f"{path}.{key}", mine[key], theirs.get(key))
    return path, mine, theirs
