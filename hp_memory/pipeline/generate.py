"""The schedules people know, each from its own description, as compute steps only.

* GPipe: Huang et al., arXiv 1811.06965.
* 1F1B: Narayanan et al., PipeDream-Flush, arXiv 2006.09503.
* interleaved 1F1B: Narayanan et al., arXiv 2104.04473.
* ZB-H1: Qi et al., Zero Bubble, arXiv 2401.10241.
* ZB-V: Qi et al., arXiv 2405.15362 (two chunks per rank, laid out as a V).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hp_memory.pipeline.schedule import COMPUTE, Schedule, Step

SPLIT_ONLY = ("zb_h1", "zb_v")
INTERLEAVED = ("interleaved_1f1b",)


def _one_chunk_per_rank(name: str, ranks: int, micros: int, row: Callable[[int], Iterator[Step]]) -> Schedule:
    return Schedule(name, micros, tuple(range(ranks)), tuple(tuple(row(rank)) for rank in range(ranks)))


def _backward(chunk: int, micro: int, split: bool) -> tuple[Step, ...]:
    return (Step("B", chunk, micro), Step("W", chunk, micro)) if split else (Step("BW", chunk, micro),)


def gpipe(ranks: int, micros: int, split: bool = False) -> Schedule:
    """Every forward, then every backward: the simplest schedule, with all micro-batches in flight."""

    def row(rank: int) -> Iterator[Step]:
        yield from (Step("F", rank, m) for m in range(micros))
        for m in range(micros):
            yield from _backward(rank, m, split)

    return _one_chunk_per_rank("gpipe", ranks, micros, row)


def one_f_one_b(ranks: int, micros: int, split: bool = False) -> Schedule:
    """Rank r runs ``ranks-1-r`` forwards ahead, then alternates: at most ``ranks-r`` micro-batches are in flight."""

    def row(rank: int) -> Iterator[Step]:
        ahead = min(ranks - 1 - rank, micros)
        yield from (Step("F", rank, m) for m in range(ahead))
        for m in range(micros):
            if m + ahead < micros:
                yield Step("F", rank, m + ahead)
            yield from _backward(rank, m, split)

    return _one_chunk_per_rank("1f1b", ranks, micros, row)


def interleaved_1f1b(ranks: int, micros: int, split: bool = False, interleave: int = 2) -> Schedule:
    """Each rank owns every ``ranks``-th chunk; micro-batches go through the chunks in groups of ``ranks``.

    ``micros`` must be a multiple of ``ranks``. The bubble shrinks by ``interleave``, the messages grow by it.
    """
    total, group = micros * interleave, ranks * interleave

    def forward(k: int, rank: int) -> tuple[int, int]:
        turn = k % group // ranks
        return turn * ranks + rank, k // group * ranks + k % ranks

    def backward(k: int, rank: int) -> tuple[int, int]:
        turn = interleave - 1 - k % group // ranks
        return turn * ranks + rank, k // group * ranks + k % ranks

    def row(rank: int) -> Iterator[Step]:
        ahead = min(2 * (ranks - 1 - rank) + (interleave - 1) * ranks, total)
        yield from (Step("F", *forward(k, rank)) for k in range(ahead))
        for k in range(total):
            if k + ahead < total:
                yield Step("F", *forward(k + ahead, rank))
            yield from _backward(*backward(k, rank), split)

    placement = tuple(chunk % ranks for chunk in range(ranks * interleave))
    return Schedule("interleaved_1f1b", micros, placement, tuple(tuple(row(rank)) for rank in range(ranks)))


def zb_h1(ranks: int, micros: int) -> Schedule:
    """1F1B with W put off by ``rank`` micro-batches: the W steps fill the bubble at the end.

    Rank r holds ``ranks-r`` micro-batches before B and up to r between B and W: ``ranks`` in all, 1F1B's own peak.
    """

    def row(rank: int) -> Iterator[Step]:
        ahead = min(ranks - 1 - rank, micros)
        yield from (Step("F", rank, m) for m in range(ahead))
        for m in range(micros):
            if m + ahead < micros:
                yield Step("F", rank, m + ahead)
            yield Step("B", rank, m)
            if m >= rank:
                yield Step("W", rank, m - rank)
        yield from (Step("W", rank, m) for m in range(max(micros - rank, 0), micros))

    return _one_chunk_per_rank("zb_h1", ranks, micros, row)


class _RowOfV:
    """Writes one rank's row of ZB-V: next free micro-batch per (op, leg); leg 0 goes down the V, leg 1 comes up."""

    def __init__(self, rank: int, ranks: int, micros: int) -> None:
        self.chunk = (rank, 2 * ranks - 1 - rank)
        self.micros = micros
        self.next = {(op, leg): 0 for op in "FBW" for leg in (0, 1)}
        self.steps: list[Step] = []

    def put(self, ops: str, leg: int) -> None:
        for op in ops:
            micro = self.next[op, leg]
            self.next[op, leg] += 1
            # The pattern is laid out for at least 2*ranks-1 micro-batches; fewer leave holes.
            if micro < self.micros:
                self.steps.append(Step(op, self.chunk[leg], micro))  # type: ignore[arg-type]


