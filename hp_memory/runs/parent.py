"""Ending with one's parent: what started a process may be killed before it can end it."""

from __future__ import annotations

import ctypes
import signal
from contextlib import suppress

_SET_PARENT_DEATH_SIGNAL = 1


def prctl(option: int, value: int) -> None:
    """Linux' prctl; nothing where there is none."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Has the kernel kill this process as soon as its parent has ended."""
    prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
