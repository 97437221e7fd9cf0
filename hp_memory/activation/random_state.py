"""The default generator's state, remembered without asking for it.

Reading or writing the state waits for everything that was dispatched. So a place in a run is remembered as a
``Point``, and the state is read only when the generator is about to leave a point that somebody remembered: never in
a model that draws nothing.
"""

from __future__ import annotations

from typing import Any

from hp_memory.mindspore.private import JitExecutor, default_generator

_LEAVING = ("_step", "set_state", "manual_seed", "seed")


class Point:
    """The state of the generator between two draws."""

    __slots__ = ("state", "wanted")

    def __init__(self) -> None:
        self.wanted = False
        self.state: Any = None


_now = Point()


def here() -> Point:
    """The state as it is now, to be given to :func:`restore`. Doesn't wait."""
    _now.wanted = True
    return _now


def restore(point: Point) -> None:
    """Brings the generator back to a point; does nothing if it is still, or again, there."""
    global _now
    if point is not _now:
        _leave()
        _set_state(point.state)
        _now = point


def _leave() -> None:
    """The state is about to change."""
    global _now
    if _now.wanted and _now.state is None:
        _now.state = default_generator.get_state()
    _now = Point()


def _leaving(original: Any) -> Any:
    def changes(*args: Any, **kwargs: Any) -> Any:
        _leave()
        return original(*args, **kwargs)

    return changes


_set_state = default_generator.set_state
for _name in _LEAVING:
    setattr(default_generator, _name, _leaving(getattr(default_generator, _name)))
# A compiled function draws from the generator without asking Python.
JitExecutor.__call__ = _leaving(JitExecutor.__call__)
