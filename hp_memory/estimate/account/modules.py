"""A layer some of whose modules are checkpoints of their own: what MindFormers makes of ``recompute.select_module``.

Each module keeps what enters it and runs again just before its own backward; what it hands on is an ordinary tensor,
held if an operation outside saves it. So a layer holds

* what is saved by operations that no module contains, wherever it was made;
* what a module reads that was made before it, once for all modules that read it;
* decisions, which MindFormers saves too, and what no hook sees.

That can be more than no checkpoint holds: the input of a small module that nothing else saves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hp_memory.estimate.account import liveness
from hp_memory.estimate.account.held import HeldStorage, Reason, held_by, unhooked_storages
from hp_memory.estimate.account.stage import Unit, parts_of
from hp_memory.estimate.account.worth import NotWorth
from hp_memory.estimate.tracing.record import BARE, LayerTrace, Op
from hp_memory.layout import ALWAYS_SAVED

Modules = tuple[tuple[str, ...], ...]
"""For each module the regions inside it."""


@dataclass(frozen=True)
class _Module:
    """A module of a trace: the operations that run again, and the storages they make, save and take from outside."""

    again: tuple[Op, ...]
    made: frozenset[int]
    saved: frozenset[int]
    inputs: frozenset[int]


def unit_of_modules(trace: LayerTrace, name: str, layer: int | None, modules: Modules) -> Unit:
    """A layer whose modules are boundaries of their own, in bytes per micro-batch."""
    found = [_module(trace, regions) for regions in modules]
    kept = _held(trace, found, modules)
    parts = parts_of(trace, kept)
    stays = {entry.storage for entry in kept}
    return Unit(
        name,
        layer,
        sum(parts.values()),
        trace.nbytes(liveness.saved_storages(trace) | stays),
        liveness.gradients_for_dw(trace),
        liveness.peak(trace, *liveness.forward_lives(trace, stays)),
        liveness.peak(trace, *_backward_lives(trace, found, kept)),
        parts,
    )


def held_by_modules(trace: LayerTrace, modules: Modules) -> list[HeldStorage]:
    """What stays after the forward, one entry per storage."""
    return _held(trace, [_module(trace, regions) for regions in modules], modules)


def no_gain(trace: LayerTrace, layout: str, modules: Modules) -> NotWorth | None:
    """The modules of a layer that holds no less with them than without any checkpoint; None if it holds less."""
    before = trace.nbytes(entry.storage for entry in held_by_modules(trace, modules))
    plain = trace.nbytes(entry.storage for entry in held_by(trace, ()))
    regions = tuple(r for r in trace.regions if any(r in own for own in modules) and r not in ALWAYS_SAVED)
    if before < plain or not regions:
        return None
    return NotWorth(trace.kind, layout, regions, before, plain, trace.flops("forward", regions))


def _module(trace: LayerTrace, regions: Sequence[str]) -> _Module:
    """The operations from a module's first region to its last; what lies between its regions belongs to it."""
    forward = trace.of_phase("forward")
    own = [i for i, op in enumerate(forward) if op.region in regions]
    inside = [op for op in forward[own[0] : own[-1] + 1] if op.region in regions or op.region == BARE] if own else []
    again = tuple(op for op in inside if op.region not in ALWAYS_SAVED)
    made = frozenset(n for op in again for n in op.writes)
    inputs = frozenset(n for op in again for n in op.reads if n not in made and trace.activation(n))
    saved = {item.storage for item in trace.saved if item.region in regions}
    return _Module(again, made, frozenset(saved & made), inputs)


def _held(trace: LayerTrace, found: Sequence[_Module], modules: Modules) -> list[HeldStorage]:
    inside = {region for regions in modules for region in regions}.difference(ALWAYS_SAVED)
    made = {n for module in found for n in module.made}
    # What lies between the regions of a module is inside it too.
    saving = (item for item in reversed(trace.saved) if item.region not in inside)
    outside = {item.storage: item.region for item in saving if item.region != BARE or item.storage not in made}
    entered = {n for module in found for n in module.inputs}
    kept: dict[int, HeldStorage] = {}
    for entry in held_by(trace, ()):
        if entry.reason == "kept outside the hooks":
            kept[entry.storage] = entry
        elif entry.storage in outside:
            kept[entry.storage] = HeldStorage(entry.storage, outside[entry.storage], "saved for backward", entry.shape)
    for number in sorted(entered - kept.keys() - unhooked_storages(trace)):
        storage = trace.storages[number]
        why: Reason = "decision, never replayed" if storage.region in ALWAYS_SAVED else "input of a module"
        kept[number] = HeldStorage(number, storage.region, why, storage.shape)
    return list(kept.values())


def _backward_lives(
    trace: LayerTrace, found: Sequence[_Module], kept: Sequence[HeldStorage]
) -> tuple[list[Op], liveness.Lives]:
    """Backward with each module's replay just before the first operation that takes something from it."""
    ops, first, last = liveness.of_phase(trace, "backward")
    sequence, moved, offsets = _interleaved(ops, found)
    saved = liveness.saved_storages(trace)
    lives: liveness.Lives = {
        n: (moved[start], moved[last[n]]) for n, start in first.items() if trace.activation(n) and n not in saved
    }
    for i, module in enumerate(found):
        begin, end = liveness.lifetimes(trace, module.again)
        for n in module.made:
            if trace.activation(n):
                until = moved[last[n]] if n in module.saved and n in last else offsets[i] + end[n]
                lives[n] = (offsets[i] + begin[n], max(until, lives.get(n, (0, 0))[1]))
    for entry in kept:
        n = entry.storage
        reads = [offsets[i] + len(module.again) - 1 for i, module in enumerate(found) if n in module.inputs]
        lives[n] = (0, max([moved[last[n]] if n in last else len(sequence) - 1, *reads]))
    return sequence, lives


def _interleaved(ops: Sequence[Op], found: Sequence[_Module]) -> tuple[list[Op], list[int], dict[int, int]]:
    """Backward's operations with the replays, where each operation went, and where each module's replay begins."""
    begins = [_begin(ops, module) for module in found]
    sequence: list[Op] = []
    moved: list[int] = []
    offsets: dict[int, int] = {}
    for at in range(len(ops) + 1):
        for i in (i for i in reversed(range(len(found))) if begins[i] == at):
            offsets[i] = len(sequence)
            sequence += found[i].again
        if at < len(ops):
            moved.append(len(sequence))
            sequence.append(ops[at])
    return sequence, moved, offsets


def _begin(ops: Sequence[Op], module: _Module) -> int:
    """The first operation of backward that takes something that the module saves; behind the last if none does."""
    return next((i for i, op in enumerate(ops) if module.saved.intersection((*op.reads, *op.writes))), len(ops))