def _zb_v_row(rank: int, ranks: int, micros: int) -> tuple[Step, ...]:
    row, length = _RowOfV(rank, ranks, micros), max(micros, 2 * ranks - 1)
    for _ in range(2 * (ranks - rank) - 1):
        row.put("F", 0)
    for _ in range(rank):
        row.put("F", 1)
        row.put("F", 0)
    for _ in range(ranks - rank):
        row.put("FBW", 1)
    while row.next["F", 1] < length:
        if row.next["F", 0] < length:
            row.put("F", 0)
        row.put("BW", 0)
        row.put("FBW", 1)
    for _ in range(rank):
        row.put("B", 0)
        row.put("B", 1)
    for _ in range(ranks - rank):
        row.put("BW", 0)
    for leg in (1, 0):
        row.put("W" * (length - row.next["W", leg]), leg)
    return tuple(row.steps)


def zb_v(ranks: int, micros: int) -> Schedule:
    """Two chunks per rank, down and up a V: first and last chunk share rank 0, and with F = B = W no bubble is left.

    At most ``2*ranks`` half-stage chunks are in flight on any rank: 1F1B's peak, and the same for all ranks.
    """
    placement = (*range(ranks), *reversed(range(ranks)))
    return Schedule("zb_v", micros, placement, tuple(_zb_v_row(rank, ranks, micros) for rank in range(ranks)))


def one_at_a_time(schedule: Schedule) -> Schedule:
    """The same steps with a single micro-batch in flight: what each one costs by itself."""

    def row(steps: tuple[Step, ...]) -> list[Step]:
        order = {"F": 0, "R": 1, "B": 1, "BW": 1, "W": 2}

        def place(step: Step) -> tuple[int, int, int]:
            return step.micro, order[step.op], step.chunk if step.op == "F" else -step.chunk

        return sorted(steps, key=place)

    return schedule.with_rows(row(steps) for steps in schedule.only(COMPUTE).rows)


def with_prefire(schedule: Schedule) -> Schedule:
    """Put the replay of a micro-batch right before its backward, where a rank would wait for the gradient."""

    def row(steps: tuple[Step, ...]) -> Iterator[Step]:
        for step in steps:
            if step.op in ("B", "BW"):
                yield Step("R", step.chunk, step.micro)
            yield step

    return schedule.with_rows(row(steps) for steps in schedule.rows)


def generate(
    name: str, ranks: int, micros: int, *, interleave: int = 1, split: bool = False, prefire: bool = False
) -> Schedule:
    """The named schedule, compute steps only. `settings.py` checks what is asked for, `validate.py` what comes out."""
    if name == "gpipe":
        schedule = gpipe(ranks, micros, split)
    elif name == "1f1b":
        schedule = one_f_one_b(ranks, micros, split)
    elif name == "interleaved_1f1b":
        schedule = interleaved_1f1b(ranks, micros, split, interleave)
    elif name == "zb_h1":
        schedule = zb_h1(ranks, micros)
    elif name == "zb_v":
        schedule = zb_v(ranks, micros)
    else:
        raise ValueError(f"no schedule is called {name!r}")
    return with_prefire(schedule) if prefire else schedule
