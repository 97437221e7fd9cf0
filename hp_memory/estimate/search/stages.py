"""Where stages begin: cuts of the layers into one chunk per rank, best first by a bound on their step.

The bound of a cut: rank r begins after the forwards of the ranks before it, runs all its micro-batches, and its last
backward is followed by those of the ranks before it. Each rank's replay is bounded by the relaxation of its programme
within the budget. The cuts are found by going through the ranks and keeping, for every number of layers given out, the
pairs (fill and drain so far, slowest rank so far) that no other pair beats in both; the best of them at the end is a
bound for every cut.

That bound is loose, so it is tightened where it matters: the programmes of the best cut's ranks are solved, their own
bounds take the place of the relaxation's, and the cuts are found anew, until the best one has no rank left to solve.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass

from hp_memory.estimate.ranks import job_of, schedule_of
from hp_memory.estimate.search.budget import Planner, RankProblem
from hp_memory.estimate.times.job import Job
from hp_memory.estimate.times.layer import LayerTime

_LONGEST = 2
"""A stage has at most so many times as many layers as the mean."""
_SECONDS = 2.0


@dataclass(frozen=True)
class Cut:
    """Layers of each rank, and what the step can't undercut."""

    layers: tuple[int, ...]
    fill: float
    slowest: float


def cuts(planner: Planner, budget: int) -> list[Cut]:
    """All cuts worth a look, the most promising first; none if nothing fits.

    The programmes of the first one's ranks are solved, unless the search's time is over before.
    """
    every, until = _Cuts(planner, budget), time.monotonic() + planner.search.seconds
    found = every.found()
    while found and every.solve(found[0]) and time.monotonic() < until:
        found = every.found()
    return found


class _Cuts:
    def __init__(self, planner: Planner, budget: int) -> None:
        self.planner, self.budget = planner, budget
        self.schedule = schedule_of(planner.pipeline)
        self.job: Job = job_of(planner.work, planner.model, planner.pipeline, planner.settings)
        kinds = planner.model.kinds
        self.decoder = sum(kind != "mtp" for kind in kinds)
        self.mtp = tuple(range(self.decoder, len(kinds)))
        self.longest = -(-_LONGEST * self.decoder // self.schedule.ranks)
        self.known: dict[tuple, tuple[float, float] | None] = {}
        self.solved: set[tuple] = set()

    def found(self) -> list[Cut]:
        ranks = self.schedule.ranks
        reached: dict[int, list[Cut]] = {0: [Cut((), 0.0, 0.0)]}
        for rank in range(ranks):
            ahead: dict[int, list[Cut]] = {}
            for begin, so_far in reached.items():
                for end in self._ends(rank, begin):
                    took = self._seconds(rank, begin, end)
                    if took is not None:
                        ahead.setdefault(end, []).extend(self._longer(cut, end - begin, *took) for cut in so_far)
            reached = {end: _front(made) for end, made in ahead.items()}
        return sorted(reached.get(self.decoder, []), key=lambda cut: cut.slowest)

    def _ends(self, rank: int, begin: int) -> Iterator[int]:
        left = self.schedule.ranks - 1 - rank
        least = self.decoder if left == 0 else begin + 1
        most = min(self.decoder - left, begin + self.longest)
        return iter(range(least, most + 1))

    def _longer(self, cut: Cut, layers: int, through: float, work: float) -> Cut:
        slowest = max(cut.slowest, cut.fill + self.schedule.microbatches * work)
        return Cut((*cut.layers, layers), cut.fill + through, slowest)

    def _seconds(self, rank: int, begin: int, end: int) -> tuple[float, float] | None:
        """Of a micro-batch's fill and drain through these layers, and of all its work there; None if it doesn't fit."""
        key, layers = self._of(rank, begin, end)
        if key not in self.known:
            problem, room = self._problem(rank, layers)
            replay = problem.programme.bound(room, _SECONDS) if room >= 0 else None
            self.known[key] = None if replay is None else self._times(rank, layers, replay)
        return self.known[key]

    def solve(self, cut: Cut) -> bool:
        """Solves the programmes of a cut's ranks that aren't yet; whether there were any."""
        more = False
        for rank, (begin, end) in enumerate(itertools.pairwise(itertools.accumulate((0, *cut.layers)))):
            key, layers = self._of(rank, begin, end)
            if key not in self.solved:
                problem, room = self._problem(rank, layers)
                choice = problem.programme.solve(room, self.planner.seconds)
                self.known[key] = None if choice is None else self._times(rank, layers, choice.bound)
                self.solved.add(key)
                more = True
        return more

    def _of(self, rank: int, begin: int, end: int) -> tuple[tuple, tuple[int, ...]]:
        last = rank == self.schedule.ranks - 1
        layers = (*range(begin, end), *(self.mtp if last else ()))
        return (rank, tuple(self.planner.model.kinds[layer] for layer in layers)), layers

    def _problem(self, rank: int, layers: tuple[int, ...]) -> tuple[RankProblem, int]:
        problem = self.planner.problem(self.schedule, rank, {rank: layers}, rank == self.schedule.ranks - 1)
        return problem, problem.room(self.budget, self.planner.settings.fragmentation)

    def _times(self, rank: int, layers: tuple[int, ...], replay: float) -> tuple[float, float]:
        took: LayerTime = sum((self.job.layer(layer, ()) for layer in layers), self.job.ends(rank))
        through = took.forward.total + took.dx.total + (0 if self.schedule.splits_backward else took.dw.total)
        return through + (0 if self.schedule.prefires else replay), took.total + replay


def _front(made: list[Cut]) -> list[Cut]:
    """Cuts that no other one matches or beats in both figures."""
    kept: list[Cut] = []
    for cut in sorted(made, key=lambda c: (c.fill, c.slowest)):
        if not kept or cut.slowest < kept[-1].slowest:
            kept.append(cut)
    return kept
