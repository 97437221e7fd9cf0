"""Errors people read: one or two lines, the config path, the bad value, and what would have been accepted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


def nearest(value: object, accepted: Iterable[object]) -> str | None:
    """The accepted spelling closest to ``value``, or None where nothing is close."""
    close = difflib.get_close_matches(str(value), [str(a) for a in accepted], n=1, cutoff=0.5)
    return close[0] if close else None


class HPMemoryError(RuntimeError):
    """Base of every error this package raises on purpose."""


class ConfigError(HPMemoryError):
    """A setting that can't be used. The command line prints it and exits with code 2.

    Args:
        path: where the setting stands in the config, e.g. ``layout.save[1]``.
        value: the value that was refused.
        why: what is wrong with it, in words.
        accepted: what would have been taken; the nearest to ``meant`` is suggested.
        meant: what was misspelt, where it isn't the value but the key.
    """

    def __init__(
        self, path: str, value: object, why: str, accepted: Iterable[object] = (), meant: object = None
    ) -> None:
        names = [str(a) for a in accepted]
        near = nearest(value if meant is None else meant, names)
        hint = f"\n  did you mean {near!r}? " if near else "\n  " if names else ""
        options = f"accepted: {', '.join(names)}" if names else ""
        super().__init__(f"{path}={value!r}: {why}{hint}{options}")
        self.path, self.value, self.accepted, self.near = path, value, names, near


class ConfigErrors(ConfigError):
    """Several settings of one file at once, each in a line of its own. ``path`` and ``value`` are the first one's."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        count = f"\n{len(errors)} settings are refused" if len(errors) > 1 else ""
        RuntimeError.__init__(self, "\n".join(str(error) for error in errors) + count)
        first = errors[0]
        self.path, self.value, self.accepted, self.near = first.path, first.value, first.accepted, first.near
        self.errors = tuple(errors)


class InstallError(HPMemoryError):
    """A plan that can't be applied to this model, or is applied twice."""


class ReplayError(HPMemoryError):
    """A replay that would have given other numbers than the forward."""


class GraphModeError(HPMemoryError):
    """Something wrapped for PyNative was compiled as a graph."""


class NeedsHyperParallel(HPMemoryError):
    """What was asked for exists only in the real HyperParallel package."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what} needs the real hyper_parallel package, which isn't installed: {why}")


class UnusableHyperParallel(HPMemoryError):
    """What is installed under HyperParallel's name can't serve MindFormers."""

    def __init__(self, sentence: str) -> None:
        super().__init__(f"hyper_parallel is {sentence}")


class PlanMismatch(HPMemoryError):
    """What ran on a training step isn't what the plan says, or the ranks hold different plans."""


class NotFinite(HPMemoryError):
    """A loss or a tensor to be saved is infinite or no number: whatever is trained or saved after it is worthless."""


class ScheduleError(HPMemoryError):
    """A pipeline schedule that can't run: incomplete, waiting for itself, or mixing up messages."""


class SessionError(HPMemoryError):
    """A split backward or a recompute session used out of order: dw before dx, a third use, one left open."""


class HostCopyError(HPMemoryError):
    """A copy between device and host failed, or a tensor was written while it was copied."""
