"""A step's time as words, tables and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.collections import PolyCollection

from hp_memory.config.estimate import DeviceSettings, EstimateSettings
from hp_memory.estimate.times.step import PARTS, StepTime
from hp_memory.pipeline.simulate import Span
from hp_memory.report.figures import figure_file, new_figure
from hp_memory.report.page import Picture
from hp_memory.report.table import Table

_COLOURS = {"forward": "#4c78a8", "backward": "#54a24b", "weights' gradients": "#b7d7a8", "replay": "#e45756"}
_NAMES = {"F": "forward", "B": "backward", "BW": "backward", "W": "weights' gradients"}
_Bar = list[tuple[float, float]]
_SPEEDS = ("peak_teraflops", "teraflops", "memory_bandwidth", "link_bandwidth", "host_link_bandwidth", "host_bandwidth")


def in_words(found: StepTime, settings: EstimateSettings) -> str:
    """One line: the step, the throughput, the utilisation and what a run costs. MODELLED."""
    hours = found.device_hours(settings.run_tokens)
    return (
        f"a step takes {found.seconds:.1f} s: {found.tokens_per_second:,.0f} tokens/s, "
        f"{found.utilisation:.1%} of {found.peak_teraflops:g} TFLOPS; "
        f"{settings.run_tokens:.3g} tokens cost {hours:,.0f} device hours (MODELLED)"
    )


def time_table(found: StepTime) -> Table:
    """A row per rank: seconds of each part, and its share of the step."""
    parts = [part for part in PARTS if any(rank.parts[part] for rank in found.ranks)]
    rows = [
        [str(rank.rank), *(f"{rank.parts[p]:.2f} ({rank.parts[p] / found.seconds:.0%})" for p in parts)]
        for rank in found.ranks
    ]
    caption = f"seconds of a step of {found.seconds:.2f} s, and their share; MODELLED from estimate.device's speeds"
    return Table("Time per pipeline rank", ["rank", *parts], rows, caption)


def speeds_table(device: DeviceSettings) -> Table:
    """The speeds that the seconds come from, each with its source."""
    unsaid = "not said: set estimate.device.sources"
    rows = [[name, f"{getattr(device, name):g}", device.sources.get(name, unsaid)] for name in _SPEEDS]
    return Table("Speeds", ["estimate.device", "value", "source"], rows, device.name)


def to_dict(found: StepTime, settings: EstimateSettings) -> dict[str, Any]:
    """JSON-ready."""
    return {
        "kind": "MODELLED",
        "seconds": found.seconds,
        "tokens_per_second": found.tokens_per_second,
        "utilisation": found.utilisation,
        "run_tokens": settings.run_tokens,
        "device_hours": found.device_hours(settings.run_tokens),
        "ranks": [{"rank": rank.rank, **rank.parts} for rank in found.ranks],
    }


def step_picture(found: StepTime, replay: Sequence[float], memory: Sequence[float], rank: int, path: Path) -> Picture:
    """What every rank does when, and below it one rank's memory on the same axis, from the step's beginning.

    Args:
        replay: seconds of a replay inside each chunk's backward.
        memory: GiB that ``rank`` needs within each of its compute steps.
    """
    ranks = found.timeline.schedule.ranks
    until = _window(found)
    figure, axes = new_figure(11, 3.5 + 0.22 * ranks)
    axes.remove()
    top, below = figure.subplots(2, 1, sharex=True, height_ratios=[0.4 + 0.1 * ranks, 1])
    # One collection a colour: as many single bars take seconds to draw.
    for name, bars in _bars(found.timeline.spans, replay, until).items():
        top.add_collection(PolyCollection(bars, facecolors=_COLOURS[name], linewidths=0, label=name))
    top.set(ylabel="pipeline rank", ylim=(ranks - 0.4, -0.6), xlim=(0, until))
    top.legend(fontsize=7, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), title="white: waiting")
    own = found.timeline.of_rank(rank)
    shown = [(s, gib) for s, gib in zip(own, memory, strict=True) if s.start < until]
    below.step([s.start for s, _ in shown], [gib for _, gib in shown], where="post", color="black", linewidth=0.8)
    below.set(xlabel="seconds", ylabel=f"GiB, rank {rank}", ylim=(0, 1.1 * max(memory)))
    words = f"The first {until:.1f} of {found.seconds:.1f} s of a step, and the memory of rank {rank}"
    return figure_file(figure, path, words)


def _window(found: StepTime) -> float:
    """Seconds until the pipeline is in its stride; a short step is shown whole."""
    spans = found.timeline.of_rank(0)
    shown = spans[: 6 * found.timeline.schedule.ranks]
    return found.seconds if len(shown) == len(spans) else shown[-1].end


def _bars(spans: Sequence[Span], replay: Sequence[float], until: float) -> dict[str, list[_Bar]]:
    """Bars by what they show, each as corners (seconds, rank); a backward's replay comes first in it."""
    found: dict[str, list[_Bar]] = {}
    for span in (span for span in spans if span.start < until):
        again = replay[span.step.chunk] if span.step.op in ("B", "BW") else 0.0
        if again:
            found.setdefault("replay", []).append(_bar(span.rank, span.start, span.start + again))
        found.setdefault(_NAMES[span.step.op], []).append(_bar(span.rank, span.start + again, span.end))
    return found


def _bar(rank: int, begin: float, end: float) -> _Bar:
    return [(begin, rank - 0.4), (end, rank - 0.4), (end, rank + 0.4), (begin, rank + 0.4)]
