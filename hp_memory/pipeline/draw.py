"""Timelines as people know them from the papers: as text for a terminal, as a picture for the docs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hp_memory.pipeline.schedule import Step
from hp_memory.pipeline.simulate import Span, Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {"F": "#9ecae1", "R": "#fdd0a2", "B": "#74c476", "W": "#c7e9c0", "BW": "#31a354"}
# Inches; matplotlib draws no picture wider than 65535 dots.
WIDEST, DOTS_PER_INCH = 480.0, 130
WORDS = {
    "F": "forward",
    "R": "replay ahead of the gradient",
    "B": "dx alone",
    "W": "dw alone",
    "BW": "whole backward (dx and dw)",
}


def label(timeline: Timeline, step: Step) -> str:
    """``B3``, or ``B3b`` where a rank owns several chunks (a, b, ... z, aa, bb, ... from the model's input on)."""
    own = timeline.schedule.chunks_of(timeline.schedule.placement[step.chunk])
    turn, letter = divmod(own.index(step.chunk), 26)
    letters = chr(ord("a") + letter) * (turn + 1) if len(own) > 1 else ""
    return f"{step.op}{step.micro}{letters}"


def as_text(timeline: Timeline) -> str:
    """One line per rank, one column per unit of time; dots are waiting. Costs should be whole numbers."""
    width = max((len(label(timeline, s.step)) for s in timeline.spans), default=0) + 1
    lines = []
    for rank in range(timeline.schedule.ranks):
        line = ""
        for span in timeline.of_rank(rank):
            start, end = round(span.start) * width, round(span.end) * width
            line += "." * (start - len(line))
            line += label(timeline, span.step).ljust(end - start)
        lines.append(f"rank {rank} |{line.ljust(round(timeline.makespan) * width, '.')}|")
    return "\n".join(lines)


def _box(axes: Axes, timeline: Timeline, span: Span, later: bool) -> None:
    axes.barh(
        span.rank,
        span.end - span.start,
        left=span.start,
        height=0.9,
        color=COLOURS[span.step.op],
        edgecolor="black" if later else "white",
        linewidth=1.0 if later else 0.6,
        zorder=2 if later else 1,
    )
    text = label(timeline, span.step)[len(span.step.op) :]
    axes.text((span.start + span.end) / 2, span.rank, text, ha="center", va="center", fontsize=7)


def as_picture(timeline: Timeline, path: Path, title: str) -> None:
    """Write the timeline as an image (the suffix decides the format). Framed boxes are a rank's later chunks."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    schedule = timeline.schedule
    size = (min(max(6.0, 0.28 * timeline.makespan), WIDEST), min(0.9 + 0.42 * schedule.ranks, WIDEST))
    figure = Figure(figsize=size, dpi=DOTS_PER_INCH)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for span in timeline.spans:
        _box(axes, timeline, span, schedule.chunks_of(span.rank).index(span.step.chunk) > 0)
    axes.set(yticks=range(schedule.ranks), yticklabels=[f"rank {r}" for r in range(schedule.ranks)])
    axes.set(xlim=(0, timeline.makespan), ylim=(schedule.ranks - 0.5, -0.5), xlabel="time")
    axes.set_title(title, fontsize=9, loc="left")
    used = [op for op in COLOURS if any(s.step.op == op for s in timeline.spans)]
    patches = [Patch(color=COLOURS[op], label=f"{op}: {WORDS[op]}") for op in used]
    figure.legend(handles=patches, loc="lower center", ncol=len(patches), fontsize=7, frameon=False)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    figure.savefig(path)
