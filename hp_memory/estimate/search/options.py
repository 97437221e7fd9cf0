"""Every way to treat a layer's regions, with what it holds and what its replay costs; the ones worth choosing from.

A layer with k free regions has 2^k ways, of which those are looked at that treat the regions of a ``TOGETHER`` alike:
steps of one projection or one small MLP. One way is dropped for another that costs no more, holds no more after the
forward and after a replay, and needs no more within forward and backward.

Why that loses no optimum: in every moment of every schedule, what is alive is a sum of these amounts over the layers of
a rank, with coefficients that aren't negative (``stage.demand``; what the search calls ``gradients`` always stands
beside ``replayed``, and the two together are ``working_backward``). So in any plan that fits, the dropped way may be
replaced by the other: every moment needs no more than before, and the plan costs no more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hp_memory.config.estimate import DeviceSettings, SearchSettings
from hp_memory.errors import ConfigError
from hp_memory.estimate.account import liveness
from hp_memory.estimate.account.held import free_regions
from hp_memory.estimate.account.replay import choices_of
from hp_memory.estimate.account.working import WorkingSets, working_sets
from hp_memory.estimate.times.layer import replay_work
from hp_memory.estimate.tracing.record import BARE, LayerTrace
from hp_memory.layout import GROUPS

AMOUNTS = ("held", "replayed", "waiting", "working_forward", "working_backward", "gradients")
# Ways are looked at in parts of this many, which bounds the memory it takes.
_PART = 1 << 15
_BLOCK = 256

TOGETHER = (
    ("attention.qkv_proj", "attention.qk_norm"),
    ("attention.q_up", "attention.kv_up", "attention.rope"),
    GROUPS["shared_experts"],
)
"""Regions that are replayed or saved as one at first: with each on its own there are 32 times as many ways. Each way
that is left is then tried with these regions apart. That is a heuristic: a way that only pays with some of them apart
and was dropped as a whole isn't found."""


@dataclass(frozen=True)
class Ways:
    """Ways to treat one layer of a kind: parallel arrays, cheapest replay first.

    A further action would add ways (rows) here, and perhaps an amount; nothing of the programme depends on what a way
    is beyond its cost and its amounts.

    Attributes:
        replayed: for each way the regions that are replayed; none for a layer without a boundary.
        cost: of one replay, in the unit of the cost model.
        amounts: for each of ``AMOUNTS`` the bytes of one micro-batch.
    """

    replayed: tuple[tuple[str, ...], ...]
    cost: np.ndarray
    amounts: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.cost)


def ways(trace: LayerTrace, costs: Mapping[str, float], prune: bool = True) -> Ways:
    """The ways to treat a layer; without ``prune`` all of them."""
    regions = free_regions(trace)
    chosen, table = _rows(trace, regions, costs, _together(regions), prune)
    if prune:
        best = chosen[undominated(table)]
        chosen, table = _rows(trace, regions, costs, _apart(best, regions), prune)
    keep = undominated(table) if prune else np.argsort(table[:, 0], kind="stable")
    chosen, (cost, held, replayed, forward, backward) = chosen[keep], table[keep].T
    waiting = np.full(len(keep), liveness.gradients_for_dw(trace), np.int64)
    amounts = {
        "held": held,
        "replayed": replayed,
        "waiting": waiting,
        "working_forward": forward,
        "working_backward": backward,
        "gradients": backward - replayed,
    }
    names = tuple(tuple(r for i, r in enumerate(regions) if mask >> i & 1) for mask in chosen)
    return Ways(names, cost, {name: amount.astype(np.int64) for name, amount in amounts.items()})


