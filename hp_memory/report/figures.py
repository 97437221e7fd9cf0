"""How every picture is made: without a display, in one style, as PNG."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hp_memory.report.page import Picture


def new_figure(width: float = 8, height: float = 4) -> tuple[Figure, Axes]:
    """A figure of ``width`` x ``height`` inches with one pair of axes and a light grid."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def figure_file(figure: Figure, path: Path, caption: str) -> Picture:
    """Writes the figure as PNG."""
    figure.savefig(path, dpi=130)
    return Picture(path, caption)
