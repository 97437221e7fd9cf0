"""Searches settings for the lowest device peak whose exposed transfer time stays within a bound."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hp_memory.offload.graph import Graph, Output
from hp_memory.offload.hazards import find_hazards, is_safe
from hp_memory.offload.operations import H2D
from hp_memory.offload.optimizer import HyperOffloadInput, run
from hp_memory.offload.settings import OffloadSettings, changed
from hp_memory.offload.timeline import baseline, simulate

BOTH = ("auto_offload", "strategy")
DISTANCES = ("prefetch_distance", "release_distance")
# What a strategy reads of the settings that are searched; a pass over weights alone reads the distances.
SEARCHED = {
    "distance": (*BOTH, "select_distance", "select_num", *DISTANCES),
    "peak": (*BOTH, "max_device_memory", "headroom", *DISTANCES),
}
Progress = Callable[[int, int], None]


DEFAULT = OffloadSettings()


@dataclass(slots=True)
class Trial:
    """One evaluated setting. ``errors``: hazards that give wrong data or a failing compile; ``moved``: copies in."""

    settings: OffloadSettings
    peak_bytes: int
    exposed_us: float
    moved: int
    errors: int

    def values(self) -> dict[str, object]:
        """What to set for this trial: a config of its own."""
        settings = self.settings
        names = SEARCHED[settings.strategy] if settings.moves_activations else ("auto_offload", *DISTANCES)
        adaptive = [name for name in ("adaptive_release", "adaptive_prefetch") if getattr(settings, name)]
        return {name: getattr(settings, name) for name in (*names, *adaptive)}


@dataclass(slots=True)
class Advice:
    """``best`` is None where nothing lowers the peak within the bound."""

    best: Trial | None
    baseline_bytes: int
    trials: list[Trial]
    exposed_bound_us: float


def advise(
    graph: Graph,
    settings: OffloadSettings,
    times_us: np.ndarray,
    bound_us: float,
    evaluations: int,
    stage: int,
    progress: Progress,
) -> Advice:
    """Try a coarse grid, then the neighbourhood of the best, within ``evaluations`` trials.

    The given settings are tried first, and none twice. A setting with an error hazard is never the best one.

    Args:
        progress: called after each trial with the number of trials so far and at most.
    """
    search = Search(graph, times_us, stage, progress, evaluations)
    base = simulate(baseline(graph, settings), times_us).device.peak
    grid = list(grid_for(graph, settings, base))
    # An even stride would meet the same prefetch and release distances again and again.
    random.Random(0).shuffle(grid)
    search.evaluate([settings], 1)
    search.evaluate(grid, evaluations * 2 // 3)
    best = pick(search.trials, base, bound_us)
    while best is not None and len(search.trials) < evaluations:
        search.evaluate(list(neighbours(best.settings)), evaluations)
        better = pick(search.trials, base, bound_us)
        if better is best:
            break
        best = better
    return Advice(best, base, search.trials, bound_us)


class Search:
    """Evaluates settings, none twice."""

    def __init__(self, graph: Graph, times_us: np.ndarray, stage: int, progress: Progress, evaluations: int) -> None:
        self.graph, self.times_us, self.stage = graph, times_us, stage
        self.progress, self.evaluations = progress, evaluations
        self.trials: list[Trial] = []
        self.seen: set[str] = set()

    def evaluate(self, settings: list[OffloadSettings], most: int) -> None:
        """Try those that weren't tried yet until there are ``most`` trials in all."""
        for candidate in settings:
            if len(self.trials) >= most:
                return
            if repr(candidate) not in self.seen:
                self.seen.add(repr(candidate))
                self.trials.append(evaluate(self.graph, candidate, self.times_us, self.stage))
                self.progress(len(self.trials), self.evaluations)


def evaluate(graph: Graph, settings: OffloadSettings, times_us: np.ndarray, stage: int) -> Trial:
    plan = run(HyperOffloadInput(graph, settings, stage=stage))
    hazards = find_hazards(plan)
    errors = sum(hazard.severity == "error" for hazard in hazards)
    moved = len(plan.operations.of_kind(H2D))
    if not is_safe(hazards):
        return Trial(settings, 0, 0.0, moved, errors)
    timeline = simulate(plan, times_us)
    return Trial(settings, timeline.device.peak, timeline.exposed_us, moved, errors)


