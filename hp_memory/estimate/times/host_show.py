"""Copies to the host and back as a table and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.collections import PolyCollection

from hp_memory.config.estimate import DeviceSettings
from hp_memory.estimate.times.host import HostCopies
from hp_memory.estimate.times.step import StepTime
from hp_memory.report.figures import figure_file, new_figure
from hp_memory.report.page import Picture
from hp_memory.report.table import Table

GIB = 2**30
_LANES = {"compute": 0, "out": 1, "in": 2}
_COLOURS = {"compute": "#4c78a8", "out": "#f58518", "in": "#54a24b"}


def host_table(copies: Sequence[HostCopies], step: float, device: DeviceSettings) -> Table | None:
    """A row per rank; None if nothing moves."""
    if not any(found.moved for found in copies):
        return None
    rows = []
    for rank, found in enumerate(copies):
        lanes = [sum(copy.end - copy.begin for copy in found.copies if copy.lane == lane) for lane in ("out", "in")]
        rows.append([
            str(rank), f"{found.moved / GIB:.1f}", f"{found.peak / GIB:.2f}",
            *(f"{seconds:.1f} ({seconds / step:.0%})" for seconds in lanes), f"{found.waits:.2f}",
        ])  # fmt: skip
    most = max(found.peak for found in copies) * device.ranks_per_host
    caption = (
        f"MODELLED at {device.host_bandwidth_of_a_rank / 1e9:g} GB/s each way for a rank. A host needs up to "
        f"{most / GIB:.0f} GiB for {device.ranks_per_host} ranks, of {device.host_memory}"
    )
    columns = ["rank", "GiB moved per step", "GiB on the host", "s out", "s in", "s waited for copies"]
    return Table("On the host", columns, rows, caption)


def host_picture(found: StepTime, copies: HostCopies, memory: Sequence[float], rank: int, path: Path) -> Picture:
    """One rank's compute and both copy lanes, with the memory of device and host below, from the step's beginning.

    Args:
        memory: GiB that the device needs within each of the rank's compute steps.
    """
    spans = found.timeline.of_rank(rank)
    until = found.seconds if len(spans) <= 60 else spans[59].end
    figure, axes = new_figure(11, 4.5)
    axes.remove()
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=[1, 2])
    bars: dict[str, list[Any]] = {"compute": [_bar(0, s.start, s.end) for s in spans if s.start < until]}
    for copy in (copy for copy in copies.copies if copy.begin < until):
        bars.setdefault(copy.lane, []).append(_bar(_LANES[copy.lane], copy.begin, copy.end))
    for lane, shown in bars.items():
        top.add_collection(PolyCollection(shown, facecolors=_COLOURS[lane], edgecolors="white", linewidths=0.3))
    top.set(ylim=(2.6, -0.6), xlim=(0, until), yticks=list(_LANES.values()), yticklabels=list(_LANES))
    below.step([s.start for s in spans], memory, where="post", color="black", linewidth=0.8, label="device")
    times = [moment for moment, _ in copies.levels]
    below.step(times, [n / GIB for _, n in copies.levels], where="post", color="#f58518", linewidth=0.8, label="host")
    below.set(xlabel="seconds", ylabel=f"GiB, rank {rank}", ylim=(0, None))
    below.legend(fontsize=7)
    words = f"Rank {rank} for the first {until:.1f} s of a step: compute, copies out and in, memory of device and host"
    return figure_file(figure, path, words)


def to_dict(copies: Sequence[HostCopies]) -> list[dict[str, float]]:
    """JSON-ready, by rank."""
    return [
        {"moved_bytes": c.moved, "host_peak_bytes": c.peak, "waits_seconds": c.waits, "copies": len(c.copies)}
        for c in copies
    ]


def _bar(lane: int, begin: float, end: float) -> list[tuple[float, float]]:
    return [(begin, lane - 0.4), (end, lane - 0.4), (end, lane + 0.4), (begin, lane + 0.4)]
