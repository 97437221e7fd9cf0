"""What is wrapped can't be compiled: it says so itself, when MindSpore's graph compiler looks at it.

Graphs have no saved-tensor hooks. The compiler, left alone, reads the source of the wrappers and ends in an error about
some line of them. A call in PyNative passes nothing in this file.
"""

from __future__ import annotations

import sys
from typing import Any

from mindspore import nn

from hp_memory.errors import GraphModeError


def refusal(wrapped: Any) -> GraphModeError:
    """The error for one wrapped Cell or callable."""
    return GraphModeError(
        f"{wrapped._hp_part.name} is wrapped by hp_memory.activation, which works in PyNative only, and is compiled as "
        "a graph: graphs have no saved-tensor hooks.\n"
        "Set mindspore.set_context(mode=mindspore.PYNATIVE_MODE) and keep it outside mindspore.jit; a compiled model "
        "takes a graph plan (static recompute and HyperOffload) instead"
    )


def _refuse_if_asked_by(function: str, wrapped: Any) -> None:
    """Others may ask for the same attributes: a Cell that is given another child, a debugger."""
    if sys._getframe(2).f_code.co_name == function:
        raise refusal(wrapped)


class UncompilableCell:
    """Mixin for faces. ``cell_init_args`` is a part of the key by which the compiler knows a Cell."""

    __slots__ = ()

    @property
    def cell_init_args(self) -> str:
        _refuse_if_asked_by("get_object_key", self)
        return nn.Cell.cell_init_args.fget(self)

    @cell_init_args.setter
    def cell_init_args(self, value: str) -> None:
        nn.Cell.cell_init_args.fset(self, value)


class UncompilableCallable:
    """Mixin for wrapped callables. By ``__ms_class__`` the compiler asks whether it may compile an object."""

    @property
    def __ms_class__(self) -> bool:
        _refuse_if_asked_by("_is_ms_class", self)
        raise AttributeError("__ms_class__")