def pick(trials: list[Trial], base: int, bound_us: float) -> Trial | None:
    """Lowest peak, then least exposed time, then fewest tensors moved."""
    fit = [t for t in trials if not t.errors and t.peak_bytes < base and t.exposed_us <= bound_us + 1e-6]
    return min(fit, key=lambda t: (t.peak_bytes, t.exposed_us, t.moved), default=None)


def grid_for(graph: Graph, settings: OffloadSettings, base: int) -> Iterator[OffloadSettings]:
    if settings.moves_activations:
        yield from peak_grid(settings, base)
        yield from distance_grid(graph, settings)
    else:
        yield from weight_grid(graph, settings)


def weight_grid(graph: Graph, settings: OffloadSettings) -> Iterator[OffloadSettings]:
    """Weights are loaded for each use: only when, and when a written copy goes, can be chosen."""
    distances = [d for d in (0, 1, 2, 3, 5, 8, 12, 20, 35, 50, 80, 120) if d < len(graph.nodes)]
    for prefetch, release in itertools.product(distances, (0, 1, 2, 5)):
        yield replace(settings, prefetch_distance=prefetch, release_distance=release)


def distance_grid(graph: Graph, settings: OffloadSettings) -> Iterator[OffloadSettings]:
    """Select distances at quantiles of the gaps, prefetch and release within what is always safe."""
    gaps = use_gaps(graph)
    if not len(gaps):
        return
    selects = sorted({int(np.quantile(gaps, q)) - 1 for q in np.linspace(0.3, 0.99, 14)} - {-1, 0})
    for select, share, release in itertools.product(selects, (0, 0.1, 0.25, 0.5, 0.8), (0, 0.05, 0.15, 0.3)):
        yield replace(
            settings,
            strategy="distance",
            select_distance=select,
            select_num=len(graph.nodes),
            prefetch_distance=int(select * share),
            release_distance=int(select * release),
            adaptive_release=False,
            adaptive_prefetch=False,
            max_device_memory=DEFAULT.max_device_memory,
            headroom=DEFAULT.headroom,
            score_weights=list(DEFAULT.score_weights),
        )


def peak_grid(settings: OffloadSettings, base: int) -> Iterator[OffloadSettings]:
    for share, prefetch, release in itertools.product(
        (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5), (1, 2, 5, 10, 25), (0, 1, 2, 5, 10)
    ):
        yield replace(
            settings,
            strategy="peak",
            filter_percentage=None,
            select_distance=DEFAULT.select_distance,
            select_num=DEFAULT.select_num,
            max_device_memory=int(base * share),
            headroom=0,
            prefetch_distance=prefetch,
            release_distance=release,
        )


def neighbours(settings: OffloadSettings) -> Iterator[OffloadSettings]:
    """One setting at a time, a little up and down."""
    names: Iterable[str]
    if not settings.moves_activations:
        names = DISTANCES
    elif settings.strategy == "peak":
        names = ("max_device_memory", *DISTANCES)
    else:
        names = ("select_distance", *DISTANCES, "select_num")
    for name, factor in itertools.product(names, (0.9, 0.97, 1.03, 1.1)):
        value = getattr(settings, name)
        moved = int(value * factor) if value >= 40 else value + {0.9: -2, 0.97: -1, 1.03: 1, 1.1: 2}[factor]
        if moved >= 0:
            yield changed(settings, {name: moved})


def use_gaps(graph: Graph) -> np.ndarray:
    """The longest distance between consecutive uses of each activation that has one longer than a kernel."""
    previous: dict[Output, int] = {}
    longest: dict[Output, int] = {}
    for position, node in enumerate(graph.nodes):
        for source in node.inputs:
            if isinstance(source, Output):
                gap = position - previous.get(source, source.node)
                longest[source] = max(longest.get(source, 0), gap)
                previous[source] = position
    return np.array([gap for gap in longest.values() if gap > 1])
