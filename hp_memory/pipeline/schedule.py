"""What a pipeline schedule is: for every rank a list of steps, and where each chunk of the model lives.

Plain data. Generators (`generate.py`) make it, `messages.py` adds the sends and receives, `validate.py` refuses what
can't run, `simulate.py` measures it, `draw.py` shows it, `runner.py` executes it.

Letters, used everywhere:

====  =======================================================================================
F     forward
R     replay of the checkpointed regions ahead of the gradient (pre-fired recompute)
B     dx alone: the gradient of the chunk's inputs (the B of the Zero Bubble papers)
W     dw alone: the gradients of the chunk's weights
BW    the whole backward in one go (what 1F1B and DualPipe call B)
SF RF send, receive an activation
SB RB send, receive a gradient
====  =======================================================================================

A *chunk* is a run of consecutive layers. With one chunk per rank it is the rank's stage; interleaved and V-shaped
schedules put several chunks on one rank. Chunks are numbered from the model's input to its output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

Op = Literal["F", "R", "B", "W", "BW", "SF", "RF", "SB", "RB"]
COMPUTE: tuple[Op, ...] = ("F", "R", "B", "W", "BW")
MESSAGES: tuple[Op, ...] = ("SF", "RF", "SB", "RB")


@dataclass(frozen=True)
class Step:
    """One thing a rank does: ``op`` of micro-batch ``micro`` on ``chunk``; ``peer`` is the other rank of a message.

    The chunk of a message is the chunk that *computes* with it: ``SF``/``RF`` carry the input of ``F(chunk)``,
    ``SB``/``RB`` carry the gradient that starts ``B(chunk)``.
    """

    op: Op
    chunk: int
    micro: int
    peer: int | None = None

    @property
    def partner(self) -> int:
        """The other rank of a message, which every message has."""
        assert self.peer is not None, self
        return self.peer

    def __str__(self) -> str:
        where = "" if self.peer is None else f"@{self.peer}"
        return f"{self.op}{self.micro}.{self.chunk}{where}"


@dataclass(frozen=True)
class Schedule:
    """Rows of steps, one per rank, and ``placement[chunk]`` = the rank that owns the chunk."""

    name: str
    microbatches: int
    placement: tuple[int, ...]
    rows: tuple[tuple[Step, ...], ...]

    @property
    def ranks(self) -> int:
        return len(self.rows)

    @property
    def chunks(self) -> int:
        return len(self.placement)

    @property
    def splits_backward(self) -> bool:
        return any(step.op == "B" for row in self.rows for step in row)

    @property
    def prefires(self) -> bool:
        return any(step.op == "R" for row in self.rows for step in row)

    @cached_property
    def _chunks_of_ranks(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(c for c, r in enumerate(self.placement) if r == rank) for rank in range(self.ranks))

    def chunks_of(self, rank: int) -> tuple[int, ...]:
        return self._chunks_of_ranks[rank]

    def accumulation_order(self, chunk: int) -> tuple[int, ...]:
        """Micro-batches in the order in which they add to the gradients of this chunk's weights."""
        row = self.rows[self.placement[chunk]]
        return tuple(s.micro for s in row if s.chunk == chunk and s.op in ("W", "BW"))

    def with_rows(self, rows: Iterable[Iterable[Step]]) -> Schedule:
        return replace(self, rows=tuple(tuple(row) for row in rows))

    def only(self, ops: Iterable[Op]) -> Schedule:
        """The same schedule with the other kinds of step left out, e.g. ``only(COMPUTE)``."""
        wanted = set(ops)
        return self.with_rows((s for s in row if s.op in wanted) for row in self.rows)

    def to_dict(self) -> dict:
        return {
            "name": self.name,
            "microbatches": self.microbatches,
            "placement": list(self.placement),
            "rows": [" ".join(map(str, row)) for row in self.rows],
        }


def needs(step: Step, chunks: int, backward_of: dict[tuple[int, int], Op]) -> tuple[Step, ...]:
    """The compute steps that must have ended before ``step`` can start.

    ``backward_of[(chunk, micro)]`` says whether that chunk runs ``B`` or ``BW``: its gradient comes from there.
    """
    chunk, micro = step.chunk, step.micro
    if step.op == "F":
        return (Step("F", chunk - 1, micro),) if chunk > 0 else ()
    if step.op == "R":
        return (Step("F", chunk, micro),)
    if step.op == "W":
        return (Step("B", chunk, micro),)
    own = (Step("F", chunk, micro),)
    if chunk == chunks - 1:
        return own
    return (*own, Step(backward_of.get((chunk + 1, micro), "BW"), chunk + 1, micro))


def backward_ops(schedule: Schedule) -> dict[tuple[int, int], Op]:
    """Which backward (``B`` or ``BW``) each (chunk, micro-batch) runs."""
    return {(s.chunk, s.micro): s.op for row in schedule.rows for s in row if s.op in ("B", "BW")}
