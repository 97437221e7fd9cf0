"""``hp-memory train``: trains under one plan, on this machine or on many."""

from __future__ import annotations

import json
from pathlib import Path

from hp_memory.config import HPConfig
from hp_memory.errors import ConfigError
from hp_memory.experiment import checked_plan, fingerprint, launch_workers, prepare_run_dir, refuse_unread_settings
from hp_memory.report.table import console as make_console
from hp_memory.report.training import write_report

WORKERS = {"reference": "hp_memory.train.worker", "mindformers": "hp_memory.mindformers.worker"}


def run(cfg: HPConfig) -> int:
    """Trains; returns 0, or the launch's exit code."""
    refuse_unread_settings(cfg)
    plan = checked_plan(cfg)
    if cfg.launch.task:
        raise ConfigError("launch.task", list(cfg.launch.task), "isn't the trainer: use `hp-memory launch`")
    _check_checkpoint(cfg)
    console = make_console()
    console.print(plan.in_words(), markup=False, highlight=False)
    # A dry run writes nothing; scripts and job files are started later and find their config in the run directory.
    run_dir = Path(cfg.run_dir or cfg.run_root) if cfg.launch.dry_run else prepare_run_dir(cfg, plan)
    console.print(f"run directory {run_dir}", markup=False, highlight=False, soft_wrap=True)
    code = launch_workers(cfg, WORKERS[cfg.engine], run_dir)
    if code == 0 and cfg.launch.action == "run" and not cfg.launch.dry_run:
        console.print(write_report(run_dir, json.loads((run_dir / "result.json").read_text())).rich())
    return code


def _check_checkpoint(cfg: HPConfig) -> None:
    # MindFormers has checkpoints of its own and checks them itself.
    if cfg.train.resume_from is not None and cfg.engine == "reference":
        from hp_memory.train.checkpoint import find_checkpoint

        digest = fingerprint(cfg).digest
        find_checkpoint(cfg.train.resume_from, digest, cfg.parallel.world_size, cfg.parallel.expert, cfg.train.steps)
