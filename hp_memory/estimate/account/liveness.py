"""How much of a layer is alive at each of its operations.

A storage lives from its first write to its last use in the sequence of a trace, or as long as a Python variable refers
to it: the locals of a function outlast what needs them. Gradients of parameters are the trainer's once they are made.

The sequence of a layout is made from a trace without a plan: the forward; then, in backward, the replayed operations
(those of replayed regions and the bare ones) and the backward operations. A storage that a replay makes again has the
number it had in the forward.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from hp_memory.estimate.account.held import held_by, unhooked_storages
from hp_memory.estimate.tracing.record import BARE, LayerTrace, Op, Phase
from hp_memory.layout import Layout


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


Lives = dict[int, tuple[int, int]]
"""For each storage, the first and the last operation during which it is alive."""

GRADIENTS = "gradients"
_NOTHING = Peak(0, "forward", BARE, "", {})


def forward_peak(trace: LayerTrace, replayed: Collection[str], keep_outputs: bool = False) -> Peak:
    """The working set of a layer's forward: what it holds afterwards, and what its operations need on the way."""
    return peak(trace, *_forward_lives(trace, replayed, keep_outputs))


def backward_peak(trace: LayerTrace, replayed: Collection[str], keep_outputs: bool = False) -> Peak:
    """The working set of a layer's replay and backward, from what it holds to nothing."""
    return peak(trace, *_backward_lives(trace, replayed, keep_outputs))


def curve(trace: LayerTrace, layout: Layout, kept: Collection[int] = ()) -> tuple[list[Op], np.ndarray]:
    """The operations of forward, replay and backward in order, and the bytes alive during each.

    Args:
        kept: storages that somebody outside the layer keeps once they are there.
    """
    choice = layout.replays(trace.regions), layout.keep_outputs
    all_ops: list[Op] = []
    alive = [np.zeros(0, np.int64)]
    for half in (_forward_lives, _backward_lives):
        ops, lives = half(trace, *choice)
        made = {number for op in all_ops for number in op.writes} | set(trace.inputs)
        starts = {n: 0 if n in made else lives[n][0] for n in kept if n in made or n in lives}
        alive.append(_alive(trace, len(ops), lives | {n: (start, len(ops) - 1) for n, start in starts.items()}))
        all_ops += ops
    return all_ops, np.concatenate(alive)


def _forward_lives(trace: LayerTrace, replayed: Collection[str], keep_outputs: bool) -> tuple[list[Op], Lives]:
    return forward_lives(trace, {entry.storage for entry in held_by(trace, replayed, keep_outputs)})


def forward_lives(trace: LayerTrace, held: Collection[int]) -> tuple[list[Op], Lives]:
    """The operations of a forward after which ``held`` and the outputs stay, and when each storage is alive."""
    stays = set(held) | set(trace.outputs)
    ops, first, last = of_phase(trace, "forward")
    end = len(ops) - 1
    lives = {n: (first.get(n, 0), end if n in stays else min(last[n], end)) for n in last if trace.activation(n)}
    for number in trace.inputs:
        lives[number] = (0, end)
    return ops, lives


def _backward_lives(trace: LayerTrace, replayed: Collection[str], keep_outputs: bool) -> tuple[list[Op], Lives]:
    kept = held_by(trace, replayed, keep_outputs)
    again = [op for op in trace.of_phase("forward") if op.region == BARE or op.region in replayed] if replayed else []
    shift = len(again)
    ops, first, last = of_phase(trace, "backward")
    replay_first, replay_last = lifetimes(trace, again)
    saved = saved_storages(trace)
    lives: Lives = {}
    for number, start in first.items():
        if trace.activation(number) and number not in saved:
            lives[number] = (start + shift, last[number] + shift)
    for number, start in replay_first.items():
        if trace.activation(number):
            # What a replay makes stays for backward only if backward's nodes saved it.
            needed = number in saved and number in last
            lives[number] = (start, last[number] + shift if needed else replay_last[number])
    for entry in kept:
        number, end = entry.storage, shift + len(ops) - 1
        # Nothing says when an output or a block's input goes before the end, nor what backward never reads.
        until = last[number] + shift if entry.reason == "saved for backward" and number in last else end
        lives[number] = (0, until)
    return [*again, *ops], lives


def saved_storages(trace: LayerTrace) -> set[int]:
    """What backward keeps of the forward, by whatever hook."""
    if "saved" not in trace.memo:
        saved = {item.storage for item in trace.saved if trace.activation(item.storage)}
        trace.memo["saved"] = saved | unhooked_storages(trace)
    return trace.memo["saved"]


def of_phase(trace: LayerTrace, phase: Phase) -> tuple[list[Op], dict[int, int], dict[int, int]]:
    """The operations of a phase, and the first write and the last use of every storage in it."""
    key = f"lifetimes of {phase}"
    if key not in trace.memo:
        ops = trace.of_phase(phase)
        trace.memo[key] = (ops, *lifetimes(trace, ops))
    return trace.memo[key]


def _positions(trace: LayerTrace, ops: Sequence[Op]) -> np.ndarray:
    """For each operation of the trace, the last of ``ops`` (a part of it, in order) that isn't later; else -1."""
    chosen = {id(op) for op in ops}
    return np.cumsum([id(op) in chosen for op in trace.ops]) - 1


def lifetimes(trace: LayerTrace, ops: Sequence[Op]) -> tuple[dict[int, int], dict[int, int]]:
    """For each storage, the operation that first writes it, and the last that touches it or finds it referred to."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for i, op in enumerate(ops):
        for number in op.writes:
            first.setdefault(number, i)
            last[number] = i
        for number in op.reads:
            # What nothing wrote and isn't from before is a copy that the backend makes for this operation.
            first.setdefault(number, i)
            last[number] = i
    positions = _positions(trace, ops)
    saved = saved_storages(trace)
    for number, at in trace.released.items():
        if number in saved or (number in last and number not in trace.weight_gradients):
            last[number] = max(last.get(number, 0), int(positions[at]))
    return first, last


def _alive(trace: LayerTrace, count: int, lives: Lives) -> np.ndarray:
    """Bytes alive during each of ``count`` operations."""
    change = np.zeros(count + 1, np.int64)
    for number, (start, end) in lives.items():
        change[start] += trace.storages[number].nbytes
        change[end + 1] -= trace.storages[number].nbytes
    return np.cumsum(change[:-1])


def peak(trace: LayerTrace, ops: Sequence[Op], lives: Lives) -> Peak:
    """The operation during which most is alive."""
    if not ops:
        return _NOTHING
    alive = _alive(trace, len(ops), lives)
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
    everything = saved_storages(trace) | {entry.storage for entry in held_by(trace, replayed, keep_outputs)}
    return trace.nbytes(everything)


def gradients_for_dw(trace: LayerTrace) -> int:
    """Bytes of the gradients that dw still needs after dx: one as large as each output of a product with weights."""
    found: set[int] = set()
    for op in trace.of_phase("forward"):
        if op.flops and any(trace.storages[n].kind == "parameter" for n in op.reads):
            found.update(op.writes)
    return trace.nbytes(found)
