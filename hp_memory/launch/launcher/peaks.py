"""Each rank's device memory at the end of a run, beside what was estimated before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

from hp_memory.errors import ConfigError
from hp_memory.runs.rank_report import MEASURED

# In a dry run's total, but outside of what the device's allocator counts.
_OUTSIDE = ("reserve", "communicators")


def read_estimate(file: str | None) -> dict[int, int]:
    """Pipeline rank -> estimated peak inside the allocator in bytes, from a dry run's ``report.json``; {} for None.

    Raises:
        ConfigError: for a file that isn't one.
    """
    if file is None:
        return {}
    try:
        stages = json.loads(Path(file).read_text())["stages"]
        return {int(stage["rank"]): _inside(stage) for stage in stages}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError("launch.estimate", file, "isn't the report.json of `hp-memory dryrun`") from error


def _inside(stage: Mapping) -> int:
    return int(stage["peak"]) - sum(int(stage["terms"][name]["bytes"]) for name in _OUTSIDE if name in stage["terms"])


def measured(reports: Mapping[int, dict], world: int, pipeline: int) -> list[dict]:
    """The ranks that measured something, as ``hp-memory dryrun compare-run`` reads them.

    Args:
        pipeline: number of stages; each stage is a run of consecutive ranks.
    """
    peaks = {rank: report["peaks"] for rank, report in sorted(reports.items()) if "peaks" in report}
    return [
        {"rank": rank, "pipeline_rank": rank * pipeline // world, **found}
        for rank, found in peaks.items()
        if found["kind"] == MEASURED
    ]


def peaks_table(ranks: list[dict], estimate: Mapping[int, int]) -> Table:
    """Rank, allocated, reserved, the estimate of its pipeline rank, and how far off that was from reserved."""
    shown = Table(
        "rank", f"allocated ({MEASURED})", f"reserved ({MEASURED})", "dry run (TRACED and MODELLED)", "off by",
        title="Device memory, peak of the run, in MiB", title_justify="left",
    )  # fmt: skip
    for rank in ranks:
        size, guess = rank["reserved"], estimate.get(rank["pipeline_rank"])
        off = f"{(guess - size) / size:+.1%}" if guess else "-"
        shown.add_row(str(rank["rank"]), _mib(rank["allocated"]), _mib(size), _mib(guess) if guess else "-", off)
    return shown


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f}"