def _rows(
    trace: LayerTrace, regions: tuple[str, ...], costs: Mapping[str, float], masks: np.ndarray, prune: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Ways by their numbers, and rows of cost and the four amounts that pruning compares; looked at in parts."""
    numbers, rows = [], []
    for start in range(0, len(masks), _PART):
        part = masks[start : start + _PART]
        found = working_sets(trace, choices_of(regions, part))
        table = np.stack((_cost(part, regions, costs), *_compared(found)), 1)
        keep = undominated(table) if prune else np.arange(len(part))
        numbers.append(part[keep])
        rows.append(table[keep])
    return np.concatenate(numbers), np.concatenate(rows)


def _together(regions: tuple[str, ...]) -> np.ndarray:
    """The numbers of all ways that treat the regions of a unit alike."""
    units = _units(regions)
    numbers = np.arange(1 << len(units))
    masks = np.zeros_like(numbers)
    for i, unit in enumerate(units):
        masks |= (numbers >> i & 1) * _mask(regions, unit)
    return masks


def _apart(masks: np.ndarray, regions: tuple[str, ...]) -> np.ndarray:
    """These ways with every treatment of the regions that ``TOGETHER`` ties."""
    tied = [region for unit in _units(regions) if len(unit) > 1 for region in unit]
    free = np.array([_mask(regions, [r for i, r in enumerate(tied) if n >> i & 1]) for n in range(1 << len(tied))])
    rest = np.unique(masks & ~_mask(regions, tied))
    return np.unique(rest[:, None] | free[None, :])


def _mask(regions: tuple[str, ...], some: Sequence[str]) -> int:
    return sum(1 << regions.index(region) for region in some)


def _units(regions: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The regions that are decided as one, in order."""
    found: list[tuple[str, ...]] = []
    for region in regions:
        unit = next((together for together in TOGETHER if region in together), (region,))
        found.append(tuple(r for r in unit if r in regions))
    return list(dict.fromkeys(found))


def _cost(masks: np.ndarray, regions: tuple[str, ...], costs: Mapping[str, float]) -> np.ndarray:
    cost = np.where(masks > 0, costs[BARE], 0.0)
    for i, region in enumerate(regions):
        cost = cost + (masks >> i & 1) * costs[region]
    return cost


def _compared(found: WorkingSets) -> tuple[np.ndarray, ...]:
    return found.held, found.replayed, found.forward, np.maximum(found.backward, found.replayed)


def undominated(points: np.ndarray) -> np.ndarray:
    """Numbers of the rows that no other row matches or beats in every column; of equal rows the first.

    Sorted by the first column. A row that beats another comes before it in the order of all columns, so one pass is
    enough.
    """
    order = np.lexsort((np.arange(len(points)), *points.T[::-1]))
    # The two columns that say most drop most rows quickly.
    order = order[~_beaten(points[order], points[_front_of_two(points, order)])]
    kept: list[np.ndarray] = []
    front = points[:0]
    for start in range(0, len(order), _BLOCK):
        block = order[start : start + _BLOCK]
        block = block[~_covered(points[block], front)]
        inner = (points[block][None, :, :] <= points[block][:, None, :]).all(2)
        block = block[~np.triu(inner.T, 1).any(0)]
        kept.append(block)
        front = np.concatenate((front, points[block]))
    return np.concatenate(kept) if kept else order


def _front_of_two(points: np.ndarray, order: np.ndarray) -> np.ndarray:
    least = np.minimum.accumulate(points[order, 1])
    return order[np.append(True, points[order[1:], 1] < least[:-1])]


def _covered(points: np.ndarray, front: np.ndarray) -> np.ndarray:
    """Which points a row of the front matches or beats."""
    found = np.zeros(len(points), bool)
    for start in range(0, len(front), _BLOCK):
        part = front[start : start + _BLOCK]
        found |= (part[None, :, :] <= points[:, None, :]).all(2).any(1)
    return found


def _beaten(points: np.ndarray, front: np.ndarray) -> np.ndarray:
    """Which points a row of the front beats: no worse anywhere, and better somewhere."""
    found = np.zeros(len(points), bool)
    for row in front:
        found |= (row <= points).all(1) & (row < points).any(1)
    return found


def replay_costs(trace: LayerTrace, search: SearchSettings, device: DeviceSettings) -> dict[str, float]:
    """What one replay of each region costs: seconds, FLOPs, or the milliseconds that were given.

    ``BARE`` is what any replay costs: the operations between the regions.
    """
    regions = (*free_regions(trace), BARE)
    if search.cost == "given":
        return _given(regions, search.times)
    if search.cost == "flops":
        return {region: float(trace.flops("forward", (region,))) for region in regions}
    found = replay_work(trace, device)
    return {region: found[region].total if region in found else 0.0 for region in regions}


def _given(regions: tuple[str, ...], times: Mapping[str, float]) -> dict[str, float]:
    missing = [region for region in regions if region and region not in times]
    if missing:
        raise ConfigError("search.times", dict(times), f"{missing[0]} has no time", regions[:-1])
    return {region: float(times.get(region, 0.0)) for region in regions}
