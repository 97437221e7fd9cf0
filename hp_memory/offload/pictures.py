"""Pictures of a timeline: device memory with and without the plan, and the transfers under it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hp_memory.offload.advise import Trial
from hp_memory.offload.timeline import TO_HOST, Curve, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIB = 2**20
COLOURS = {
    "without": "#9aa5b1",
    "with": "#1f6feb",
    "host": "#b7791f",
    "out": "#d1495b",
    "in": "#2a9d8f",
    "wait": "#111827",
}


def draw_timeline(before: Timeline, after: Timeline, path: Path, title: str) -> None:
    """Write one PNG: memory above, streams below, on one time axis in microseconds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.2), layout="constrained")
    FigureCanvasAgg(figure)
    memory, streams = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1.1))
    draw_memory(memory, before, after)
    draw_streams(streams, after)
    memory.set_title(title, loc="left")
    figure.savefig(path, dpi=130)


def draw_memory(axes: Axes, before: Timeline, after: Timeline) -> None:
    for timeline, name, key in ((before, "without offload", "without"), (after, "with offload", "with")):
        times, values = steps(timeline.device, timeline.total_us)
        peak = timeline.device.peak / MIB
        axes.step(times, values, where="post", color=COLOURS[key], lw=1.4, label=f"device, {name}: peak {peak:.2f} MiB")
        axes.axhline(peak, color=COLOURS[key], lw=0.8, ls=":")
    times, values = steps(after.host, after.total_us)
    axes.step(times, values, where="post", color=COLOURS["host"], lw=1.2, label="host, with offload")
    axes.set_ylabel("MiB (MODELLED)")
    axes.set_ylim(bottom=0)
    axes.legend(loc="best", frameon=False, fontsize=9)
    axes.grid(alpha=0.25)


def draw_streams(axes: Axes, timeline: Timeline) -> None:
    """Compute, copy-outs and reloads as bars; waits of the compute stream in black."""
    starts, ends = timeline.kernel_start_us, timeline.kernel_end_us
    axes.broken_barh(list(zip(starts, ends - starts, strict=True)), (2.1, 0.8), color=COLOURS["without"])
    waits = [(wait.start_us, wait.end_us - wait.start_us) for wait in timeline.waits]
    axes.broken_barh(waits, (2.1, 0.8), color=COLOURS["wait"])
    for row, key in ((1.1, "out"), (0.1, "in")):
        bars = [
            (span.start_us, span.end_us - span.start_us)
            for span in timeline.transfers
            if (span.direction == TO_HOST) == (key == "out")
        ]
        axes.broken_barh(bars, (row, 0.8), color=COLOURS[key])
    axes.set_yticks([0.5, 1.5, 2.5], ["to device", "to host", "compute"])
    axes.set_xlabel(
        f"µs; compute waits {timeline.exposed_us:.1f} µs for copies (black), copies take {timeline.busy_us:.1f} µs"
    )


def steps(curve: Curve, end_us: float) -> tuple[list[float], list[float]]:
    """A curve from 0 to the end of the step, in MiB."""
    times = [0.0, *curve.times_us, end_us]
    values = [0.0, *(curve.nbytes / MIB)]
    return times, [*values, values[-1]]


def draw_search(trials: Sequence[Trial], best: Trial | None, path: Path) -> None:
    """Peak against exposed time of every setting that was tried."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for strategy, colour in (("distance", COLOURS["with"]), ("peak", COLOURS["out"])):
        fine = [t for t in trials if t.settings.strategy == strategy and not t.errors]
        axes.scatter(
            [t.exposed_us for t in fine], [t.peak_bytes / MIB for t in fine], s=14, color=colour, label=strategy
        )
    if best is not None:
        axes.scatter(
            [best.exposed_us], [best.peak_bytes / MIB], s=120, marker="*", color=COLOURS["wait"], label="advised"
        )
    axes.set_xlabel("exposed transfer time, µs (MODELLED)")
    axes.set_ylabel("device peak, MiB (MODELLED)")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
