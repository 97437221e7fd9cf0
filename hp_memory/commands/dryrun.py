"""``hp-memory dryrun``: memory per pipeline rank of a full-size model, on the meta device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mindspore as ms

from hp_memory.config.schema import DryrunConfig
from hp_memory.errors import ConfigError
from hp_memory.estimate import compare_run, report
from hp_memory.estimate.account.modules import Modules
from hp_memory.estimate.ranks import Estimate, estimate
from hp_memory.experiment import experiment
from hp_memory.experiment.job import prepare_run_dir
from hp_memory.experiment.workload import pipeline_of, workload
from hp_memory.mindformers.trainer_yaml.applied import applied_with_assumptions
from hp_memory.report.page import write_page
from hp_memory.report.table import console as make_console
from hp_memory.runs.paths import refuse_used

if TYPE_CHECKING:
    from rich.console import Console


def run(cfg: DryrunConfig, action: str | None = None) -> int:
    """Prints and writes the estimate.

    Returns:
        0, also where it doesn't fit; 1 if a run's peak lies outside the band, 3 if the two counts disagree.
    """
    return _shown(cfg, action).code


def run_sweep(configs: Sequence[DryrunConfig], folder: Path, action: str | None = None) -> int:
    """One estimate after the other, then all of them side by side in ``folder``."""
    shown: list[Shown] = []
    for cfg in configs:
        shown.append(_shown(cfg, action))
        if len(shown) > 1:  # each job adds its column: what is there is complete if the next one is interrupted
            _compare([one.found for one in shown], folder, make_console())
    return max(one.code for one in shown)


@dataclass(frozen=True)
class Shown:
    """An estimate that was printed, and the peaks of a run that lie outside its band, in words."""

    found: Estimate
    outside: tuple[str, ...]

    @property
    def code(self) -> int:
        """The exit code."""
        if not all(check.agrees for check in self.found.checks):
            return 3
        return 1 if self.outside else 0


def _refuse_unread(cfg: DryrunConfig, action: str | None) -> None:
    if action is None:
        for name in ("report", "band"):
            if getattr(cfg, name) is not None:
                raise ConfigError(name, getattr(cfg, name), "has no effect without `hp-memory dryrun compare-run`")
    elif cfg.report is None:
        raise ConfigError("report", None, "compare-run needs report=FILE, the JSON report of a run")
    if cfg.band is not None and not 0 <= cfg.band < 1:
        raise ConfigError("band", cfg.band, "a share of the measured peak, from 0 to below 1: 0.1 allows 10 %")


def _shown(cfg: DryrunConfig, action: str | None) -> Shown:
    _refuse_unread(cfg, action)
    refuse_used(cfg.run_dir)
    measured = compare_run.read_run(cfg.report) if cfg.report else []
    from_yaml = applied_with_assumptions(cfg)
    cfg = from_yaml.cfg
    found = _estimate(cfg, from_yaml.reading.modules if from_yaml.reading else {})
    run_dir = prepare_run_dir(cfg, found.plan)
    console = make_console()
    for note in from_yaml.notes:
        console.print(note, highlight=False, markup=False)
    console.print(report.summary(found), highlight=False, markup=False)
    for table in report.write(found, run_dir):
        console.print(table.rich())
    outside = _beside_run(compare_run.figures(found, measured), cfg.band, console) if measured else []
    console.print(f"report: {run_dir / 'report.html'}", highlight=False, markup=False, soft_wrap=True)
    return Shown(found, tuple(outside))


def _beside_run(figures: list[compare_run.Figure], band: float | None, console: Console) -> list[str]:
    """Prints a run beside its dry run; the peaks outside the band."""
    console.print(compare_run.compare(figures).rich())
    outside = compare_run.outside(figures, band) if band is not None else []
    for line in outside:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    return outside


def _estimate(cfg: DryrunConfig, modules: Mapping[int, Modules]) -> Estimate:
    ms.set_device("CPU")
    asked, work = experiment.of("dryrun", cfg), workload(cfg, cfg.estimate)
    return estimate(work, asked.plan, pipeline_of(cfg), cfg.estimate, cfg.installed, cfg.host, modules)


def _compare(found: Sequence[Estimate], folder: Path, console: Console) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    table, picture = report.comparison(found, folder / "comparison.png")
    write_page(folder / "comparison.html", "Layouts side by side", [table, picture])
    console.print(table.rich())
    console.print(f"comparison: {folder / 'comparison.html'}", highlight=False, markup=False, soft_wrap=True)
