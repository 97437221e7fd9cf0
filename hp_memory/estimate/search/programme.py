"""The cheapest plan that fits: for each rank an integer programme, solved to proven optimality.

Ranks don't share memory, and replays cost what they cost wherever they are; so the cheapest plan is the cheapest one
of every rank. A rank's programme has one binary variable for each layer and option, one option per layer, and one
constraint for each distinct moment of the schedule and each layer that may run then: what is alive must fit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from hp_memory.errors import HPMemoryError
from hp_memory.estimate.account.stage import Unit, demand
from hp_memory.estimate.search.options import Option
from hp_memory.pipeline.schedule import COMPUTE, Op, Schedule

AMOUNTS = ("held", "replayed", "waiting", "working_forward", "working_backward", "gradients")
_STATE = {"F": ("held",), "R": ("replayed",), "B": ("replayed", "waiting")}
# Bytes are given to the solver in MiB: its tolerances are absolute.
_MIB = 2.0**20


class SolverGaveUp(HPMemoryError):
    """The solver ended without a proof, which says nothing about whether a plan exists."""


@dataclass(frozen=True)
class Slot:
    """One layer of a rank, to be given an option; an end of the model has one option and no choice.

    Attributes:
        chunk: the schedule's chunk.
        layer: global id, None for an end.
        options: what may be chosen.
        group: slots with one group get the same option; None for a choice of its own.
    """

    chunk: int
    layer: int | None
    options: Sequence[Option]
    group: str | None = None


@dataclass(frozen=True)
class Situation:
    """What is alive beside the micro-batch that runs ``op`` on ``chunk``: micro-batches by chunk and state."""

    op: Op
    chunk: int
    prefired: bool
    others: tuple[tuple[int, str, int], ...]


@dataclass(frozen=True)
class Choice:
    """The options chosen for a rank's slots, in their order, and what one micro-batch's replay costs."""

    options: tuple[Option, ...]
    cost: float


def situations(schedule: Schedule, rank: int) -> list[Situation]:
    """The distinct moments of a rank, without those that another one covers."""
    alive: dict[tuple[int, int], str] = {}
    prefired: set[tuple[int, int]] = set()
    found: dict[Situation, None] = {}
    for step in schedule.only(COMPUTE).rows[rank]:
        key = (step.chunk, step.micro)
        counts: dict[tuple[int, str], int] = {}
        for other, state in alive.items():
            if other != key:
                counts[other[0], state] = counts.get((other[0], state), 0) + 1
        others = tuple(sorted((chunk, state, n) for (chunk, state), n in counts.items()))
        found[Situation(step.op, step.chunk, key in prefired, others)] = None
        if step.op in ("W", "BW"):
            alive.pop(key, None)
        else:
            alive[key] = step.op
        if step.op == "R":
            prefired.add(key)
    return [s for s in found if not any(_covers(t, s) for t in found if t != s)]


def _covers(more: Situation, less: Situation) -> bool:
    same = (more.op, more.chunk, more.prefired) == (less.op, less.chunk, less.prefired)
    counts = {(chunk, state): n for chunk, state, n in more.others}
    return same and all(counts.get((chunk, state), 0) >= n for chunk, state, n in less.others)


def needs(slots: Sequence[Slot], situation: Situation) -> Iterator[list[tuple[int, str, int]]]:
    """For each slot that may run in a situation: triples (slot, amount, how often) that are alive then."""
    own = [i for i, slot in enumerate(slots) if slot.chunk == situation.chunk]
    beside = [
        (i, amount, n)
        for chunk, state, n in situation.others
        for i, slot in enumerate(slots)
        if slot.chunk == chunk
        for amount in _STATE[state]
    ]
    for position in range(len(own)):
        running = demand(situation.op, situation.prefired, len(own), position)
        yield beside + [(own[j], amount, 1) for j, amount in running]


def peak_of(slots: Sequence[Slot], units: Sequence[Unit], where: Sequence[Situation]) -> int:
    """The most that is alive with one unit per slot: what a brute-force search checks."""
    return max(
        sum(n * getattr(units[i], amount) for i, amount, n in need)
        for situation in where
        for need in needs(slots, situation)
    )


def solve(slots: Sequence[Slot], where: Sequence[Situation], budget: int, gap: float = 0.0) -> Choice | None:
    """The cheapest options whose activations never take more than ``budget`` bytes; None if there are none.

    Args:
        slots: the rank's layers and what may be chosen for each.
        where: ``situations`` of the rank.
        budget: bytes for activations and gradients.
        gap: how far from the optimum the answer may be, as a share of its cost.

    Raises:
        SolverGaveUp: if HiGHS ends without a proof of optimality or infeasibility.
    """
    starts = np.cumsum([0, *(len(slot.options) for slot in slots)])
    amounts = _amounts(slots)
    rows = [row for situation in where for row in _rows(slots, situation, amounts, starts)]
    cost = np.concatenate([[o.cost for o in slot.options] for slot in slots])
    constraints = [LinearConstraint(csr_array(np.unique(np.array(rows), axis=0)), -np.inf, budget / _MIB)]
    constraints.append(_one_each(starts))
    constraints += _together(slots, starts)
    scale = cost.max() or 1.0
    result = milp(
        cost / scale,
        integrality=np.ones(len(cost)),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"mip_rel_gap": gap},
    )
    if result.status == 2:
        return None
    if result.status != 0:
        raise SolverGaveUp(f"HiGHS: {result.message}")
    picked = [int(result.x[a:b].argmax()) for a, b in itertools.pairwise(starts)]
    chosen = tuple(slot.options[i] for slot, i in zip(slots, picked, strict=True))
    return Choice(chosen, sum(o.cost for o in chosen))


def _rows(
    slots: Sequence[Slot], situation: Situation, amounts: Mapping[str, list[np.ndarray]], starts: np.ndarray
) -> Iterator[np.ndarray]:
    for need in needs(slots, situation):
        row = np.zeros(starts[-1])
        for i, amount, n in need:
            row[starts[i] : starts[i + 1]] += n * amounts[amount][i]
        yield row


def _amounts(slots: Sequence[Slot]) -> dict[str, list[np.ndarray]]:
    """Each amount of each option of each slot, in MiB."""
    return {
        amount: [np.array([getattr(o.unit, amount) for o in slot.options]) / _MIB for slot in slots]
        for amount in AMOUNTS
    }


def _one_each(starts: np.ndarray) -> LinearConstraint:
    return LinearConstraint(csr_array(_one_each_matrix(starts)), 1, 1)


def _one_each_matrix(starts: np.ndarray) -> np.ndarray:
    matrix = np.zeros((len(starts) - 1, starts[-1]))
    for i, (a, b) in enumerate(itertools.pairwise(starts)):
        matrix[i, a:b] = 1
    return matrix


def _together(slots: Sequence[Slot], starts: np.ndarray) -> list[LinearConstraint]:
    """Slots of one group choose alike."""
    first: dict[str, int] = {}
    rows = []
    for i, slot in enumerate(slots):
        if slot.group is None:
            continue
        leader = first.setdefault(slot.group, i)
        for k in range(len(slot.options)) if leader != i else ():
            row = np.zeros(starts[-1])
            row[starts[leader] + k], row[starts[i] + k] = 1, -1
            rows.append(row)
    return [LinearConstraint(csr_array(np.array(rows)), 0, 0)] if rows else []


def least(slots: Sequence[Slot], where: Sequence[Situation]) -> int:
    """The least activation memory that any choice needs: below this budget nothing fits."""
    starts = np.cumsum([0, *(len(slot.options) for slot in slots)])
    rows = np.array([row for situation in where for row in _rows(slots, situation, _amounts(slots), starts)])
    # One more variable, the budget: every moment stays below it, and it is as small as can be.
    matrix = np.hstack((rows, -np.ones((len(rows), 1))))
    pick = np.hstack((_one_each_matrix(starts), np.zeros((len(slots), 1))))
    objective = np.zeros(starts[-1] + 1)
    objective[-1] = 1
    result = milp(
        objective,
        integrality=np.append(np.ones(starts[-1]), 0),
        bounds=Bounds(0, np.append(np.ones(starts[-1]), np.inf)),
        constraints=[LinearConstraint(csr_array(matrix), -np.inf, 0), LinearConstraint(csr_array(pick), 1, 1)],
        options={"mip_rel_gap": 0.0},
    )
    if result.status != 0:
        raise SolverGaveUp(f"HiGHS: {result.message}")
    return int(np.ceil(result.x[-1] * _MIB))
