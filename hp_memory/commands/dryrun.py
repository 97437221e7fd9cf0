"""``hp-memory dryrun``: memory per pipeline rank of a full-size model, on the meta device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import mindspore as ms
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode

from hp_memory.config.schema import DryrunConfig, validate
from hp_memory.errors import ConfigError
from hp_memory.estimate import compare_run, report
from hp_memory.estimate.ranks import Estimate, estimate
from hp_memory.experiment.desk import prepare_run_dir
from hp_memory.experiment.workload import layout_of, pipeline_of, workload
from hp_memory.layout import build_plan
from hp_memory.mindformers import yaml_input
from hp_memory.report.page import write_page
from hp_memory.report.table import console as make_console

if TYPE_CHECKING:
    from rich.console import Console

# The jobs of a sweep run one after the other in this process; each adds its column to one page.
_sweep: list[Estimate] = []


def run(cfg: DryrunConfig, action: str | None = None) -> int:
    """Prints and writes the estimate; returns 0, also where it doesn't fit, and 3 if the two counts disagree."""
    if cfg.report is not None and action is None:
        raise ConfigError("report", cfg.report, "has no effect without `hp-memory dryrun compare-run`")
    if cfg.report is None and action is not None:
        raise ConfigError("report", None, "compare-run needs report=FILE, the JSON report of a run")
    measured = compare_run.read_run(cfg.report) if cfg.report else []
    cfg = yaml_input.applied(cfg)
    validate(cfg)
    found = _estimate(cfg)
    run_dir = prepare_run_dir(cfg, found.plan)
    console = make_console()
    console.print(report.summary(found), highlight=False, markup=False)
    for table in report.write(found, run_dir):
        console.print(table.rich())
    if measured:
        console.print(compare_run.compare(found, measured).rich())
    console.print(f"report: {run_dir / 'report.html'}", highlight=False, markup=False, soft_wrap=True)
    _compare_sweep(found, console)
    return 0 if all(check.agrees for check in found.checks) else 3


def _estimate(cfg: DryrunConfig) -> Estimate:
    ms.set_device("CPU")
    work = workload(cfg, cfg.estimate)
    plan = build_plan(layout_of(cfg), work.fingerprint())
    return estimate(work, plan, pipeline_of(cfg), cfg.estimate, installed=cfg.installed)


def _compare_sweep(found: Estimate, console: Console) -> None:
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return
    _sweep.append(found)
    folder = Path(HydraConfig.get().sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    parts = report.comparison(_sweep, folder / "comparison.png")
    write_page(folder / "comparison.html", "Layouts side by side", parts)
    if len(_sweep) > 1:
        console.print(parts[0].rich())
        console.print(f"comparison: {folder / 'comparison.html'}", highlight=False, markup=False, soft_wrap=True)
