"""``hp-memory dryrun``: memory per pipeline rank of a full-size model, on the meta device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import mindspore as ms

from hp_memory.config.schema import DryrunConfig
from hp_memory.errors import ConfigError
from hp_memory.estimate import compare_run, report
from hp_memory.estimate.ranks import Estimate, estimate
from hp_memory.experiment import experiment
from hp_memory.experiment.job import prepare_run_dir
from hp_memory.experiment.workload import pipeline_of, workload
from hp_memory.mindformers.trainer_yaml.applied import applied_with_assumptions
from hp_memory.report.page import write_page
from hp_memory.report.table import console as make_console

if TYPE_CHECKING:
    from rich.console import Console


def run(cfg: DryrunConfig, action: str | None = None) -> int:
    """Prints and writes the estimate; returns 0, also where it doesn't fit, and 3 if the two counts disagree."""
    return _code(_shown(cfg, action))


def run_sweep(configs: Sequence[DryrunConfig], folder: Path, action: str | None = None) -> int:
    """One estimate after the other, then all of them side by side in ``folder``."""
    found: list[Estimate] = []
    for cfg in configs:
        found.append(_shown(cfg, action))
        if len(found) > 1:  # each job adds its column: what is there is complete if the next one is interrupted
            _compare(found, folder, make_console())
    return max(map(_code, found))


def _code(found: Estimate) -> int:
    return 0 if all(check.agrees for check in found.checks) else 3


def _shown(cfg: DryrunConfig, action: str | None) -> Estimate:
    if cfg.report is not None and action is None:
        raise ConfigError("report", cfg.report, "has no effect without `hp-memory dryrun compare-run`")
    if cfg.report is None and action is not None:
        raise ConfigError("report", None, "compare-run needs report=FILE, the JSON report of a run")
    measured = compare_run.read_run(cfg.report) if cfg.report else []
    from_yaml = applied_with_assumptions(cfg)
    cfg = from_yaml.cfg
    found = _estimate(cfg)
    run_dir = prepare_run_dir(cfg, found.plan)
    console = make_console()
    for note in from_yaml.notes:
        console.print(note, highlight=False, markup=False)
    console.print(report.summary(found), highlight=False, markup=False)
    for table in report.write(found, run_dir):
        console.print(table.rich())
    if measured:
        console.print(compare_run.compare(found, measured).rich())
    console.print(f"report: {run_dir / 'report.html'}", highlight=False, markup=False, soft_wrap=True)
    return found


def _estimate(cfg: DryrunConfig) -> Estimate:
    ms.set_device("CPU")
    asked, work = experiment.of("dryrun", cfg), workload(cfg, cfg.estimate)
    return estimate(work, asked.plan, pipeline_of(cfg), cfg.estimate, cfg.installed, cfg.host)


def _compare(found: Sequence[Estimate], folder: Path, console: Console) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table, picture = report.comparison(found, folder / "comparison.png")
    write_page(folder / "comparison.html", "Layouts side by side", [table, picture])
    console.print(table.rich())
    console.print(f"comparison: {folder / 'comparison.html'}", highlight=False, markup=False, soft_wrap=True)
