"""``hp-memory compare``: the same steps under several layouts, proved equal and measured."""

from __future__ import annotations

from pathlib import Path

import rich.console

from hp_memory.compare.job import Job, write_job
from hp_memory.config.app import compose, to_object
from hp_memory.config.complaints import options
from hp_memory.config.schema import CompareConfig
from hp_memory.errors import ConfigError
from hp_memory.experiment import experiment
from hp_memory.experiment.job import launch_workers, prepare_run_dir
from hp_memory.layout import ActivationPlan
from hp_memory.report.comparison import unexpected, write_report
from hp_memory.report.table import console as make_console
from hp_memory.runs.paths import run_dir_path
from hp_memory.runs.rank_report import read_rank_reports

WORKER = "hp_memory.compare.worker"


def run(cfg: CompareConfig) -> int:
    """Compares; returns 0 only if every layout gave the first one's bits on every rank."""
    asked = experiment.of("compare", cfg)
    plans = _plans(cfg, asked)
    console = make_console()
    if cfg.launch.dry_run:
        return launch_workers(cfg, WORKER, run_dir_path(cfg.run_dir, cfg.run_root, cfg.name))
    run_dir = prepare_run_dir(cfg, asked.plan)
    words = [f"layout {name}, plan {p.hash()}\n{p.in_words()}" for name, p in plans.items()]
    (run_dir / "plan.txt").write_text("\n\n".join(words) + "\n")
    write_job(run_dir, Job(plans, cfg.steps, cfg.timed_steps))
    console.print(f"run directory {run_dir}", markup=False, highlight=False, soft_wrap=True)
    code = launch_workers(cfg, WORKER, run_dir)
    return code if code or cfg.launch.action != "run" else _report(run_dir, plans, console)


def _plans(cfg: CompareConfig, asked: experiment.Experiment) -> dict[str, ActivationPlan]:
    """A plan per layout; the names are those of the ``layout`` config group."""
    if len(cfg.layouts) < 2 or len(set(cfg.layouts)) < len(cfg.layouts):
        raise ConfigError("layouts", list(cfg.layouts), "name two or more different layouts")
    for name in ("steps", "timed_steps"):
        if getattr(cfg, name) < 1:
            raise ConfigError(name, getattr(cfg, name), "must be at least 1")
    plans, known = {}, options("layout")
    for i, name in enumerate(cfg.layouts):
        if name not in known:
            raise ConfigError(f"layouts[{i}]", name, "no such layout", known)
        layout = to_object(compose("layout_only", [f"layout={name}"])).layout
        plans[name] = asked.plan_under(layout, f"layouts.{name}")
    return plans


def _report(run_dir: Path, plans: dict[str, ActivationPlan], console: rich.console.Console) -> int:
    reports = read_rank_reports(run_dir)
    for report in reports.values():
        for name, found in report["layouts"].items():
            found["plan"] = plans[name].in_words()
    kinds = next(iter(plans.values())).fingerprint.kinds
    tables = write_report(run_dir, reports, [i for i, kind in enumerate(kinds) if kind == "moe"])
    for table in tables:
        console.print(table.rich())
    unequal = {n: f["difference"] for r in reports.values() for n, f in r["layouts"].items() if f["difference"]}
    for name, difference in unequal.items():
        console.print(f"{name} differs: {difference}", style="bold red", markup=False)
    console.print(f"report {run_dir / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
    wrong = unexpected(reports)
    for line in wrong:
        console.print(line, style="bold red", markup=False)
    return 1 if unequal or wrong else 0
