"""``hp-memory launch``: renders or runs msrun on one node or many, for the trainer or for another program."""

from __future__ import annotations

import os
from pathlib import Path

from omegaconf import OmegaConf

from hp_memory.config import HPConfig, validate
from hp_memory.experiment import checked_plan, launch_workers, prepare_run_dir
from hp_memory.launch.job import launch
from hp_memory.paths import make_run_dir

WORKER = "hp_memory.train.worker"


def run(cfg: HPConfig) -> int:
    """Launches ``launch.task`` where it is set, else the trainer; returns the launch's exit code."""
    if cfg.launch.task:
        return _launch_other(cfg)
    plan = checked_plan(cfg)
    # A dry run writes nothing; scripts and job files are started later and find their config in the run directory.
    run_dir = Path(cfg.run_dir or cfg.run_root) if cfg.launch.dry_run else prepare_run_dir(cfg, plan)
    return launch_workers(cfg, WORKER, run_dir)


def _launch_other(cfg: HPConfig) -> int:
    """Another program, which brings its own config: only the launch is ours."""
    validate(cfg)
    if cfg.launch.dry_run:
        run_dir = Path(cfg.run_dir or cfg.run_root)
    else:
        run_dir = make_run_dir(cfg.run_dir, cfg.run_root, cfg.name)
        OmegaConf.save(OmegaConf.structured(cfg), run_dir / "config.yaml")
    return launch(cfg.launch, lambda world_size: tuple(cfg.launch.task), run_dir, os.environ)
