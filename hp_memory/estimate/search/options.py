"""Every way to treat a layer's regions, with what it holds and what its replay costs; the ones worth choosing from.

A layer with k regions has 2^k ways. One that holds no less, needs no less on the way and replays no cheaper than
another can't be part of an optimal plan: only the others are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hp_memory.config.estimate import DeviceSettings, SearchSettings
from hp_memory.errors import ConfigError
from hp_memory.estimate.account.held import free_regions, held_bytes_of_all, replayed_bytes_of_all
from hp_memory.estimate.account.stage import Unit, unit_of
from hp_memory.estimate.tracing.record import BARE, LayerTrace
from hp_memory.layout import Layout, make_layout


@dataclass(frozen=True)
class Option:
    """One way to treat the layers of a kind.

    Attributes:
        replayed: the regions that are replayed; empty for a layer without a boundary.
        unit: its memory.
        cost: of one replay, in the unit of the cost model.
        flops: of one replay.
    """

    replayed: tuple[str, ...]
    unit: Unit
    cost: float
    flops: int


def layout_of(trace: LayerTrace, replayed: tuple[str, ...], name: str = "search") -> Layout:
    """The layout that replays these regions and saves all others."""
    if not replayed:
        return make_layout(name, "save", (), (), ())
    return make_layout(name, "recompute", [r for r in free_regions(trace) if r not in replayed], (), ())


def replay_costs(trace: LayerTrace, search: SearchSettings, device: DeviceSettings) -> dict[str, float]:
    """What one replay of each region costs: seconds, FLOPs, or the milliseconds that were given.

    ``BARE`` is what any replay costs: the operations between the regions.
    """
    regions = (*free_regions(trace), BARE)
    if search.cost == "given":
        return _given(regions, search.times)
    if search.cost == "flops":
        return {region: float(trace.flops("forward", (region,))) for region in regions}
    return {region: _seconds(trace, region, device) for region in regions}


def _given(regions: tuple[str, ...], times: Mapping[str, float]) -> dict[str, float]:
    missing = [region for region in regions if region and region not in times]
    if missing:
        raise ConfigError("search.times", dict(times), f"{missing[0]} has no time", regions[:-1])
    return {region: float(times.get(region, 0.0)) for region in regions}


def _seconds(trace: LayerTrace, region: str, device: DeviceSettings) -> float:
    """Products at the device's speed, other operations by the bytes they touch, exchanges by what arrives."""
    total = 0.0
    for op in trace.of_phase("forward"):
        if op.region != region:
            continue
        touched = trace.nbytes(set(op.reads) | set(op.writes)) if set(op.writes) - set(op.reads) else 0
        total += max(op.flops / (device.teraflops * 1e12), touched / device.memory_bandwidth)
    if region.startswith("all2all."):
        total += trace.nbytes(trace.region_outputs.get(region, ())) / device.link_bandwidth
    return total


def options(trace: LayerTrace, costs: Mapping[str, float], prune: bool = True) -> list[Option]:
    """The ways to treat a layer, cheapest replay first; without ``prune`` all of them."""
    regions = free_regions(trace)
    masks = np.arange(1 << len(regions))
    held, replayed = held_bytes_of_all(trace), replayed_bytes_of_all(trace)
    cost = np.full(len(masks), costs[BARE])
    cost[0] = 0.0
    for i, region in enumerate(regions):
        cost += (masks >> i & 1) * costs[region]
    chosen = _undominated(np.stack((held, replayed - held, cost), 1)) if prune else masks
    return [_option(trace, regions, int(mask), float(cost[mask])) for mask in chosen]


def _option(trace: LayerTrace, regions: tuple[str, ...], mask: int, cost: float) -> Option:
    replayed = tuple(region for i, region in enumerate(regions) if mask >> i & 1)
    layout = layout_of(trace, replayed)
    flops = trace.flops("forward", (*replayed, BARE)) if replayed else 0
    return Option(replayed, unit_of(trace, "", None, layout), cost, flops)


def _undominated(points: np.ndarray) -> np.ndarray:
    """Rows that no other row matches or beats in every column; of equal rows the first. Sorted by the last column.

    The second column is turned into what matters to a peak: the larger of it and the first belongs to one micro-batch.
    """
    order = np.lexsort((points[:, 1], points[:, 0], points[:, 2]))
    kept: list[int] = []
    front = np.empty((0, points.shape[1]))
    for row in order:
        point = points[row]
        if len(front) and (front <= point).all(1).any():
            continue
        kept.append(int(row))
        front = np.vstack((front, point))
    return np.array(kept)
