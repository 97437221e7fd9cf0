"""A second face for a Cell: another object over the very same parameters, sub-cells and attributes.

A wrapper that holds the wrapped Cell as a child shows in parameter names, checkpoint keys and ``cells_and_names``.
A face doesn't: it is an instance of a subclass of the Cell's own class and shares its ``__dict__``; only ``construct``
differs. The Cell it was made of stays as it was.

Hooks that the Cell has when it gets its face belong to what the face stands for: MindFormers converts distributed
tensors in them, so that what a region takes and returns is what goes into and comes out of them. Such a face has hooks
of its own for whoever registers more afterwards (FSDP); these run outside.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from types import MethodType
from typing import Any

from mindspore import nn

from hp_memory.activation.graph_mode import UncompilableCell
from hp_memory.activation.native import Cell_


class _Face(UncompilableCell):
    """Mixed in before the Cell's class. ``_hp_part.run(args, kwargs)`` decides how ``construct`` is run."""

    __slots__ = ()  # the class made for each kind of Cell has them

    _hp_again: Callable[[nn.Cell], nn.Cell]
    _hp_override: Callable | None
    _hp_target: nn.Cell

    @property
    def construct(self) -> Callable:
        # A data descriptor, because MindSpore's mixed precision puts a ``construct`` into the (shared) instance dict.
        return self._hp_override or MethodType(_construct, self)

    @construct.setter
    def construct(self, replacement: Callable) -> None:
        object.__setattr__(self, "_hp_override", replacement)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "construct":
            object.__setattr__(self, "_hp_override", value)
        else:
            super().__setattr__(name, value)

    def __init_subclass__(cls, **_options: Any) -> None:
        """Registers nothing: the Cell's own ran when its class was made, and a face's class isn't another model."""

    def __deepcopy__(self, memo: dict) -> nn.Cell:
        face = self._hp_again(copy.deepcopy(self._hp_target, memo))
        memo[id(self)] = face
        return face

    def __copy__(self) -> nn.Cell:
        return self._hp_again(copy.copy(self._hp_target))

    def __reduce_ex__(self, _protocol: Any) -> tuple:
        # The class of a face has no place in its module: a pickle wraps the Cell anew.
        return self._hp_again, (self._hp_target,)


# Where a Cell keeps its hooks; they are made at their first use.
_HOOKS = (
    "_lazy_forward_pre_hook",
    "_lazy_forward_pre_hook_with_kwargs",
    "_lazy_forward_hook",
    "_lazy_forward_hook_with_kwargs",
    "_lazy_forward_hook_always_called",
    "_lazy_backward_pre_hook",
    "_lazy_backward_hook",
    "_cell_backward_pre_hook",
    "_cell_backward_hook",
)


def has_hooks(cell: nn.Cell) -> bool:
    """Whether calling the Cell does more than its ``construct``."""
    return any(getattr(cell, name, None) for name in _HOOKS)


def _own(name: str) -> property:
    def read(self: Any) -> Any:
        return self._hp_hooks.get(name)

    def write(self: Any, value: Any) -> None:
        self._hp_hooks[name] = value

    return property(read, write)


class _HookedFace(_Face):
    """The face of a Cell with hooks: has its own, which aren't in the shared ``__dict__``."""

    __slots__ = ()


for _name in _HOOKS:
    setattr(_HookedFace, _name, _own(_name))


def _construct(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self._hp_part.run(args, kwargs)


@cache
def _face_class(cls: type, kind: type) -> Any:
    slots = ("_hp_again", "_hp_hooks", "_hp_override", "_hp_part", "_hp_target")
    return type(cls.__name__, (kind, cls), {"__slots__": slots, "__module__": cls.__module__, "__doc__": cls.__doc__})


def face(target: nn.Cell, part: Any, again: Callable[[nn.Cell], nn.Cell], own_hooks: bool = False) -> nn.Cell:
    """Another object for ``target`` whose ``construct`` is ``part.run(args, kwargs)``; ``again`` wraps a copy.

    With ``own_hooks`` the Cell's are left to ``part``.
    """
    base = type(target)
    cls = _face_class(base.__bases__[1] if isinstance(target, _Face) else base, _HookedFace if own_hooks else _Face)
    made = cls.__new__(cls)
    Cell_.__init__(made, cls.__name__)
    for name, value in (
        ("__dict__", target.__dict__),
        ("_hp_again", again),
        ("_hp_hooks", {}),
        ("_hp_override", None),
        ("_hp_part", part),
        ("_hp_target", target),
    ):
        object.__setattr__(made, name, value)
    return made


def called_with_hooks(target: nn.Cell) -> Callable:
    """What calling the Cell does, hooks included."""

    def body(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    return body


def constructor(target: nn.Cell) -> Callable:
    """What the Cell computes, without its hooks (the face runs those) but under its mixed precision."""

    def body(*args: Any, **kwargs: Any) -> Any:
        return target.construct(*args, **kwargs)

    return body
