"""When each step of a schedule runs, how long ranks wait, and how much is alive: no device, no MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from hp_memory.errors import ScheduleError
from hp_memory.pipeline.schedule import COMPUTE, Op, Schedule, Step, backward_ops, needs


@dataclass(frozen=True)
class Costs:
    """Time of each step on one chunk, in any unit. A whole backward costs dx + dw; a transfer delays the receiver."""

    forward: float = 1.0
    dx: float = 1.0
    dw: float = 1.0
    replay: float = 1.0
    transfer: float = 0.0

    def of(self, op: Op) -> float:
        return {"F": self.forward, "R": self.replay, "B": self.dx, "W": self.dw, "BW": self.dx + self.dw}[op]


@dataclass(frozen=True)
class Span:
    rank: int
    step: Step
    start: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """Spans of all compute steps. Two conventions for the bubble are in use, so both are here by name."""

    schedule: Schedule
    spans: tuple[Span, ...]

    @cached_property
    def makespan(self) -> float:
        """From the first step of any rank to the last of any rank (Megatron's and GPipe's view)."""
        return max((s.end for s in self.spans), default=0.0)

    @cached_property
    def _rows(self) -> tuple[tuple[Span, ...], ...]:
        rows: list[list[Span]] = [[] for _ in range(self.schedule.ranks)]
        for span in self.spans:
            rows[span.rank].append(span)
        return tuple(tuple(row) for row in rows)

    def of_rank(self, rank: int) -> tuple[Span, ...]:
        return self._rows[rank]

    def busy(self, rank: int) -> float:
        return sum(s.end - s.start for s in self.of_rank(rank))

    def idle(self, rank: int) -> float:
        """Waiting within the iteration: makespan minus work."""
        return self.makespan - self.busy(rank)

    def own_idle(self, rank: int) -> float:
        """Waiting between the rank's own first and last step (Zero Bubble's view: the optimizer is no barrier)."""
        spans = self.of_rank(rank)
        return spans[-1].end - spans[0].start - self.busy(rank) if spans else 0.0

    @property
    def bubble_of_work(self) -> float:
        """Largest idle time over work of the same rank: the papers' (p-1)/m."""
        return max(self.idle(r) / self.busy(r) for r in range(self.schedule.ranks))

    @property
    def bubble_of_total(self) -> float:
        """Share of rank-time lost in the iteration: (p-1)/(m+p-1) for GPipe."""
        total = self.makespan * self.schedule.ranks
        return sum(self.idle(r) for r in range(self.schedule.ranks)) / total


class _Clock:
    """Runs rows in order, each step as soon as its rank is free and its inputs are there."""

    def __init__(self, schedule: Schedule, costs: Mapping[int, Costs]) -> None:
        self.schedule, self.costs = schedule, costs
        self.kinds = backward_ops(schedule)
        self.ended: dict[Step, float] = {}
        self.free = [0.0] * schedule.ranks
        self.at = [0] * schedule.ranks
        self.spans: list[Span] = []

    def missing(self, rank: int) -> Step | None:
        step = self.schedule.rows[rank][self.at[rank]]
        return next((d for d in needs(step, self.schedule.chunks, self.kinds) if d not in self.ended), None)

    def advance(self, rank: int) -> bool:
        row = self.schedule.rows[rank]
        if self.at[rank] >= len(row) or self.missing(rank) is not None:
            return False
        step = row[self.at[rank]]
        start = max([self.free[rank], *(self._arrival(d, rank) for d in needs(step, self.schedule.chunks, self.kinds))])
        end = start + self.costs[step.chunk].of(step.op)
        self.ended[step], self.free[rank] = end, end
        self.at[rank] += 1
        self.spans.append(Span(rank, step, start, end))
        return True

    def _arrival(self, step: Step, rank: int) -> float:
        away = self.schedule.placement[step.chunk] != rank
        return self.ended[step] + (self.costs[step.chunk].transfer if away else 0.0)

    def blocked(self) -> list[int]:
        return [r for r in range(self.schedule.ranks) if self.at[r] < len(self.schedule.rows[r])]


def _explain_deadlock(clock: _Clock) -> str:
    """Follow the waiting ranks until one repeats or one is waited for that has nothing left to do."""
    rank, seen, words = clock.blocked()[0], set(), []
    while rank not in seen:
        seen.add(rank)
        if rank not in clock.blocked():
            words.append(f"rank {rank} has no step left")
            break
        step, wanted = clock.schedule.rows[rank][clock.at[rank]], clock.missing(rank)
        assert wanted is not None, "a rank that is blocked waits for a step"
        owner = clock.schedule.placement[wanted.chunk]
        words.append(f"rank {rank} at {step} waits for {wanted} of rank {owner}")
        rank = owner
    return "; ".join(words)


def run(schedule: Schedule, costs: Costs | Mapping[int, Costs] | None = None) -> Timeline:
    """Time the compute steps of a schedule.

    Args:
        costs: of every chunk, or of each by its number.

    Raises:
        ScheduleError: no rank can go on; says who waits for what.
    """
    by_chunk = costs if isinstance(costs, Mapping) else dict.fromkeys(range(schedule.chunks), costs or Costs())
    clock = _Clock(schedule.only(COMPUTE), by_chunk)
    while sum(clock.advance(rank) for rank in range(schedule.ranks)):
        pass
    if clock.blocked():
        raise ScheduleError(f"{schedule.name}: deadlock: {_explain_deadlock(clock)}")
    return Timeline(clock.schedule, tuple(clock.spans))


@dataclass(frozen=True)
class Held:
    """What one micro-batch of one chunk keeps alive, in any unit: after F, once replayed, and between B and W."""

    forward: float
    replayed: float
    after_dx: float


def levels(schedule: Schedule, rank: int, held: Callable[[int, int], Held]) -> tuple[float, ...]:
    """What is alive on the rank after each of its compute steps. ``held(chunk, micro)`` gives the unit amounts."""
    alive: dict[tuple[int, int], float] = {}
    out = []
    for step in schedule.rows[rank]:
        if step.op not in COMPUTE:
            continue
        key, unit = (step.chunk, step.micro), held(step.chunk, step.micro)
        if step.op in ("W", "BW"):
            alive.pop(key, None)
        else:
            alive[key] = {"F": unit.forward, "R": unit.replayed, "B": unit.after_dx}[step.op]
        out.append(sum(alive.values()))
    return tuple(out)


def peak_in_flight(schedule: Schedule, rank: int) -> int:
    """Most chunk forwards whose activations wait for their last use (BW or W), at any time."""
    return int(max(levels(schedule, rank, lambda *_: Held(1, 1, 1)), default=0))


def peak_held_for_dw(schedule: Schedule, rank: int) -> int:
    """Most micro-batches that wait between B and W at any time: what a split backward adds."""
    return int(max(levels(schedule, rank, lambda *_: Held(0, 0, 1)), default=0))
