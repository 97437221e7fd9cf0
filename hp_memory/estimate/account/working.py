"""The working sets of a layer under many choices of replayed regions at once: ``liveness`` for a whole search.

The rules are those of ``liveness.forward_peak`` and ``backward_peak``, and the figures are equal. Here time runs over
the operations of the trace. What depends on the choice is an array over the choices: which storages are alive, and the
bytes of all of them together, from one operation to the next.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hp_memory.estimate.account import liveness
from hp_memory.estimate.account.held import HeldOf, held_of
from hp_memory.estimate.account.replay import Choices
from hp_memory.estimate.tracing.record import LayerTrace, Op


@dataclass(frozen=True)
class WorkingSets:
    """Bytes by choice: held after the forward, there after a replay, and the peaks of forward and of backward."""

    held: np.ndarray
    replayed: np.ndarray
    forward: np.ndarray
    backward: np.ndarray


def working_sets(trace: LayerTrace, choices: Choices) -> WorkingSets:
    """All four amounts for every choice."""
    found = held_of(trace, choices)
    everything = liveness.saved_storages(trace)
    replayed = np.full(len(choices), trace.nbytes(everything), np.int64)
    for number, when in found.kept.items():
        if number not in everything:
            replayed += when * trace.storages[number].nbytes
    backward = np.maximum(_replay(trace, choices, found), _backward(trace, choices, found))
    return WorkingSets(found.nbytes, replayed, _forward(trace, found, len(choices)), backward)


def _forward(trace: LayerTrace, found: HeldOf, count: int) -> np.ndarray:
    """What each operation of the forward needs, beside what is held already: it differs by what stays to the end."""
    ops, first, last = liveness.of_phase(trace, "forward")
    end = len(ops) - 1
    stays = set(trace.inputs) | set(trace.outputs)
    always = np.zeros(len(ops) + 1, np.int64)
    until: dict[int, list[int]] = {}
    for number in {n for n in last if trace.activation(n)} | set(trace.inputs):
        start = 0 if number in trace.inputs else first.get(number, 0)
        stop = end if number in stays else min(last[number], end)
        always[start] += trace.storages[number].nbytes
        always[stop + 1] -= trace.storages[number].nbytes
        if stop < end and number in found.kept:
            until.setdefault(stop + 1, []).append(number)
    alive = np.cumsum(always[:-1])
    more, peak = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for at in range(len(ops)):
        for number in until.get(at, ()):
            more += found.kept[number] * trace.storages[number].nbytes
        np.maximum(peak, more + alive[at], out=peak)
    return peak


def _backward(trace: LayerTrace, choices: Choices, found: HeldOf) -> np.ndarray:
    """Backward's own operations: all that was saved until its last use, and what is held until the end."""
    ops, first, last = liveness.of_phase(trace, "backward")
    end, saved = len(ops) - 1, liveness.saved_storages(trace)
    always = np.zeros(len(ops) + 1, np.int64)
    until: dict[int, list[tuple[int, np.ndarray]]] = {}
    for number in last:
        if trace.activation(number):
            always[0 if number in saved else first[number]] += trace.storages[number].nbytes
            always[last[number] + 1] -= trace.storages[number].nbytes
    for number, kept in found.kept.items():
        # Held to the end for another reason than that backward reads it.
        when = kept & ~found.saved[number] if number in last else kept
        if when.any():
            until.setdefault(last[number] + 1 if number in last else 0, []).append((number, when))
    alive = np.cumsum(always[:-1])
    more, peak = np.zeros(len(choices), np.int64), np.zeros(len(choices), np.int64)
    for at in range(end + 1):
        for number, when in until.get(at, ()):
            more += when * trace.storages[number].nbytes
        np.maximum(peak, more + alive[at], out=peak)
    return peak


class _Alive:
    """Which storages are alive during a replay, by choice, and the bytes of all."""

    def __init__(self, trace: LayerTrace, choices: Choices, found: HeldOf) -> None:
        self.trace, self.choices = trace, choices
        self.never = np.zeros(len(choices), bool)
        self.alive = {n: when & choices.boundary for n, when in found.kept.items()}
        self.kept = dict(self.alive)
        self.nbytes = np.zeros(len(choices), np.int64)
        for number, when in self.alive.items():
            self.nbytes += when * trace.storages[number].nbytes

    def begin(self, number: int, when: np.ndarray) -> None:
        before = self.alive.get(number, self.never)
        self.nbytes += (when & ~before) * self.trace.storages[number].nbytes
        self.alive[number] = before | when

    def end(self, number: int, unless: np.ndarray) -> None:
        before = self.alive.get(number, self.never)
        stay = before & (unless | self.kept.get(number, self.never))
        self.nbytes -= (before & ~stay) * self.trace.storages[number].nbytes
        self.alive[number] = stay


def _replay(trace: LayerTrace, choices: Choices, found: HeldOf) -> np.ndarray:
    """The operations that run again: what is held, what they make, and what they made for backward."""
    ops = trace.of_phase("forward")
    _, _, last = liveness.of_phase(trace, "backward")
    saved = liveness.saved_storages(trace)
    runs = [choices.again(op.region) for op in ops]
    later = _later_uses(trace, ops, runs, len(choices))
    alive, peak = _Alive(trace, choices, found), np.zeros(len(choices), np.int64)
    referred: dict[int, list[int]] = {}
    for number, at in trace.released.items():
        if at < len(ops):
            referred.setdefault(at, []).append(number)
    for at, op in enumerate(ops):
        used = [n for n in dict.fromkeys((*op.writes, *op.reads)) if trace.activation(n)]
        for number in used:
            alive.begin(number, runs[at])
        np.maximum(peak, np.where(runs[at], alive.nbytes, 0), out=peak)
        for number in dict.fromkeys((*used, *referred.get(at, ()))):
            if number in alive.alive and not (number in saved and number in last):
                alive.end(number, later[at].get(number, alive.never))
    return peak


def _later_uses(trace: LayerTrace, ops: list[Op], runs: list[np.ndarray], count: int) -> list[dict[int, np.ndarray]]:
    """For each operation and each storage that may end there: in which choices something uses it afterwards."""
    ahead: dict[int, np.ndarray] = {}
    found: list[dict[int, np.ndarray]] = []
    always = np.ones(count, bool)
    ends: dict[int, list[int]] = {}
    for number, at in trace.released.items():
        ends.setdefault(min(at, len(ops) - 1), []).append(number)
    for at in range(len(ops) - 1, -1, -1):
        used = tuple(dict.fromkeys((*ops[at].writes, *ops[at].reads, *ends.get(at, ()))))
        found.append({n: ahead[n] for n in used if n in ahead})
        for number in used:
            ahead[number] = ahead[number] | runs[at] if number in ahead else runs[at]
        for number in ends.get(at, ()):
            ahead[number] = always
    found.reverse()
    return found


def regions_of(masks: Iterable[int], regions: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The replayed regions that each number means."""
    return [tuple(r for i, r in enumerate(regions) if mask >> i & 1) for mask in masks]
