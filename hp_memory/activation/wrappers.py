"""The public wrappers: a checkpoint boundary, and the regions inside it that are saved instead of replayed."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from functools import cached_property, partial
from types import MethodType
from typing import Any

from mindspore import nn

from hp_memory.activation import elision, exclude, faces, frames, native, observing
from hp_memory.activation.capture import Finding, owner_of
from hp_memory.activation.graph_mode import UncompilableCallable
from hp_memory.activation.invocation import Invocation
from hp_memory.errors import ReplayError
from hp_memory.host.window import Window


class Boundary:
    """What stays the same over the calls of one checkpointed thing: how it is replayed and what was learned of it."""

    def __init__(self, target: Any, name: str | None, early_stop: bool, context_fn: Callable | None = None) -> None:
        self.fn = _body(target)
        self._owner = owner_of(target)
        self.cell = target if isinstance(target, nn.Cell) else None  # whose face calls this boundary
        self.name = name or _name_of(target)
        self.early_stop = early_stop
        self.context_fn = context_fn
        self.plan = elision.Plan()

    @cached_property
    def cells(self) -> tuple[nn.Cell, ...]:
        """Whose train flags a replay restores; asked for at the first call, when the model is complete."""
        return tuple(cell for _, cell in self._owner.cells_and_names()) if self._owner is not None else ()

    def run(self, args: tuple, kwargs: dict) -> Any:
        if not native.recording():
            return self.fn(*args, **kwargs)
        frame = frames.current()
        if frame is not None:
            raise ReplayError(
                f"checkpoint {self.name} is called inside checkpoint {frame.call.boundary.name}: "
                "keep one boundary per block and remove the inner one"
            )
        return Invocation(self, args, kwargs).forward(args, kwargs)


class _Named:
    """A region that is replayed or plain: counted and named, nothing else."""

    def __init__(self, body: Callable, name: str) -> None:
        self.body = body
        self.name = name

    def run(self, args: tuple, kwargs: dict) -> Any:
        frame = frames.current()
        if frame is not None and frame.replaying:
            assert frame.ending is not None, "every replay has one"
            frame.ending.here()
            frame.named += 1
        elif frame is not None and frame.inside is None and observing.active is not None:
            frame.call.named.append(self.name)
        return observing.plain(self.name, self.body, args, kwargs)


class _Wrapped(UncompilableCallable):
    """A wrapped callable. Usable as a function, as an instance attribute, and as a method on a class."""

    def __init__(self, target: Callable, part: Any, again: Callable) -> None:
        self.__wrapped__ = target
        self.__name__ = _name_of(target)
        self.__doc__ = target.__doc__
        self._hp_part = part
        self._hp_again = again

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._hp_part.run(args, kwargs)

    def __get__(self, owner: Any, _cls: type | None = None) -> Any:
        return self if owner is None else MethodType(self, owner)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # not there yet while a copy is being made
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __deepcopy__(self, memo: dict) -> _Wrapped:
        return self._hp_again(copy.deepcopy(self.__wrapped__, memo))

    def __copy__(self) -> _Wrapped:
        return self._hp_again(copy.copy(self.__wrapped__))

    def __reduce_ex__(self, _protocol: Any) -> tuple:
        return self._hp_again, (self.__wrapped__,)


def _name_of(target: Any) -> str:
    return getattr(target, "__qualname__", None) or type(target).__name__


def _check_options(name: Any, early_stop: Any = False, context_fn: Any = None) -> None:
    if name is not None and not (isinstance(name, str) and name):
        raise TypeError(f"name must be a string with something in it, got {name!r}")
    if not isinstance(early_stop, bool):
        raise TypeError(f"early_stop must be True or False, got {early_stop!r}")
    if context_fn is not None and not callable(context_fn):
        raise TypeError(f"context_fn must be a callable that returns two context managers, got {context_fn!r}")


def _body(target: Any) -> Callable:
    if not callable(target):
        raise TypeError(f"expected a Cell or a callable, got {type(target).__name__}")
    return faces.constructor(target) if isinstance(target, nn.Cell) else target


def _wrap(target: Any, part: Any, again: Callable) -> Any:
    return faces.face(target, part, again) if isinstance(target, nn.Cell) else _Wrapped(target, part, again)


def _has_hooks(target: Any) -> bool:
    return isinstance(target, nn.Cell) and faces.has_hooks(target)


def _region_body(target: Any) -> Callable:
    """What a region computes: a Cell's hooks are part of it."""
    return faces.called_with_hooks(target) if _has_hooks(target) else _body(target)


def _wrap_region(target: Any, part: Any, again: Callable) -> Any:
    return faces.face(target, part, again, own_hooks=True) if _has_hooks(target) else _wrap(target, part, again)


