"""Searches settings for the lowest device peak whose exposed transfer time stays within a bound."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from hp_memory.offload.graph import Graph, Output
from hp_memory.offload.hazards import find_hazards, is_safe
from hp_memory.offload.optimizer import HyperOffloadInput, run
from hp_memory.offload.settings import OffloadSettings
from hp_memory.offload.timeline import baseline, simulate

SEARCHED = (
    "strategy",
    "select_distance",
    "select_num",
    "prefetch_distance",
    "release_distance",
    "max_device_memory",
    "headroom",
)


@dataclass(slots=True)
class Trial:
    """One evaluated setting. ``errors``: hazards that give wrong data or a failing compile."""

    settings: OffloadSettings
    peak_bytes: int
    exposed_us: float
    offloaded: int
    errors: int

    def values(self) -> dict[str, object]:
        return {name: getattr(self.settings, name) for name in SEARCHED}


@dataclass(slots=True)
class Advice:
    """``best`` is None where nothing lowers the peak within the bound."""

    best: Trial | None
    baseline_bytes: int
    trials: list[Trial]
    exposed_bound_us: float


def advise(graph: Graph, settings: OffloadSettings, times_us: np.ndarray, bound_us: float, evaluations: int) -> Advice:
    """Try a coarse grid of both strategies, then the neighbourhood of the best, within ``evaluations`` trials.

    The given settings are tried first. A setting with an error hazard is never the best one.
    """
    base = simulate(baseline(graph, settings), times_us).device.peak
    trials = [evaluate(graph, settings, times_us)]
    grid = list(itertools.chain(peak_grid(settings, base), distance_grid(graph, settings)))
    # An even stride would meet the same prefetch and release distances again and again.
    random.Random(0).shuffle(grid)
    trials += [evaluate(graph, candidate, times_us) for candidate in grid[: evaluations * 2 // 3]]
    best = pick(trials, base, bound_us)
    while best is not None and len(trials) < evaluations:
        fresh = [s for s in neighbours(best.settings) if all(s != trial.settings for trial in trials)]
        if not fresh:
            break
        trials += [evaluate(graph, s, times_us) for s in fresh[: evaluations - len(trials)]]
        better = pick(trials, base, bound_us)
        if better is best:
            break
        best = better
    return Advice(best, base, trials, bound_us)


def evaluate(graph: Graph, settings: OffloadSettings, times_us: np.ndarray) -> Trial:
    plan = run(HyperOffloadInput(graph, settings))
    hazards = find_hazards(plan)
    errors = sum(hazard.severity == "error" for hazard in hazards)
    if not is_safe(hazards):
        return Trial(settings, 0, 0.0, len(plan.offload_infos), errors)
    timeline = simulate(plan, times_us)
    return Trial(settings, timeline.device.peak, timeline.exposed_us, len(plan.offload_infos), errors)


def pick(trials: list[Trial], base: int, bound_us: float) -> Trial | None:
    """Lowest peak, then least exposed time, then fewest data moved."""
    fit = [t for t in trials if not t.errors and t.peak_bytes < base and t.exposed_us <= bound_us + 1e-6]
    return min(fit, key=lambda t: (t.peak_bytes, t.exposed_us, t.offloaded), default=None)


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
        )


def peak_grid(settings: OffloadSettings, base: int) -> Iterator[OffloadSettings]:
    for share, prefetch, release in itertools.product(
        (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5), (1, 2, 5, 10, 25), (0, 1, 2, 5, 10)
    ):
        yield replace(
            settings,
            strategy="peak",
            filter_percentage=None,
            max_device_memory=int(base * share),
            headroom=0,
            prefetch_distance=prefetch,
            release_distance=release,
        )


def neighbours(settings: OffloadSettings) -> Iterator[OffloadSettings]:
    """One setting at a time, a little up and down."""
    if settings.strategy == "peak":
        names: Iterable[str] = ("max_device_memory", "prefetch_distance", "release_distance")
    else:
        names = ("select_distance", "prefetch_distance", "release_distance", "select_num")
    for name, factor in itertools.product(names, (0.9, 0.97, 1.03, 1.1)):
        value = getattr(settings, name)
        moved = int(value * factor) if value >= 40 else value + {0.9: -2, 0.97: -1, 1.03: 1, 1.1: 2}[factor]
        if moved >= 0:
            yield replace(settings, **{name: moved})


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
