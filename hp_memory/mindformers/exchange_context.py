"""What MindFormers' token dispatch leaves for the combine of the same call, kept for that call alone.

``ExpertParallel`` keeps it in one attribute per layer, ``ctx``, until the next dispatch overwrites it: a forward that
runs on another thread beside a backward would find the other micro-batch's, and between steps the attribute would hold
the last call's graph.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any


class _OfTheCall:
    """An attribute that each thread has for itself and that can be read once."""

    def __init__(self) -> None:
        self._held = threading.local()

    def __get__(self, owner: Any, _cls: type | None = None) -> Any:
        return self if owner is None else vars(self._held).pop(str(id(owner)), None)

    def __set__(self, owner: Any, value: Any) -> None:
        if value is not None:
            vars(self._held)[str(id(owner))] = value


@cache
def _with_context_of_the_call(cls: type) -> type:
    names = {"ctx": _OfTheCall(), "__module__": cls.__module__, "__doc__": cls.__doc__}
    return type(cls.__name__, (cls,), names)


def keep_for_the_call(exchange: Any) -> None:
    """Gives an ``ExpertParallel`` object such a ``ctx``; does nothing the second time."""
    if not isinstance(getattr(type(exchange), "ctx", None), _OfTheCall):
        vars(exchange).pop("ctx", None)
        cls: type = type(exchange)
        exchange.__class__ = _with_context_of_the_call(cls)