def checkpoint_wrapper(
    target: Any, *, name: str | None = None, early_stop: bool = False, context_fn: Callable | None = None
) -> Any:
    """``target`` with its activations dropped in the forward and made again, by a replay, in backward.

    Args:
        target: a Cell (a Cell comes back, see :mod:`hp_memory.activation.faces`) or a callable.
        name: used in errors and reports; the class or function name by default.
        early_stop: end a replay as soon as backward has all it needs. The rest of the forward isn't replayed then,
            and a control flow that changes after that point goes undetected (and does no harm).
        context_fn: returns two context managers, for the forward and for the replay.

    Raises:
        TypeError: for a target that can't be called, or an option of another type.
    """
    _check_options(name, early_stop, context_fn)
    again = partial(checkpoint_wrapper, name=name, early_stop=early_stop, context_fn=context_fn)
    return _wrap(target, Boundary(target, name, early_stop, context_fn), again)


def checkpoint_exclude_wrapper(
    target: Any, *, name: str | None = None, save_output: bool | None = None, remake_inputs: bool = True
) -> Any:
    """``target`` as a region of the surrounding checkpoint that is saved: it runs once, and a replay skips it.

    Outside a checkpoint the wrapper does nothing.

    Args:
        target: a Cell or a callable.
        name: used in errors and reports.
        save_output: None keeps the output exactly if a replayed operation reads it (learned in the first forward);
            True always keeps it; False claims that no replay reads it, which is verified.
        remake_inputs: leave inputs that the body saves to the replay; False keeps them (as a reference to compare).

    Raises:
        TypeError: for a target that can't be called, or an option of another type.
    """
    if not isinstance(remake_inputs, bool):
        raise TypeError(f"remake_inputs must be True or False, got {remake_inputs!r}")
    again = partial(checkpoint_exclude_wrapper, remake_inputs=remake_inputs)
    return _excluded(target, name, save_output, remake_inputs, None, again)


def offload_wrapper(target: Any, *, window: Window, name: str | None = None, save_output: bool | None = None) -> Any:
    """``target`` as a region whose saved tensors wait on the host, and are back before its backward.

    Inside a checkpoint it is a saved region (:func:`checkpoint_exclude_wrapper`): it runs once, and an output that a
    replay needs waits on the host too. It works outside every checkpoint as well.

    Args:
        target: a Cell or a callable.
        window: decides what moves and when; one for all regions of a model part.
        name: used in errors and reports.
        save_output: as in :func:`checkpoint_exclude_wrapper`.

    Raises:
        TypeError: for a target that can't be called, or an option of another type.
    """
    if not isinstance(window, Window):
        raise TypeError(f"window must be a Window, got {window!r}")
    return _excluded(target, name, save_output, True, window, partial(offload_wrapper, window=window))


def _excluded(
    target: Any, name: str | None, save_output: bool | None, remake_inputs: bool, window: Window | None, again: Callable
) -> Any:
    _check_options(name)
    if save_output is not None and not isinstance(save_output, bool):
        raise TypeError(f"save_output must be None, True or False, got {save_output!r}")
    body, owner = _region_body(target), owner_of(target)
    part = exclude.Region(body, owner, name or _name_of(target), save_output, remake_inputs, window)
    return _wrap_region(target, part, partial(again, name=name, save_output=save_output))


def region(target: Any, *, name: str) -> Any:
    """Names a part that is *not* excluded, for observation only; computes exactly what ``target`` does."""
    if name is None:
        raise TypeError("a region needs a name: it exists to be reported under it")
    _check_options(name)
    return _wrap_region(target, _Named(_region_body(target), name), partial(region, name=name))


class _Learned:
    """What was learned of living objects, known by identity: they may be equal to each other, or have no hash."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref, dict]] = {}

    def of(self, owner: Any) -> dict:
        """What is kept for as long as ``owner`` lives; nothing is where a class with slots allows no weak reference."""
        key = id(owner)
        if key not in self._found:
            try:
                self._found[key] = weakref.ref(owner, lambda _: self._found.pop(key, None)), {}
            except TypeError:
                return {}
        return self._found[key][1]


_plans = _Learned()


def checkpoint(fn: Callable, *args: Any, name: str | None = None, early_stop: bool = False, **kwargs: Any) -> Any:
    """Calls ``fn(*args, **kwargs)`` once under a checkpoint.

    What the first forward teaches is kept for as long as ``fn`` (or the object a bound method belongs to) lives. A
    lambda made anew in each step is watched in each step, and so is a method of a class whose slots leave out
    ``__weakref__``; wrap what is called often instead.
    """
    _check_options(name, early_stop)
    # A Cell is called as one here, with its hooks; only a face has done that part already.
    boundary = Boundary(fn.__call__ if isinstance(fn, nn.Cell) else fn, name or _name_of(fn), early_stop)
    known = _plans.of(getattr(fn, "__self__", fn))
    method = getattr(fn, "__func__", None)  # a bound method is a new object at each access
    boundary.plan = known.setdefault(method, boundary.plan)
    return boundary.run(args, kwargs)


def findings(wrapped: Any) -> list[Finding]:
    """What became of each tensor that the excluded regions of a checkpointed thing save, and of their outputs.

    Empty before its first forward. Elided outputs are in it with ``how="elided"``.
    """
    found: list[Finding] = []
    for part, kept in elision.describe(wrapped._hp_part.plan):
        found += part.findings
        for leaf, needed in enumerate(kept):
            how = "kept for replay" if needed or part.save_output else "elided: no replay reads it"
            found.append(Finding(part.name, f"output {leaf}", how, (), "", 0))
    return found
