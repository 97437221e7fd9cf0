"""The cheapest ways for the layers of one rank that fit its memory: an integer programme with a bound and a time limit.

A rank's programme has one binary variable for each layer (or group of layers that choose alike) and way, and one
constraint for each distinct moment of the schedule and each layer that may run then: what is alive must fit.

*Bound.* For any prices y >= 0 of the constraints (bytes of moment r cost y_r), every plan that fits costs at least

    sum over layers of min over ways (cost + y . its bytes)  -  y . room

because the priced bytes of a plan that fits are at most y . room. A way whose priced cost is d above its layer's least
can only be part of plans that cost d more than that bound. The prices are the duals of the linear relaxation, but the
bound doesn't depend on how well that was solved.

*Plan.* HiGHS chooses among the ways with the smallest d, for a limited time; before it, every layer takes the way that
needs least and then, as often as that helps, the cheapest one there is room for. The bound of the whole is then the
larger of the one above and the smaller of HiGHS' own and of (bound above + smallest d left out). The plan is optimal
where that reaches its cost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp
from scipy.sparse import csr_array, hstack

from hp_memory.errors import HPMemoryError
from hp_memory.estimate.account.stage import Unit, demand
from hp_memory.estimate.search.options import AMOUNTS, Ways
from hp_memory.pipeline.schedule import COMPUTE, Op, Schedule

_STATE = {"F": ("held",), "R": ("replayed",), "B": ("replayed", "waiting")}
# Bytes are given to the solver in MiB, and costs as shares: its tolerances are absolute.
_MIB = 2.0**20
_COLUMNS = 40
_INFEASIBLE = 2
PROVEN = 1e-6
"""A gap below this is none: HiGHS' own tolerance."""


def proven_gap(cost: float, bound: float) -> float:
    """By how much a cost may be too high, as a share of it; 0 is a proof of optimality."""
    found = (cost - bound) / cost if cost else 0.0
    return 0.0 if found <= PROVEN else found


class SolverGaveUp(HPMemoryError):
    """The solver's time was over before it had any plan, which says nothing about whether one exists."""


@dataclass(frozen=True)
class Slot:
    """One layer of a rank, to be treated in one of some ways; an end of the model has one way and no choice.

    Attributes:
        chunk: the schedule's chunk.
        layer: global id, None for an end.
        ways: what may be chosen.
        group: slots with one group are treated alike; None for a choice of its own.
    """

    chunk: int
    layer: int | None
    ways: Ways
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
    """What is chosen for a rank's slots.

    Attributes:
        picks: the number of each slot's way, in their order.
        cost: of one micro-batch's replay.
        bound: no choice that fits costs less.
    """

    picks: tuple[int, ...]
    cost: float
    bound: float

    @property
    def gap(self) -> float:
        """By how much the cost may be too high, as a share of it; 0 is a proof of optimality."""
        return proven_gap(self.cost, self.bound)


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


