"""A second face for a Cell: another object over the very same parameters, sub-cells and attributes.

A wrapper that holds the wrapped Cell as a child shows in parameter names, checkpoint keys and ``cells_and_names``.
A face doesn't: it is an instance of a subclass of the Cell's own class and shares its ``__dict__``; only ``construct``
differs. The Cell it was made of stays as it was.
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

    __slots__ = ()

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

    def __deepcopy__(self, memo: dict) -> nn.Cell:
        face = self._hp_again(copy.deepcopy(self._hp_target, memo))
        memo[id(self)] = face
        return face


def _construct(self: Any, *args: Any, **kwargs: Any) -> Any:
    return self._hp_part.run(args, kwargs)


@cache
def _face_class(cls: type) -> type:
    slots = ("_hp_again", "_hp_override", "_hp_part", "_hp_target")
    return type(cls.__name__, (_Face, cls), {"__slots__": slots, "__module__": cls.__module__, "__doc__": cls.__doc__})


def face(target: nn.Cell, part: Any, again: Callable[[nn.Cell], nn.Cell]) -> nn.Cell:
    """Another object for ``target`` whose ``construct`` is ``part.run(args, kwargs)``; ``again`` wraps a deep copy."""
    base = type(target)
    cls = _face_class(base.__bases__[1] if isinstance(target, _Face) else base)
    made = cls.__new__(cls)
    Cell_.__init__(made, cls.__name__)
    for name, value in (
        ("__dict__", target.__dict__),
        ("_hp_again", again),
        ("_hp_override", None),
        ("_hp_part", part),
        ("_hp_target", target),
    ):
        object.__setattr__(made, name, value)
    return made


def constructor(target: nn.Cell) -> Callable:
    """What the Cell computes, without its hooks (the face runs those) but under its mixed precision."""

    def body(*args: Any, **kwargs: Any) -> Any:
        return target.construct(*args, **kwargs)

    return body
