"""How much of a layer is alive at each of its operations: last use in the sequence of a trace gives the lifetime.

The sequence of a layout is made from a trace without a plan: the forward; then, in backward, the replayed operations
(those of replayed regions and the bare ones) and the backward operations. A storage that a replay makes again has the
number it had in the forward.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hp_memory.estimate.held import HeldStorage, held_by, unhooked_storages
from hp_memory.estimate.record import BARE, LayerTrace, Op, Phase


@dataclass(frozen=True)
class Peak:
    """The most that is alive in a phase of one layer, and where.

    Attributes:
        nbytes: of activations and gradients of this layer, the block's input included.
        phase, region, op: the operation at which it happens.
        by_region: bytes alive then, by the region that made them; gradients under ``gradients``.
    """

    nbytes: int
    phase: Phase
    region: str
    op: str
    by_region: dict[str, int]


GRADIENTS = "gradients"
_NOTHING = Peak(0, "forward", BARE, "", {})


def forward_peak(trace: LayerTrace, replayed: Collection[str], keep_outputs: bool = False) -> Peak:
    """The working set of a layer's forward: what it holds afterwards, and what its operations need on the way."""
    stays = {entry.storage for entry in held_by(trace, replayed, keep_outputs)} | set(trace.outputs)
    ops, first, last = _of_phase(trace, "forward")
    end = len(ops) - 1
    lives = {n: (first.get(n, 0), end if n in stays else last[n]) for n in last if trace.activation(n)}
    for number in trace.inputs:
        lives[number] = (0, end)
    return _peak(trace, ops, lives)


def backward_peak(trace: LayerTrace, replayed: Collection[str], keep_outputs: bool = False) -> Peak:
    """The working set of a layer's replay and backward, from what it holds to nothing."""
    kept = held_by(trace, replayed, keep_outputs)
    again = [op for op in trace.of_phase("forward") if op.region == BARE or op.region in replayed] if replayed else []
    backward, _, _ = _of_phase(trace, "backward")
    return _peak(trace, [*again, *backward], _backward_lives(trace, kept, again))


def _backward_lives(trace: LayerTrace, kept: Sequence[HeldStorage], again: Sequence[Op]) -> dict[int, tuple[int, int]]:
    shift = len(again)
    ops, first, last = _of_phase(trace, "backward")
    replay_first, replay_last = _lifetimes(again)
    saved = _saved(trace)
    lives: dict[int, tuple[int, int]] = {}
    for number, start in first.items():
        if trace.activation(number) and number not in saved:
            lives[number] = (start + shift, last[number] + shift)
    for number, start in replay_first.items():
        if trace.activation(number):
            # What a replay makes stays for backward only if backward's nodes saved it.
            needed = number in saved and number in last
            lives[number] = (start, last[number] + shift if needed else replay_last[number])
    for entry in kept:
        number = entry.storage
        until = last[number] + shift if number in last else replay_last.get(number, 0)
        lives[number] = (0, until if entry.reason == "saved for backward" else shift + len(ops) - 1)
    return lives


def _saved(trace: LayerTrace) -> set[int]:
    if "saved" not in trace.memo:
        saved = {item.storage for item in trace.saved if trace.activation(item.storage)}
        trace.memo["saved"] = saved | unhooked_storages(trace)
    return trace.memo["saved"]


def _of_phase(trace: LayerTrace, phase: Phase) -> tuple[list[Op], dict[int, int], dict[int, int]]:
    """The operations of a phase, and the first write and the last use of every storage in it."""
    key = f"lifetimes of {phase}"
    if key not in trace.memo:
        ops = trace.of_phase(phase)
        trace.memo[key] = (ops, *_lifetimes(ops))
    return trace.memo[key]


def _lifetimes(ops: Sequence[Op]) -> tuple[dict[int, int], dict[int, int]]:
    """For each storage, the operation that first writes it and the last that touches it."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, op in enumerate(ops):
        for number in op.writes:
            first.setdefault(number, i)
            last[number] = i
        for number in op.reads:
            last[number] = i
    return first, last


def _peak(trace: LayerTrace, ops: Sequence[Op], lives: dict[int, tuple[int, int]]) -> Peak:
    if not ops:
        return _NOTHING
    change = np.zeros(len(ops) + 1, np.int64)
    for number, (start, end) in lives.items():
        change[start] += trace.storages[number].nbytes
        change[end + 1] -= trace.storages[number].nbytes
    alive = np.cumsum(change[:-1])
    at = int(alive.argmax())
    by_region: dict[str, int] = {}
    for number, (start, end) in lives.items():
        if start <= at <= end:
            storage = trace.storages[number]
            group = GRADIENTS if storage.phase == "backward" else storage.region
            by_region[group] = by_region.get(group, 0) + storage.nbytes
    return Peak(int(alive[at]), ops[at].phase, ops[at].region, ops[at].name, by_region)


def saved_bytes(trace: LayerTrace, replayed: Collection[str], keep_outputs: bool = False) -> int:
    """What a layer keeps once it has been replayed and before its backward: all that was saved, and what is held."""
    everything = _saved(trace) | {entry.storage for entry in held_by(trace, replayed, keep_outputs)}
    return trace.nbytes(everything)


def gradients_for_dw(trace: LayerTrace) -> int:
    """Bytes of the gradients that dw still needs after dx: one as large as each output of a product with weights."""
    found = set()
    for op in trace.of_phase("forward"):
        if op.flops and any(trace.storages[n].kind == "parameter" for n in op.reads):
            found.update(op.writes)
    return trace.nbytes(found)
