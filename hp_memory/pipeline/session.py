"""Which uses of a micro-batch's replays share one replay, and when replayed tensors are released.

MindSpore replays a checkpointed call once per *key*: the number of the engine run, or a session's id where one is set.
dx and dw are two engine runs, so without a session each block is replayed twice. A session also makes a replay ahead of
the gradient (pre-fire) findable. Its rule says what the uses retain:

========  ====================================================  ==========================
rule      dx                                                    dw, or the whole backward
========  ====================================================  ==========================
share     retains what it unpacks                               releases as it unpacks
keep      retains                                               retains; cleared at the end
release   releases: a dw after it is an error                   releases
none      no session: replays under its own engine run          the same, once more
========  ====================================================  ==========================

The session is set on the thread that makes the use, for its duration: nothing is inherited by other threads.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

from hp_memory.errors import SessionError, nearest
from hp_memory.mindspore.private import get_rng_state, set_rng_state

# The package attribute of this name is the public function, so the module has to be asked for.
from hp_memory.mindspore.private import recompute as _recompute
from hp_memory.pipeline.settings import SESSIONS

Use = Literal["prefire", "dx", "dw", "whole"]
FOLLOWS: dict[str, tuple[str, ...]] = {
    "prefire": ("recorded",),
    "dx": ("recorded", "prefire"),
    "dw": ("dx",),
    "whole": ("recorded", "prefire"),
}
_numbers = itertools.count()
_open: dict[int, RecomputeSession] = {}


class RecomputeSession:
    """The replays of one forward: collect its handles, perhaps pre-fire, use it for dx and dw or the whole backward.

    Args:
        name: says in errors which micro-batch it is.
        rule: ``share``, ``keep``, ``release`` or ``none`` (see the module).

    Raises:
        SessionError: for another rule.
    """

    def __init__(self, name: str, rule: str = "share") -> None:
        if rule not in SESSIONS:
            near = nearest(rule, SESSIONS)
            hint = f"did you mean {near!r}? " if near else ""
            raise SessionError(f"{name}: no session rule {rule!r}; {hint}accepted: {', '.join(SESSIONS)}")
        self.name, self.rule = name, rule
        self._id = ("hp_memory.pipeline", next(_numbers))
        self._handles: list[Any] = []
        self._watched: list[weakref.ref] = []
        self._replayable = 0
        self._prefired = False
        self._state = "new"

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Around the forward: collects the handles of its checkpointed calls."""
        if self._state != "new":
            raise SessionError(f"{self.name}: the session has recorded a forward already")
        with _recompute._recompute_handle_collector_ctx() as handles:
            yield
        self._handles, self._replayable = handles, len(handles)
        self._watched = [weakref.ref(handle) for handle in handles]
        self._state = "recorded"
        _open[self._id[1]] = self

    @property
    def replayable(self) -> int:
        """Checkpointed calls in the forward."""
        return self._replayable

    @property
    def alive(self) -> int:
        """Checkpointed calls of this forward that something still holds; 0 once its backward is over."""
        return sum(ref() is not None for ref in self._watched)

    def living(self) -> list[Any]:
        """Handles of the checkpointed calls that something still holds."""
        return [handle for handle in (ref() for ref in self._watched) if handle is not None]

    def prefire(self) -> None:
        """Replay now what backward would replay later.

        Raises:
            SessionError: without a session the replay could not be found again, so it is refused.
        """
        if self.rule == "none":
            raise SessionError(f"{self.name}: a replay ahead of backward needs a session, or backward replays again")
        self._enter("prefire")
        with _rng_kept(), self._as_current(retain=True):
            for handle in self._handles:
                handle.recompute(self._id)
        self._handles = []  # they hold the blocks' inputs; the graph has its own references
        self._prefired = True

    @contextmanager
    def use(self, half: Use) -> Iterator[None]:
        """Around the engine run of ``dx``, ``dw`` or the ``whole`` backward, on the thread that makes it.

        Raises:
            SessionError: out of order, a use too many, or a dw whose tensors dx has released.
        """
        self._enter(half)
        self._handles = []
        last = half != "dx"
        try:
            # After a pre-fire nothing is replayed, and a forward on another thread may draw numbers meanwhile.
            guard = nullcontext() if self._prefired else _rng_kept()
            with guard, self._as_current(retain=self.rule == "keep" or (self.rule == "share" and not last)):
                yield
        except BaseException:
            self.close()
            raise
        if last:
            self.close()

    def close(self) -> None:
        """Let go of everything replayed. Done by the last use; call it where a backward is skipped."""
        self._handles = []
        self._state = "closed"
        _recompute._clear_recompute_session(self._id)
        _open.pop(self._id[1], None)

    def _enter(self, use: Use) -> None:
        if self._state not in FOLLOWS[use]:
            raise SessionError(f"{self.name}: {use} {_EXPLAIN.get((use, self._state), f'after {self._state}')}")
        # Also where dx ran no engine (the first stage): all ranks must fail at the same place, or the others wait.
        if use == "dw" and self.rule == "release" and self._replayable:
            self.close()
            raise SessionError(
                f"{self.name}: dw needs what dx has released (retain_on_unpack=False); session rule share keeps it"
            )
        self._state = use

    def _as_current(self, retain: bool) -> Any:
        if self.rule == "none":
            return nullcontext()
        return _recompute._recompute_session_ctx(session_id=self._id, retain_on_unpack=retain)


_EXPLAIN = {
    ("dw", "recorded"): "before dx",
    ("dw", "prefire"): "before dx",
    ("dx", "dx"): "for a second time: one forward has one dx and one dw",
    ("whole", "dx"): "after dx: one forward has a whole backward or its two halves",
    ("prefire", "prefire"): "for a second time",
} | {(use, "closed"): "after the session was closed: a third use of one forward" for use in FOLLOWS}


@contextmanager
def _rng_kept() -> Iterator[None]:
    """Early stop leaves the generator where the replayed forward began: later micro-batches must not see it."""
    state = get_rng_state()
    try:
        yield
    finally:
        set_rng_state(state)


def open_sessions() -> tuple[str, ...]:
    """Names of the sessions that recorded a forward and saw no last use."""
    return tuple(session.name for session in _open.values())


def check_all_closed() -> None:
    """Refuse to end a step with a forward whose backward never ran.

    Raises:
        SessionError: names the sessions. They are closed, so that the next step starts clean.
    """
    left = tuple(_open.values())
    for session in left:
        session.close()
    if left:
        raise SessionError(f"left open, their dw never ran: {', '.join(s.name for s in left)}")


def native_leftovers() -> int:
    """Sessions that MindSpore still keeps a record of; 0 after every session was closed."""
    return len(_recompute._recompute_session_handles)
