"""``hp-memory train``: trains under one plan, on this machine or on many."""

from __future__ import annotations

import json
from pathlib import Path

from hp_memory.config import HPConfig
from hp_memory.experiment import checked_plan, fingerprint, launch_workers, prepare_run_dir
from hp_memory.report.table import console as make_console
from hp_memory.report.training import write_report


def run(cfg: HPConfig) -> int:
    """Trains; returns 0, or the launch's exit code."""
    plan = checked_plan(cfg)
    _check_checkpoint(cfg)
    console = make_console()
    console.print(plan.in_words(), markup=False, highlight=False)
    if cfg.launch.dry_run or cfg.launch.action != "run":
        return launch_workers(cfg, "hp_memory.train.worker", Path(cfg.run_dir or cfg.run_root))
    run_dir = prepare_run_dir(cfg, plan)
    console.print(f"run directory {run_dir}", markup=False, highlight=False, soft_wrap=True)
    code = launch_workers(cfg, "hp_memory.train.worker", run_dir)
    if code == 0:
        console.print(write_report(run_dir, json.loads((run_dir / "result.json").read_text())).rich())
    return code


def _check_checkpoint(cfg: HPConfig) -> None:
    if cfg.train.resume_from is not None:
        from hp_memory.train.checkpoint import find_checkpoint

        digest = fingerprint(cfg).digest
        find_checkpoint(cfg.train.resume_from, digest, cfg.parallel.world_size, cfg.parallel.expert)
