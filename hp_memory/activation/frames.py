"""Which checkpointed call this thread is in, and whether it is the forward or a replay.

A frame lives on the stack of the thread that runs the call. Nothing is inherited by other threads: a backward may run
on a thread that never saw the forward, and the replay opens its own frame there.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from hp_memory.errors import ReplayError

if TYPE_CHECKING:
    from hp_memory.activation.capture import Capture
    from hp_memory.activation.elision import Course
    from hp_memory.activation.ending import Ending
    from hp_memory.activation.exclude import Region
    from hp_memory.activation.invocation import Invocation
    from hp_memory.activation.shading import Shade
    from hp_memory.activation.watching import Watch


class Frame:
    """One run of a checkpointed call: the forward, or one of its replays."""

    __slots__ = (
        "bound",
        "capture",
        "course",
        "cursor",
        "ending",
        "failure",
        "guarded",
        "inside",
        "invocation",
        "named",
        "outputs",
        "packed",
        "replaying",
        "shade",
        "shared",
        "watch",
    )

    def __init__(self, invocation: Invocation | None, replaying: bool) -> None:
        self.invocation = invocation  # None for a region outside every checkpoint
        self.replaying = replaying
        self.cursor = 0  # the next excluded call
        self.named = 0  # replay: regions that aren't excluded, called so far
        self.packed = 0  # tensors saved outside excluded regions so far
        self.inside: Region | None = None  # whose body runs now, or is skipped by a replay
        self.capture: Capture | None = None  # of that body
        self.guarded: list = []  # forward: (tensor, version, region, what), checked at the end
        self.bound: list = []  # replay: (tensor, version, excluded region or None) of what it gave, checked at the end
        self.shared: list = []  # forward: (copy, object, region) of outputs handed out as they are, checked at the end
        self.outputs: dict = {}  # as ``guarded``, for the outputs that are still kept, by (record, leaf)
        self.watch: Watch | None = None  # of a forward that learns
        self.course: Course | None = None  # of a forward that goes by what was learned
        self.shade: Shade | None = None  # of a replay
        self.ending: Ending | None = None  # of a replay
        self.failure: ReplayError | None = None  # replay: raised in the end, whatever became of it on the way

    @property
    def call(self) -> Invocation:
        """The checkpointed call that this is a run of."""
        assert self.invocation is not None, "asked outside every checkpoint"
        return self.invocation


class _Stack(threading.local):
    frame: Frame | None = None


_stack = _Stack()


def current() -> Frame | None:
    """The innermost frame of this thread, None outside every checkpointed call."""
    return _stack.frame


def enter(frame: Frame) -> Frame | None:
    """Makes ``frame`` current; returns the one to give back to :func:`leave`."""
    before = _stack.frame
    _stack.frame = frame
    return before


def leave(before: Frame | None) -> None:
    _stack.frame = before


def is_recomputing() -> bool:
    """True while this thread replays a checkpointed call; False in the forward and outside checkpoints."""
    frame = _stack.frame
    return frame is not None and frame.replaying


def check_unwritten(guarded: list) -> None:
    """Raises for what was written after a region saved it; ``guarded`` is a frame's."""
    for tensor, version, region, what in guarded:
        if tensor._version != version:
            raise ReplayError(
                f"{what} of excluded region {region.name} was written in place after it was saved; "
                "clone it before the write, or don't exclude this region"
            )