class Programme:
    """One rank's choice, for any budget.

    Attributes:
        counts: (moments, slots, amounts): how often each amount of each slot is alive in each moment.
        known: what was found for a room before.
    """

    def __init__(self, slots: Sequence[Slot], where: Sequence[Situation]) -> None:
        self.slots = tuple(slots)
        rows = [self._row(need) for situation in where for need in needs(slots, situation)]
        self.counts = np.unique(np.array(rows), axis=0)
        names = [slot.group or f"{i}" for i, slot in enumerate(slots)]
        self.groups = [[i for i, n in enumerate(names) if n == name] for name in dict.fromkeys(names)]
        self.tables = [np.stack([slot.ways.amounts[name] for name in AMOUNTS]) / _MIB for slot in slots]
        self.costs = [len(members) * slots[members[0]].ways.cost for members in self.groups]
        self.known: dict[int, Choice] = {}
        self.bytes = [sum(self.counts[:, i] for i in m) @ self.tables[m[0]] for m in self.groups]

    def _row(self, need: Sequence[tuple[int, str, int]]) -> np.ndarray:
        row = np.zeros((len(self.slots), len(AMOUNTS)), np.int64)
        for i, amount, n in need:
            row[i, AMOUNTS.index(amount)] += n
        return row

    def peak(self, picks: Sequence[int]) -> int:
        """Bytes of the moment that needs most."""
        chosen = np.stack(
            [[s.ways.amounts[name][p] for name in AMOUNTS] for s, p in zip(self.slots, picks, strict=True)]
        )
        return int((self.counts * chosen[None]).sum((1, 2)).max())

    def solve(self, room: int, seconds: float, gap: float = 0.0) -> Choice | None:
        """The cheapest ways whose activations never take more than ``room`` bytes; None if there are none.

        Args:
            seconds: HiGHS may take for each of its calls, of which there are a few.
            gap: how far from the bound the answer may be, as a share of its cost.

        Raises:
            SolverGaveUp: if the time was over before there was any plan.
        """
        if room in self.known:
            return self.known[room]
        until, columns = time.monotonic() + seconds, _COLUMNS
        priced = self._prices(room / _MIB, until)
        if priced is None:
            return None
        bound, above = priced
        found = self._greedy(room, bound)
        while found is None or found.gap > max(gap, PROVEN):
            picked = [np.sort(np.argsort(d, kind="stable")[:columns]) for d in above]
            left_out = min((np.sort(d)[columns] for d in above if len(d) > columns), default=np.inf)
            result = self._integer(picked, room / _MIB, max(until - time.monotonic(), 0.1), gap)
            found = self._better(found, result, picked, bound, bound + left_out)
            if np.isinf(left_out) or time.monotonic() > until:
                if found is None and not (np.isinf(left_out) and result.status == _INFEASIBLE):
                    raise SolverGaveUp(f"no plan within {seconds:.0f} s: {result.message}")
                break
            columns *= 4
        if found is not None and gap == 0:
            self.known[room] = found
        return found

    def _greedy(self, room: int, bound: float) -> Choice | None:
        """A plan without the solver, if it comes upon one, from what needs least in all moments and in each."""
        starts = [[int(table.sum(0).argmin()) for table in self.bytes]]
        starts += [[int(table[row].argmin()) for table in self.bytes] for row in range(len(self.counts))]
        plans = (self._of_slots(self._improved(start, room / _MIB)) for start in starts)
        fits = [(self.cost(picks), picks) for picks in plans if self.peak(picks) <= room]
        if not fits:
            return None
        cost, picks = min(fits)
        return Choice(picks, cost, min(bound, cost))

    def _improved(self, picks: list[int], room: float) -> list[int]:
        """Every group takes the cheapest way there is room for beside the others, until none finds another."""
        total = sum(table[:, p] for table, p in zip(self.bytes, picks, strict=True))
        changed = True
        while changed:
            changed = False
            for i, (cost, table) in enumerate(zip(self.costs, self.bytes, strict=True)):
                others = total - table[:, picks[i]]
                fits = np.flatnonzero((others[:, None] + table <= room).all(0))
                if len(fits) and cost[fits].min() < cost[picks[i]]:
                    picks[i], changed = int(fits[cost[fits].argmin()]), True
                    total = others + table[:, picks[i]]
        return picks

    def _of_slots(self, picks: Sequence[int]) -> tuple[int, ...]:
        """The way of each slot from that of each group."""
        found = {i: pick for members, pick in zip(self.groups, picks, strict=True) for i in members}
        return tuple(found[i] for i in range(len(self.slots)))

    def _better(
        self, before: Choice | None, result: OptimizeResult, picked: list[np.ndarray], bound: float, left_out: float
    ) -> Choice | None:
        """The better plan of the two, under the better bound."""
        least = getattr(result, "mip_dual_bound", None)
        # Nothing fits among the columns of an infeasible programme.
        inner = np.inf if result.status == _INFEASIBLE else -np.inf if least is None else least * self._scale
        bound = max(bound, min(inner, left_out), before.bound if before else -np.inf)
        if result.x is None:
            return Choice(before.picks, before.cost, bound) if before else None
        groups, at = [], 0
        for columns in picked:
            groups.append(int(columns[result.x[at : at + len(columns)].argmax()]))
            at += len(columns)
        picks = self._of_slots(groups)
        cost = self.cost(picks)
        if before and before.cost <= cost:
            return Choice(before.picks, before.cost, min(bound, before.cost))
        return Choice(picks, cost, min(bound, cost))

    def bound(self, room: int, seconds: float) -> float | None:
        """What no choice that fits undercuts; None if nothing fits."""
        priced = self._prices(room / _MIB, time.monotonic() + seconds)
        return None if priced is None else max(priced[0], 0.0)

    def cost(self, picks: Sequence[int]) -> float:
        """Of one micro-batch's replay."""
        return float(sum(slot.ways.cost[p] for slot, p in zip(self.slots, picks, strict=True)))

    @property
    def _scale(self) -> float:
        return max(float(max(cost.max() for cost in self.costs)), 1e-30) / 1e3

    def _prices(self, room: float, until: float) -> tuple[float, list[np.ndarray]] | None:
        """The best bound found, and how far each way is above the least of its layer; None if nothing can fit.

        The relaxation is solved over few ways first; ways that its prices make attractive join it. Without prices,
        which is where this begins, the bound is the cheapest way of each layer.
        """
        columns = [self._first(cost, table) for cost, table in zip(self.costs, self.bytes, strict=True)]
        best = self._bound(np.zeros(len(self.counts)), room)
        while time.monotonic() < until:
            status, duals = self._relaxed(columns, room, max(until - time.monotonic(), 0.1))
            if duals is None:
                complete = all(len(k) == len(cost) for k, cost in zip(columns, self.costs, strict=True))
                if complete or status != _INFEASIBLE:
                    return None if status == _INFEASIBLE else best
                columns = [np.arange(len(cost)) for cost in self.costs]
                continue
            found = self._bound(duals, room)
            best = max(best, found, key=lambda pair: pair[0])
            more = [np.union1d(k, np.argsort(d, kind="stable")[:3]) for k, d in zip(columns, found[1], strict=True)]
            if all(len(a) == len(b) for a, b in zip(more, columns, strict=True)):
                break
            columns = more
        return best

    def _bound(self, prices: np.ndarray, room: float) -> tuple[float, list[np.ndarray]]:
        """What no plan that fits undercuts, and how far each way is above the least of its layer."""
        priced = [cost + prices @ table for cost, table in zip(self.costs, self.bytes, strict=True)]
        return sum(float(p.min()) for p in priced) - float(prices.sum()) * room, [p - p.min() for p in priced]

    @staticmethod
    def _first(cost: np.ndarray, table: np.ndarray) -> np.ndarray:
        """Ways on the front of cost and bytes in any one moment, at most a few dozen."""
        worst = table.max(0)
        least = np.minimum.accumulate(worst)
        front = np.flatnonzero(np.append(True, worst[1:] < least[:-1]))
        return np.union1d(front, [int(cost.argmin()), *table.argmin(1)[:_COLUMNS]])

    def _relaxed(self, columns: list[np.ndarray], room: float, seconds: float) -> tuple[int, np.ndarray | None]:
        """HiGHS' status, and the prices of the moments in the linear relaxation over these ways if it has any."""
        cost = np.concatenate([c[k] for c, k in zip(self.costs, columns, strict=True)]) / self._scale
        rows = np.concatenate([b[:, k] for b, k in zip(self.bytes, columns, strict=True)], 1)
        result = linprog(
            cost,
            A_ub=rows,
            b_ub=np.full(len(rows), room),
            A_eq=_one_each([len(k) for k in columns]),
            b_eq=np.ones(len(columns)),
            method="highs",
            options={"time_limit": seconds},
        )
        if result.status != 0:
            return result.status, None
        return result.status, np.maximum(-result.ineqlin.marginals, 0.0) * self._scale

    def _integer(self, columns: list[np.ndarray], room: float, seconds: float, gap: float) -> OptimizeResult:
        cost = np.concatenate([c[k] for c, k in zip(self.costs, columns, strict=True)]) / self._scale
        rows = np.concatenate([b[:, k] for b, k in zip(self.bytes, columns, strict=True)], 1)
        return milp(
            cost,
            integrality=np.ones(len(cost)),
            bounds=Bounds(0, 1),
            constraints=[
                LinearConstraint(csr_array(rows), -np.inf, room),
                LinearConstraint(_one_each([len(k) for k in columns]), 1, 1),
            ],
            options={"mip_rel_gap": gap, "time_limit": seconds},
        )

    def least(self, seconds: float) -> int:
        """The least activation memory found for any choice: below this budget nothing is known to fit."""
        rows = np.concatenate(self.bytes, 1)
        # One more variable, the budget: every moment stays below it, and it is as small as can be.
        matrix = hstack((csr_array(rows), csr_array(-np.ones((len(rows), 1)))))
        pick = hstack((_one_each([len(c) for c in self.costs]), csr_array((len(self.groups), 1))))
        objective = np.append(np.zeros(rows.shape[1]), 1.0)
        result = milp(
            objective,
            integrality=np.append(np.ones(rows.shape[1]), 0),
            bounds=Bounds(0, np.append(np.ones(rows.shape[1]), np.inf)),
            constraints=[LinearConstraint(matrix, -np.inf, 0), LinearConstraint(pick, 1, 1)],
            options={"mip_rel_gap": 0.0, "time_limit": seconds},
        )
        if result.x is None:
            raise SolverGaveUp(f"no plan within {seconds:.0f} s: {result.message}")
        return int(np.ceil(result.x[-1] * _MIB))


def _one_each(lengths: Sequence[int]) -> csr_array:
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return csr_array((np.ones(len(rows)), (rows, np.arange(len(rows)))))


def fixed(unit: Unit) -> Ways:
    """The single way of what leaves no choice."""
    amounts: Mapping[str, np.ndarray] = {name: np.array([getattr(unit, name)], np.int64) for name in AMOUNTS}
    return Ways(((),), np.zeros(1), amounts)
