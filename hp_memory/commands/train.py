"""``hp-memory train``: trains under one plan, on this machine or on many."""

from __future__ import annotations

import json

from hp_memory.config.schema import HPConfig
from hp_memory.experiment import experiment
from hp_memory.experiment.job import check_launch, launch_workers, prepare_run_dir
from hp_memory.report.table import console as make_console
from hp_memory.report.training import write_report
from hp_memory.runs import mindformers_checkpoints
from hp_memory.runs.paths import run_dir_path

WORKERS = {"reference": "hp_memory.train.worker", "mindformers": "hp_memory.mindformers.worker"}


def run(cfg: HPConfig) -> int:
    """Trains; returns 0, or the launch's exit code."""
    asked = experiment.of("train", cfg)
    plan = asked.plan
    _check_checkpoint(asked)
    experiment.check_text(cfg)
    check_launch(cfg)
    # A dry run writes nothing; scripts and job files are started later and find their config in the run directory.
    place = (cfg.run_dir, cfg.run_root, cfg.name)
    run_dir = run_dir_path(*place) if cfg.launch.dry_run else prepare_run_dir(cfg, plan)
    console = make_console()
    console.print(plan.in_words(), markup=False, highlight=False)
    console.print(f"run directory {run_dir}", markup=False, highlight=False, soft_wrap=True)
    code = launch_workers(cfg, WORKERS[cfg.engine], run_dir)
    if code == 0 and cfg.launch.action == "run" and not cfg.launch.dry_run:
        console.print(write_report(run_dir, json.loads((run_dir / "result.json").read_text())).rich())
    return code


def _check_checkpoint(asked: experiment.Experiment) -> None:
    cfg, wanted = asked.cfg, asked.cfg.train.resume_from
    if wanted is None:
        return
    if cfg.engine == "reference":
        from hp_memory.runs.checkpoint import find_checkpoint

        digest = asked.fingerprint.digest
        sizes = (cfg.parallel.world_size, cfg.parallel.expert)
        # Every rank reads the one that was found whole here.
        cfg.train.resume_from = str(find_checkpoint(wanted, digest, *sizes, cfg.train.steps).resolve())
    else:
        mindformers_checkpoints.refuse_damaged(wanted, "train.resume_from")
