"""Refuses a schedule that is incomplete, out of order, deadlocked, or over its memory."""

from __future__ import annotations

from collections import Counter, defaultdict

from hp_memory.errors import ScheduleError
from hp_memory.pipeline.messages import RECEIVES, check_messages, message_after, message_before
from hp_memory.pipeline.schedule import COMPUTE, MESSAGES, Schedule, Step
from hp_memory.pipeline.simulate import peak_in_flight, run


def validate(schedule: Schedule, *, in_flight_limit: int | None = None, buffer: int | None = None) -> None:
    """Check a schedule, with or without messages.

    Args:
        in_flight_limit: most chunk forwards alive on a rank; more is refused.
        buffer: messages a channel holds before a send blocks (see ``check_messages``).

    Raises:
        ScheduleError: names the schedule, the rank and the step.
    """
    for rank, row in enumerate(schedule.rows):
        _check_place(schedule, rank, row)
    _check_lives(schedule)
    run(schedule)
    if any(step.op in MESSAGES for row in schedule.rows for step in row):
        _check_message_order(schedule)
        check_messages(schedule, buffer)
    if in_flight_limit is not None:
        _check_memory(schedule, in_flight_limit)


def _check_place(schedule: Schedule, rank: int, row: tuple[Step, ...]) -> None:
    for step in row:
        owner = step.peer if step.op in RECEIVES else rank
        if not 0 <= step.chunk < schedule.chunks or schedule.placement[step.chunk] != owner:
            raise ScheduleError(
                f"{schedule.name}: {step} stands in the row of rank {rank}, which doesn't own the chunk"
            )
        if not 0 <= step.micro < schedule.microbatches:
            raise ScheduleError(f"{schedule.name}: {step} names a micro-batch outside 0..{schedule.microbatches - 1}")


def _check_lives(schedule: Schedule) -> None:
    lives: dict[tuple[int, int], list[str]] = defaultdict(list)
    for row in schedule.rows:
        for step in row:
            if step.op in COMPUTE:
                lives[step.chunk, step.micro].append(step.op)
    for chunk, rank in enumerate(schedule.placement):
        for micro in range(schedule.microbatches):
            _check_life(lives[chunk, micro], f"{schedule.name}: micro-batch {micro} of chunk {chunk} on rank {rank}")


def _check_life(ops: list[str], what: str) -> None:
    """One micro-batch of one chunk: F, perhaps R, then BW or B and W, each once and in this order."""
    twice = [op for op, n in Counter(ops).items() if n > 1]
    if twice:
        raise ScheduleError(f"{what} runs {', '.join(twice)} more than once")
    if "F" not in ops:
        raise ScheduleError(f"{what} has no F")
    if "BW" in ops and ("B" in ops or "W" in ops):
        raise ScheduleError(f"{what} has a whole backward (BW) and a half of one")
    for half in () if "BW" in ops else ("B", "W"):
        if half not in ops:
            raise ScheduleError(f"{what} has no {half}: its {'dx' if half == 'B' else 'dw'} would be lost")
    order = [op for op in ("F", "R", "BW", "B", "W") if op in ops]
    if ops != order:
        raise ScheduleError(f"{what} runs {' '.join(ops)}; the order must be {' '.join(order)}")


def _check_message_order(schedule: Schedule) -> None:
    """Nothing is sent before it is computed or computed before it is received, on each rank by itself."""
    for rank, row in enumerate(schedule.rows):
        seen: set[Step] = set()
        to_send: set[Step | None] = set()
        for step in row:
            wanted = message_before(step, schedule.placement)
            if wanted is not None and wanted not in seen:
                raise ScheduleError(f"{schedule.name}: rank {rank} runs {step} before it received {wanted}")
            if step.op in RECEIVES and step not in to_send:
                raise ScheduleError(f"{schedule.name}: rank {rank} sends {step} before it computed it")
            seen.add(step)
            to_send.add(message_after(step, schedule.placement))


def _check_memory(schedule: Schedule, limit: int) -> None:
    for rank in range(schedule.ranks):
        peak = peak_in_flight(schedule, rank)
        if peak > limit:
            raise ScheduleError(
                f"{schedule.name}: rank {rank} holds {peak} chunk forwards at once, the limit is {limit}"
            )
