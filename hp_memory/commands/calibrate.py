"""``hp-memory calibrate``: what each region takes on this device, measured, beside what the model says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hp_memory.config.schema import CalibrateConfig
from hp_memory.errors import ConfigError
from hp_memory.estimate.engines.choice import trace
from hp_memory.estimate.times.measured import modelled, speeds_of
from hp_memory.estimate.workload import Workload
from hp_memory.experiment import experiment
from hp_memory.experiment.job import check_launch, launch_workers, prepare_run_dir
from hp_memory.experiment.workload import workload
from hp_memory.report.table import Table
from hp_memory.report.table import console as make_console
from hp_memory.runs.paths import run_dir_path
from hp_memory.runs.rank_report import read_rank_reports
from hp_memory.runs.region_times import BETWEEN, HEAD, MOST_SPREAD, RegionTime, RegionTimes

WORKER = "hp_memory.calibrate.worker"
FILE = "times.json"
LEAST_REPEATS, MOST_REPEATS = 3, 10_000


def run(cfg: CalibrateConfig) -> int:
    """Measures; returns 0, the launch's exit code, or 1 if the machine was too busy for the times to be used."""
    asked, work = experiment.of("calibrate", cfg), workload(cfg, cfg.estimate)
    _check(cfg)
    check_launch(cfg)
    if cfg.launch.dry_run:
        return launch_workers(cfg, WORKER, run_dir_path(cfg.run_dir, cfg.run_root, cfg.name))
    run_dir = prepare_run_dir(cfg, asked.plan)
    code = launch_workers(cfg, WORKER, run_dir)
    return code if code or cfg.launch.action != "run" else _report(cfg, work, run_dir)


def _check(cfg: CalibrateConfig) -> None:
    if not LEAST_REPEATS <= cfg.repeats <= MOST_REPEATS:
        raise ConfigError("repeats", cfg.repeats, f"a median needs {LEAST_REPEATS} to {MOST_REPEATS:,}")
    if cfg.estimate.device.times is not None:
        raise ConfigError("estimate.device.times", cfg.estimate.device.times, "is what calibrate writes", (None,))


def _report(cfg: CalibrateConfig, work: Workload, run_dir: Path) -> int:
    reports = list(read_rank_reports(run_dir).values())
    times = RegionTimes(
        f"{cfg.model.family} with hidden_size={cfg.model.hidden_size}, {work.tokens} tokens a micro-batch",
        cfg.model.family,
        reports[0]["device"],
        speeds_of(cfg.estimate.device),
        _kinds(work, cfg, [report["times"] for report in reports]),
    )
    times.write(run_dir / FILE)
    console = make_console()
    console.print(_table(times, len(reports)).rich())
    if times.spread > MOST_SPREAD:
        console.print(
            f"repetitions differ by {times.spread:.0%}, more than {MOST_SPREAD:.0%}: the machine was busy, and no dry "
            "run takes these times. Calibrate again, or with more repeats",
            style="bold red",
            markup=False,
        )
        return 1
    where = run_dir / FILE
    console.print(
        f"times {where}\nnext: hp-memory dryrun estimate.device.times={where} ...", soft_wrap=True, markup=False
    )
    return 0


def _kinds(work: Workload, cfg: CalibrateConfig, ranks: list[Mapping[str, Any]]) -> dict[str, dict[str, RegionTime]]:
    """Each region's measured seconds on the rank where it took longest, beside the modelled ones."""
    traced = trace(work)
    layers = dict(traced.layers) | ({HEAD: traced.head} if traced.head is not None else {})
    found: dict[str, dict[str, RegionTime]] = {}
    for kind, regions in ranks[0].items():
        expected = modelled(layers[kind], cfg.estimate.device)
        if kind == HEAD:
            forwards, backwards = zip(*expected.values(), strict=True)
            expected = {BETWEEN: (sum(forwards), sum(backwards))}
        for region in regions:
            slowest = max((rank[kind][region] for rank in ranks), key=lambda row: row["forward"] + row["backward"])
            forward, backward = expected.get(region, (0.0, 0.0))
            found.setdefault(kind, {})[region] = RegionTime(
                slowest["forward"], slowest["backward"], forward, backward, slowest["spread"]
            )
    return found


def _table(times: RegionTimes, ranks: int) -> Table:
    rows = [
        [kind, region or ("all" if kind == HEAD else "between regions"), f"{row.forward * 1e3:.3f}",
         f"{row.backward * 1e3:.3f}", f"{row.modelled_forward * 1e3:.3f}", f"{row.modelled_backward * 1e3:.3f}",
         f"{row.spread:.0%}"]
        for kind, regions in times.kinds.items()
        for region, row in regions.items()
    ]  # fmt: skip
    columns = ["layer", "region", "forward ms", "backward ms", "forward, modelled", "backward, modelled", "spread"]
    caption = f"MEASURED on {times.device}, slowest of {ranks} ranks; modelled from estimate.device's speeds"
    return Table(f"Regions of {times.model}", columns, rows, caption)
