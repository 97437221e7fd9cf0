"""What a layer holds after its forward under a layout, from one trace of the layer without any plan.

The rules are those of ``hp_memory.activation``: a boundary holds the block's inputs; a saved region holds what its
operations save, except what a replay makes again; a saved region's output is held if a replayed operation reads it, and
always where the region is one of ``ALWAYS_SAVED``.
Whether the rules are right is checked against the real wrappers, on the meta device and on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hp_memory.estimate.tracing.record import BARE, LayerTrace
from hp_memory.layout import ALWAYS_SAVED, Layout

Reason = Literal["saved for backward", "output kept for replay", "block input", "kept outside the hooks"]


@dataclass(frozen=True)
class HeldStorage:
    """One storage that stays after the forward: who holds it, why, and the shape in which it is held."""

    storage: int
    region: str
    reason: Reason
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Uses:
    """Who saves, makes and reads one storage in the forward."""

    storage: int
    made_in: str
    saved_in: tuple[str, ...]
    read_in: frozenset[str]
    is_output: bool
    shape: tuple[int, ...]
    unhooked: bool = False


def uses(trace: LayerTrace) -> list[Uses]:
    """The storages that any layout could hold, in the order in which they were made."""
    if "uses" not in trace.memo:
        trace.memo["uses"] = _uses(trace)
    return trace.memo["uses"]


def _uses(trace: LayerTrace) -> list[Uses]:
    saved: dict[int, list[str]] = {}
    shapes: dict[int, tuple[int, ...]] = {}
    for item in trace.saved:
        saved.setdefault(item.storage, []).append(item.region)
        shapes.setdefault(item.storage, item.shape)
    read: dict[int, set[str]] = {}
    for op in trace.of_phase("forward"):
        for number in op.reads:
            read.setdefault(number, set()).add(op.region)
    outputs = {number: region for region, numbers in trace.region_outputs.items() for number in numbers}
    unhooked = unhooked_storages(trace)
    found = set(saved) | set(outputs) | set(trace.inputs[:1]) | unhooked
    wanted = sorted(n for n in found if trace.activation(n))
    return [
        Uses(
            n,
            _made_in(trace, n),
            tuple(dict.fromkeys(saved.get(n, ()))),
            frozenset(read.get(n, ())),
            outputs.get(n) == trace.storages[n].region,
            shapes.get(n, trace.storages[n].shape),
            n in unhooked,
        )
        for n in wanted
    ]


def unhooked_storages(trace: LayerTrace) -> set[int]:
    """What a custom function keeps of the forward by itself: nothing saved it, but backward reads it or refers to it.

    No hook sees such a tensor, so no checkpoint can drop it.
    """
    forward = trace.of_phase("forward")
    made = {n for op in forward for n in op.writes}
    read = {n for op in trace.of_phase("backward") for n in op.reads}
    referred = {n for n, until in trace.released.items() if until >= len(forward)} - set(trace.outputs)
    unsaved = made - {item.storage for item in trace.saved}
    return {n for n in unsaved & (read | referred) if trace.activation(n)}


def _made_in(trace: LayerTrace, number: int) -> str:
    """The region whose run makes a storage; a checkpoint makes a backend's copy of an argument from that argument."""
    source = trace.copies.get(number)
    return trace.storages[number if source is None else source].region


def held(trace: LayerTrace, layout: Layout) -> list[HeldStorage]:
    """What stays after the forward of a layer under a layout, one entry per storage."""
    replayed = frozenset(layout.replays(trace.regions))
    return held_by(trace, replayed, layout.keep_outputs)


def held_by(trace: LayerTrace, replayed: Collection[str], keep_outputs: bool = False) -> list[HeldStorage]:
    """The same for a set of replayed regions; an empty one means no boundary."""
    found = []
    for use in uses(trace):
        entry = _plain(use) if not replayed else _under_boundary(trace, use, replayed, keep_outputs)
        if entry is not None:
            found.append(entry)
    return found


def _plain(use: Uses) -> HeldStorage | None:
    if use.unhooked:
        return HeldStorage(use.storage, use.made_in, "kept outside the hooks", use.shape)
    if not use.saved_in:
        return None
    return HeldStorage(use.storage, use.saved_in[0], "saved for backward", use.shape)


def _under_boundary(trace: LayerTrace, use: Uses, replayed: Collection[str], keep_outputs: bool) -> HeldStorage | None:
    if use.storage in trace.inputs:
        return HeldStorage(use.storage, BARE, "block input", use.shape)
    if use.unhooked:
        return HeldStorage(use.storage, use.made_in, "kept outside the hooks", use.shape)
    if use.made_in == BARE or use.made_in in replayed:
        return None
    savers = [region for region in use.saved_in if region not in replayed and region != BARE]
    if savers:
        return HeldStorage(use.storage, savers[0], "saved for backward", use.shape)
    kept = keep_outputs or use.made_in in ALWAYS_SAVED
    if use.is_output and (kept or BARE in use.read_in or not use.read_in.isdisjoint(replayed)):
        return HeldStorage(use.storage, use.made_in, "output kept for replay", use.shape)
    return None


def free_regions(trace: LayerTrace) -> tuple[str, ...]:
    """The regions of a layer whose action a layout may choose."""
    return tuple(region for region in trace.regions if region not in ALWAYS_SAVED)


def held_bytes_of_all(trace: LayerTrace) -> np.ndarray:
    """Held bytes of every subset of ``free_regions`` that is replayed: entry ``mask`` has bit i set if region i is."""
    return _sum_of_all(trace, lambda use, kept: kept)


def replayed_bytes_of_all(trace: LayerTrace) -> np.ndarray:
    """The same for what is there once the layer has been replayed: all that was saved, and what was held."""
    return _sum_of_all(trace, lambda use, kept: np.ones_like(kept) if use.saved_in or use.unhooked else kept)


def _sum_of_all(trace: LayerTrace, rule: Callable[[Uses, np.ndarray], np.ndarray]) -> np.ndarray:
    regions = free_regions(trace)
    masks = np.arange(1 << len(regions))
    replays = {region: (masks >> i & 1).astype(bool) for i, region in enumerate(regions)}
    never = np.zeros(len(masks), bool)
    total = np.zeros(len(masks), np.int64)
    for use in uses(trace):
        kept = _kept(trace, use, replays, never)
        kept[0] = bool(use.saved_in) or use.unhooked
        total += rule(use, kept) * trace.storages[use.storage].nbytes
    return total


def _kept(trace: LayerTrace, use: Uses, replays: dict[str, np.ndarray], never: np.ndarray) -> np.ndarray:
    if use.storage in trace.inputs or use.unhooked:
        return ~never
    if use.made_in == BARE:
        return never.copy()
    made = ~replays.get(use.made_in, never)
    saved = _any((~replays.get(region, never) for region in use.saved_in if region != BARE), never)
    always = BARE in use.read_in or use.made_in in ALWAYS_SAVED
    read = ~never if always else _any((replays.get(region, never) for region in use.read_in), never)
    return made & (saved | (read if use.is_output else never))


def _any(parts: Iterable[np.ndarray], never: np.ndarray) -> np.ndarray:
    found = never.copy()
    for part in parts:
        found |= part
    return found
