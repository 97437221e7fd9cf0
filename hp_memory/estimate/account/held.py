"""What a layer holds after its forward under a layout, from one trace of the layer without any plan.

The rules are those of ``hp_memory.activation``. Beside the block's input a boundary holds

* what operations of saved regions save, except what a replay makes again;
* those outputs of saved regions that a *live* replayed operation reads (``account.replay``);
* the outputs of ``ALWAYS_SAVED`` regions: decisions, which a replay must never make anew.

What a live operation reads is on the way to something that plain autograd would hold: a layout can only hold more than
no checkpoint (beside the block's input and the decisions) where the way there begins with something larger. On the
layers of the recipes none of the 2^k choices does; where a choice doesn't pay, ``worth.not_worth`` says so.
Whether the rules are right is checked against the real wrappers, on the meta device and on a CPU.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hp_memory.estimate.account.replay import Choices, Live, choice, every_choice, live, made_in
from hp_memory.estimate.tracing.record import LayerTrace
from hp_memory.layout import ALWAYS_SAVED, Layout

Reason = Literal[
    "saved for backward",
    "output read by the replay",
    "decision, never replayed",
    "output kept by the layout",
    "block input",
    "input of a module",
    "kept outside the hooks",
]


@dataclass(frozen=True)
class HeldStorage:
    """One storage that stays after the forward: who holds it, why, and the shape in which it is held."""

    storage: int
    region: str
    reason: Reason
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Uses:
    """Who makes and saves one storage in the forward."""

    storage: int
    made_in: str
    saved_in: tuple[str, ...]
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
    outputs = {number for numbers in trace.region_outputs.values() for number in numbers}
    unhooked = unhooked_storages(trace)
    found = set(saved) | outputs | set(trace.inputs[:1]) | unhooked
    return [
        Uses(
            n,
            made_in(trace, n),
            tuple(dict.fromkeys(saved.get(n, ()))),
            n in trace.region_outputs.get(trace.storages[n].region, ()),
            shapes.get(n, trace.storages[n].shape),
            n in unhooked,
        )
        for n in sorted(n for n in found if trace.activation(n))
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


def held(trace: LayerTrace, layout: Layout) -> list[HeldStorage]:
    """What stays after the forward of a layer under a layout, one entry per storage."""
    replayed = frozenset(layout.replays(trace.regions))
    return held_by(trace, replayed, layout.keep_outputs)


def held_by(trace: LayerTrace, replayed: Collection[str], keep_outputs: bool = False) -> list[HeldStorage]:
    """The same for a set of replayed regions; an empty one means no boundary."""
    key = f"held by {sorted(replayed)} {keep_outputs}"
    if key not in trace.memo:
        only = choice(replayed)
        alive = live(trace, only)
        entries = (_entry(trace, use, only, alive, keep_outputs) for use in uses(trace))
        trace.memo[key] = [entry for entry in entries if entry is not None]
    return trace.memo[key]


def _entry(trace: LayerTrace, use: Uses, only: Choices, alive: Live, keep_outputs: bool) -> HeldStorage | None:
    for reason, kept in _reasons(trace, use, only, alive, keep_outputs):
        if kept.all():
            savers = [region for region in use.saved_in if not only.again(region).all()]
            region = savers[0] if reason == "saved for backward" else use.made_in
            return HeldStorage(use.storage, region, reason, use.shape)
    return None


def _reasons(
    trace: LayerTrace, use: Uses, choices: Choices, alive: Live, keep_outputs: bool
) -> list[tuple[Reason, np.ndarray]]:
    """Why a storage may be held, first reason first, and in which choices it is."""
    never = np.zeros(len(choices), bool)
    saved = never
    for region in use.saved_in:
        saved = saved | ~choices.again(region)
    if use.unhooked:
        return [("kept outside the hooks", ~never)]
    if use.storage in trace.inputs:
        return [("block input", choices.boundary), ("saved for backward", saved)]
    stays = ~choices.again(use.made_in)
    output = stays & choices.boundary & use.is_output
    return [
        ("saved for backward", stays & saved),
        ("output read by the replay", output & alive.needed.get(use.storage, never)),
        ("decision, never replayed", output & (use.made_in in ALWAYS_SAVED)),
        ("output kept by the layout", output & keep_outputs),
    ]


def free_regions(trace: LayerTrace) -> tuple[str, ...]:
    """The regions of a layer whose action a layout may choose."""
    return tuple(region for region in trace.regions if region not in ALWAYS_SAVED)


def held_bytes_of_all(trace: LayerTrace) -> np.ndarray:
    """Held bytes of every subset of ``free_regions`` that is replayed: entry ``mask`` has bit i set if region i is."""
    return held_of(trace, every_choice(free_regions(trace))).nbytes


@dataclass(frozen=True)
class HeldOf:
    """What stays after the forward under each of several choices.

    Attributes:
        nbytes: bytes held, by choice.
        kept: for each storage that some choice holds, in which ones it is held.
        saved: for each of these, in which ones because an operation saved it.
    """

    nbytes: np.ndarray
    kept: Mapping[int, np.ndarray]
    saved: Mapping[int, np.ndarray]


def held_of(trace: LayerTrace, choices: Choices) -> HeldOf:
    """The same as ``held_by``, for many choices at once."""
    alive = live(trace, choices)
    total = np.zeros(len(choices), np.int64)
    kept: dict[int, np.ndarray] = {}
    saved: dict[int, np.ndarray] = {}
    never = np.zeros(len(choices), bool)
    for use in uses(trace):
        reasons = _reasons(trace, use, choices, alive, keep_outputs=False)
        kept[use.storage] = np.logical_or.reduce([when for _, when in reasons])
        saved[use.storage] = never
        for i, (reason, when) in enumerate(reasons):
            if reason == "saved for backward":
                saved[use.storage] = when & ~reasons[0][1] if i else when
        total += kept[use.storage] * trace.storages[use.storage].nbytes
    return HeldOf(total, kept, saved)
