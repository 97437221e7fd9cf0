"""The public wrappers: a checkpoint boundary, and the regions inside it that are saved instead of replayed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

from mindspore import nn

from hp_memory.activation import exclude, faces, frames, native, observing
from hp_memory.activation.invocation import Invocation
from hp_memory.errors import ReplayError


class Boundary:
    """What stays the same over the calls of one checkpointed thing: how it is replayed and what was learned of it."""

    __slots__ = ("cells", "context_fn", "early_stop", "fn", "name", "plan")

    def __init__(self, fn: Callable, name: str, early_stop: bool, context_fn: Callable | None, cells: tuple) -> None:
        self.fn = fn
        self.name = name
        self.early_stop = early_stop
        self.context_fn = context_fn
        self.cells = cells  # whose train flags a replay restores
        self.plan = None

    def run(self, args: tuple, kwargs: dict) -> Any:
        if not native.recording():
            return self.fn(*args, **kwargs)
        frame = frames.current()
        if frame is not None:
            raise ReplayError(
                f"checkpoint {self.name} is called inside checkpoint {frame.invocation.boundary.name}: "
                "keep one boundary per block and remove the inner one"
            )
        return Invocation(self, args, kwargs).forward(self.fn, args, kwargs)


class _Wrapped:
    """A wrapped callable. Usable as a function, as an instance attribute, and as a method on a class."""

    def __init__(self, target: Callable, run: Callable[[tuple, dict], Any], again: Callable) -> None:
        self.__wrapped__ = target
        self.__name__ = _name_of(target)
        self.__doc__ = target.__doc__
        self._run = run
        self._again = again

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(args, kwargs)

    def __get__(self, owner: Any, _cls: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo: dict) -> _Wrapped:
        import copy

        return self._again(copy.deepcopy(self.__wrapped__, memo))


def _name_of(target: Any) -> str:
    return getattr(target, "__qualname__", None) or type(target).__name__


def _wrap(target: Any, run: Callable, again: Callable) -> Any:
    return faces.face(target, run, again) if isinstance(target, nn.Cell) else _Wrapped(target, run, again)


def _body(target: Any) -> Callable:
    if not callable(target):
        raise TypeError(f"expected a Cell or a callable, got {type(target).__name__}")
    return faces.constructor(target) if isinstance(target, nn.Cell) else target


def _cells_of(target: Any) -> tuple:
    owner = getattr(target, "__self__", target)
    return tuple(cell for _, cell in owner.cells_and_names()) if isinstance(owner, nn.Cell) else ()


def checkpoint_wrapper(
    target: Any, *, name: str | None = None, early_stop: bool = False, context_fn: Callable | None = None
) -> Any:
    """``target`` with its activations dropped in the forward and made again, by a replay, in backward.

    Args:
        target: a Cell (a Cell comes back, see :mod:`hp_memory.activation.faces`) or a callable.
        name: used in errors and reports; the class or function name by default.
        early_stop: end a replay as soon as backward has all it needs. The rest of the forward isn't replayed then,
            and a control flow that changes behind that point goes unseen (and does no harm).
        context_fn: returns two context managers, for the forward and for the replay.
    """
    name = name or _name_of(target)
    boundary = Boundary(_body(target), name, early_stop, context_fn, _cells_of(target))
    return _wrap(
        target,
        boundary.run,
        lambda other: checkpoint_wrapper(other, name=name, early_stop=early_stop, context_fn=context_fn),
    )


def checkpoint_exclude_wrapper(
    target: Any, *, name: str | None = None, save_output: bool | None = None, remake_inputs: bool = True
) -> Any:
    """``target`` as a region of the surrounding checkpoint that is saved: it runs once, and a replay skips it.

    Outside a checkpoint the wrapper does nothing.

    Args:
        target: a Cell or a callable.
        name: used in errors and reports.
        save_output: None keeps the output exactly if a replayed operation reads it (learned in the first forward);
            True always keeps it; False claims that no replay reads it, and a replay that does raises.
        remake_inputs: leave inputs that the body saves to the replay; False keeps them (as a reference to compare).
    """
    if save_output not in (None, True, False):
        raise TypeError(f"save_output must be None, True or False, got {save_output!r}")
    name = name or _name_of(target)
    region = exclude.Region(_body(target), name, save_output, remake_inputs)
    return _wrap(
        target,
        lambda args, kwargs: exclude.run(region, args, kwargs),
        lambda other: checkpoint_exclude_wrapper(
            other, name=name, save_output=save_output, remake_inputs=remake_inputs
        ),
    )


def region(target: Any, *, name: str) -> Any:
    """Names a part that is *not* excluded, for observation only; computes exactly what ``target`` does."""
    body = _body(target)
    return _wrap(
        target,
        lambda args, kwargs: observing.plain(name, body, args, kwargs),
        lambda other: region(other, name=name),
    )


_boundaries: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def checkpoint(fn: Callable, *args: Any, name: str | None = None, early_stop: bool = False, **kwargs: Any) -> Any:
    """Calls ``fn(*args, **kwargs)`` once under a checkpoint; what was learned of ``fn`` is kept while it lives."""
    owner = getattr(fn, "__func__", fn)
    return _boundary_of(fn, owner, name, early_stop).run(args, kwargs)


def _boundary_of(fn: Callable, owner: Any, name: str | None, early_stop: bool) -> Boundary:
    made = Boundary(_body(fn), name or _name_of(fn), early_stop, None, _cells_of(fn))
    if owner is not fn:  # a bound method is a new object at each access
        return made
    kept = _boundaries.get(fn)
    return kept or _boundaries.setdefault(fn, made)
