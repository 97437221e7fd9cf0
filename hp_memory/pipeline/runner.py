"""Executes a schedule: the rows of all ranks in one process, or one rank's row between workers.

This is the reference and the regression harness. In production MindFormers drives HyperParallel's own schedules; our
settings reach those through the export.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mindspore import Tensor, ops

from hp_memory.errors import ScheduleError
from hp_memory.pipeline.chunk import Chunk
from hp_memory.pipeline.messages import RECEIVES
from hp_memory.pipeline.schedule import COMPUTE, Schedule, Step
from hp_memory.pipeline.session import check_all_closed
from hp_memory.pipeline.transport import Queues, Tensors, Transport

Feed = Callable[[int, int], Sequence[Any]]
After = Callable[[int, Step], None]
BACKWARD = ("B", "W", "BW")
RETURNS = ("R", "B", "BW")  # the first of these is when a micro-batch's tensors are wanted back


class RankRunner:
    """One rank's row of a schedule, step by step.

    Args:
        schedule: with messages, for more than one rank.
        chunks: this rank's chunks by number.
        transport: this rank's end.
        feed: ``feed(chunk, micro)`` gives the chunk's data of a micro-batch: tokens, labels, or nothing.
        after: called with the rank and the step after each step.
        backward_thread: run backward steps on a thread of their own (one at a time with the forwards).
    """

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        chunks: Mapping[int, Chunk],
        transport: Transport,
        feed: Feed,
        *,
        after: After | None = None,
        backward_thread: ThreadPoolExecutor | None = None,
    ) -> None:
        self.schedule, self.rank, self.chunks, self.transport = schedule, rank, chunks, transport
        self.feed, self.after, self.thread = feed, after, backward_thread
        self.losses: dict[int, Tensor] = {}
        self._row = schedule.rows[rank]
        self._at = 0
        computed = [step for step in self._row if step.op in COMPUTE]
        self._following = dict(itertools.pairwise(computed))
        self._inbox: dict[tuple[str, int, int], Tensors] = {}
        self._outbox: dict[tuple[str, int, int], Tensors] = {}

    @property
    def done(self) -> bool:
        return self._at == len(self._row)

    @property
    def step(self) -> Step:
        return self._row[self._at]

    def ready(self) -> bool:
        """Whether the next step can run without waiting for another rank."""
        return not self.done and (self.step.op not in ("RF", "RB") or self.transport.ready(self.step.partner))

    def advance(self) -> None:
        """Run the next step."""
        step = self.step
        following = self._following.get(step)
        if following is not None and following.op in RETURNS:
            self.chunks[following.chunk].come_back(following.micro)
        if self.thread is not None and step.op in BACKWARD:
            self.thread.submit(self._run, step).result()
        else:
            self._run(step)
        self._at += 1
        if self.after is not None:
            self.after(self.rank, step)

    def _run(self, step: Step) -> None:
        if step.op in RECEIVES:
            self.transport.send(step.partner, self._outbox.pop((step.op[1], step.chunk, step.micro)))
        elif step.op in ("RF", "RB"):
            self._inbox[step.op[1], step.chunk, step.micro] = self.transport.receive(step.partner)
        elif step.op == "F":
            self._forward(step)
        elif step.op == "R":
            self.chunks[step.chunk].prefire(step.micro)
        elif step.op == "W":
            self.chunks[step.chunk].dw(step.micro)
        else:
            self._backward(step)

    def _forward(self, step: Step) -> None:
        chunk, micro = step.chunk, step.micro
        inputs = self._inbox.pop(("F", chunk, micro), ())
        outputs = self.chunks[chunk].forward(micro, inputs, self.feed(chunk, micro))
        if chunk == self.schedule.chunks - 1:
            self.losses[micro] = outputs[0]
        else:
            self._pass_on("F", chunk + 1, micro, tuple(ops.stop_gradient(t) for t in outputs))

    def _backward(self, step: Step) -> None:
        chunk, micro = step.chunk, step.micro
        run = self.chunks[chunk].dx if step.op == "B" else self.chunks[chunk].whole
        found = run(micro, self._gradient(chunk, micro))
        if chunk > 0:
            self._pass_on("B", chunk - 1, micro, found)

    def _gradient(self, chunk: int, micro: int) -> Tensors:
        if chunk == self.schedule.chunks - 1:
            loss = self.losses[micro]
            self.losses[micro] = ops.stop_gradient(loss)  # losses must not keep the graph alive
            return (ops.ones_like(loss) / self.schedule.microbatches,)
        return self._inbox.pop(("B", chunk, micro))

    def _pass_on(self, kind: str, chunk: int, micro: int, tensors: Tensors) -> None:
        box = self._inbox if self.schedule.placement[chunk] == self.rank else self._outbox
        box[kind, chunk, micro] = tensors

    def finish(self) -> list[float]:
        """Check that nothing is left over and return the losses by micro-batch (empty without the last chunk).

        Raises:
            SessionError: a forward whose backward never ran.
            ScheduleError: a tensor that nobody took.
        """
        check_all_closed()
        left = [f"{kind}{micro}.{chunk}" for box in (self._inbox, self._outbox) for kind, chunk, micro in box]
        if left:
            raise ScheduleError(f"{self.schedule.name}: rank {self.rank} never used {', '.join(left)}")
        return [float(self.losses[m].asnumpy()) for m in sorted(self.losses)]


def run_rank(runner: RankRunner) -> list[float]:
    """Run one worker's row from start to end; returns the losses where this rank has the last chunk."""
    while not runner.done:
        runner.advance()
    return runner.finish()


def run_local(schedule: Schedule, chunks: Sequence[Chunk], feed: Feed, **options: Any) -> list[float]:
    """Run all ranks of a schedule in this process, taking turns; returns the losses by micro-batch.

    Args:
        chunks: all chunks, by number.
        options: ``after`` and ``backward_thread`` of ``RankRunner``.

    Raises:
        ScheduleError: a deadlock, or a message nobody took.
    """
    queues = Queues()
    own = [{c: chunks[c] for c in schedule.chunks_of(rank)} for rank in range(schedule.ranks)]
    runners = [RankRunner(schedule, r, own[r], queues.end(r), feed, **options) for r in range(schedule.ranks)]
    while not all(runner.done for runner in runners):
        ready = [runner for runner in runners if runner.ready()]
        if not ready:
            waiting = ", ".join(f"rank {r.rank} at {r.step}" for r in runners if not r.done)
            raise ScheduleError(f"{schedule.name}: deadlock: {waiting}")
        for runner in ready:
            runner.advance()
    if queues.left:
        raise ScheduleError(f"{schedule.name}: {queues.left} messages were sent and never received")
    return [loss for runner in runners for loss in runner.finish()]
