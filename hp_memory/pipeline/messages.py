"""Sends and receives of a schedule, placed so that every pair of ranks agrees on the order of its messages.

Transports between two ranks are first in, first out and carry no tag (MindSpore's on CPU, HCCL's). With several chunks
per rank, activations and gradients share one channel and may be needed in another order than they were sent. So a
receiver takes them in the order of sending, early where it must, and keeps them until they are needed.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from hp_memory.errors import ScheduleError
from hp_memory.pipeline.schedule import COMPUTE, MESSAGES, Op, Schedule, Step

Channel = tuple[int, int]
RECEIVES: dict[Op, Op] = {"SF": "RF", "SB": "RB"}


def message_after(step: Step, placement: tuple[int, ...]) -> Step | None:
    """The send that follows a compute step, or None where the next chunk is on the same rank or there is none."""
    if step.op == "F" and step.chunk + 1 < len(placement):
        target = step.chunk + 1
    elif step.op in ("B", "BW") and step.chunk > 0:
        target = step.chunk - 1
    else:
        return None
    if placement[target] == placement[step.chunk]:
        return None
    return Step("SF" if step.op == "F" else "SB", target, step.micro, placement[target])


def message_before(step: Step, placement: tuple[int, ...]) -> Step | None:
    """The receive that a compute step needs, or None where its input is at home."""
    if step.op == "F" and step.chunk > 0:
        source = step.chunk - 1
    elif step.op in ("B", "BW") and step.chunk + 1 < len(placement):
        source = step.chunk + 1
    else:
        return None
    if placement[source] == placement[step.chunk]:
        return None
    return Step("RF" if step.op == "F" else "RB", step.chunk, step.micro, placement[source])


def _sent(schedule: Schedule) -> dict[Channel, deque[Step]]:
    """The receives that each channel's sends ask for, in the order of sending."""
    channels: dict[Channel, deque[Step]] = defaultdict(deque)
    for rank, row in enumerate(schedule.rows):
        for step in row:
            send = message_after(step, schedule.placement) if step.op in COMPUTE else None
            if send is not None:
                channels[rank, send.partner].append(Step(RECEIVES[send.op], send.chunk, send.micro, rank))
    return channels


def add_messages(schedule: Schedule) -> Schedule:
    """The schedule with a send after each compute step that feeds another rank, and receives where they are needed."""
    channels = _sent(schedule)

    def row(rank: int, steps: tuple[Step, ...]) -> Iterator[Step]:
        here: set[Step] = set()
        for step in steps:
            wanted = message_before(step, schedule.placement)
            while wanted is not None and wanted not in here:
                queue = channels[wanted.partner, rank]
                if not queue:
                    raise ScheduleError(f"{schedule.name}: rank {rank} needs {wanted}, which nobody sends")
                taken = queue.popleft()
                here.add(taken)
                yield taken
            yield step
            send = message_after(step, schedule.placement)
            if send is not None:
                yield send

    return schedule.only(COMPUTE).with_rows([list(row(r, steps)) for r, steps in enumerate(schedule.rows)])


class _Wires:
    """Messages under way, with at most ``buffer`` of them per channel (None: any number)."""

    def __init__(self, schedule: Schedule, buffer: int | None) -> None:
        self.schedule, self.buffer = schedule, buffer
        self.at = [0] * schedule.ranks
        self.queues: dict[Channel, deque[Step]] = defaultdict(deque)
        self.deepest = 0

    def next(self, rank: int) -> Step | None:
        row = self.schedule.rows[rank]
        return row[self.at[rank]] if self.at[rank] < len(row) else None

    def advance(self, rank: int) -> bool:
        """Run the rank's next step if it can run; say whether it did."""
        step = self.next(rank)
        if step is None:
            return False
        if step.op in RECEIVES:
            return self._send(rank, step)
        if step.op in MESSAGES:
            return self._receive(rank, step)
        self.at[rank] += 1
        return True

    def _send(self, rank: int, step: Step) -> bool:
        expected = Step(RECEIVES[step.op], step.chunk, step.micro, rank)
        queue, peer = self.queues[rank, step.partner], step.partner
        if self.buffer is not None and len(queue) >= self.buffer:
            if self.buffer or self.next(peer) != expected:
                return False
            self.at[peer] += 1  # a rendezvous: both sides pass at once
        else:
            queue.append(expected)
            self.deepest = max(self.deepest, len(queue))
        self.at[rank] += 1
        return True

    def _receive(self, rank: int, step: Step) -> bool:
        queue = self.queues[step.partner, rank]
        if not queue:
            return False
        if queue[0] != step:
            raise ScheduleError(
                f"{self.schedule.name}: rank {rank} receives {step} while the next message from rank {step.peer} "
                f"is {queue[0]}: the two ranks disagree on the order"
            )
        queue.popleft()
        self.at[rank] += 1
        return True


def check_messages(schedule: Schedule, buffer: int | None = None) -> int:
    """Run the schedule with its messages only and return the deepest queue seen as ranks take turns.

    Args:
        schedule: with messages (``add_messages``).
        buffer: messages a channel holds before a send blocks; None for any number (the CPU transport), 0 for a
            rendezvous, where a send ends only when the peer receives.

    Raises:
        ScheduleError: a deadlock, a receive out of order, or a message that nobody takes.
    """
    wires = _Wires(schedule, buffer)
    while sum(wires.advance(rank) for rank in range(schedule.ranks)):
        pass
    stuck = [f"rank {r} at {wires.next(r)}" for r in range(schedule.ranks) if wires.next(r) is not None]
    if stuck:
        depth = "any number of messages" if buffer is None else f"{buffer} messages"
        raise ScheduleError(f"{schedule.name}: deadlock with {depth} per channel: {', '.join(stuck)}")
    left = [f"{s} to rank {dst}" for (_, dst), queue in wires.queues.items() for s in queue]
    if left:
        raise ScheduleError(f"{schedule.name}: sent and never received: {', '.join(left)}")
    return wires.deepest
