"""Places for regions that MindFormers computes inside one method: a part of ours, made of methods, runs in its stead.

A part computes what the method does, with the same operations in the same order, through the same sub-cells: parameter
names, checkpoint keys and hooks are what they were. Its own methods are looked up on it at every call, so that each can
be wrapped.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import CodeType
from typing import Any, ClassVar, TypeVar

from mindspore import nn

from hp_memory.errors import InstallError


class Part:
    """Runs in place of a method of ``cell``.

    Attributes:
        module: where MindFormers looks names up; what is replaced there (a kernel's stand-in) is found there.
        names: what the method uses and calls its variables, which tell versions of MindFormers apart.
    """

    METHOD: ClassVar[str] = "construct"
    INNER: ClassVar[tuple[str, ...]] = ()
    """Methods, or functions of the module, whose work the part does itself too."""
    KNOWN: ClassVar[str] = ""
    """All names that these use, in 2.0 and in 2.1, by spaces. A version that uses others computes something else."""

    def __init__(self, cell: Any) -> None:
        self.cell = cell
        self.module = importlib.import_module(type(cell).__module__)
        self.names = {name for code in _codes(cell, self.METHOD) for name in (*code.co_names, *code.co_varnames)}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the replaced method is called with, and returns."""
        raise NotImplementedError


P = TypeVar("P", bound=Part)


def part_of(cell: Any, kind: type[P], path: str) -> P:
    """The part that runs in place of a method of ``cell``, put there at the first call; it changes no number.

    Raises:
        InstallError: if the installed MindFormers computes it in a way that ``kind`` doesn't know, or something else
            has been put in its place.
    """
    mark, where = f"_hp_part_of_{kind.METHOD}", f"{path}.{kind.METHOD}"
    known = vars(cell).get(mark)
    if known is not None:
        return known
    if not any(_codes(cell, kind.METHOD)):
        raise InstallError(f"{where}: this MindFormers' {type(cell).__name__} has no such method")
    if kind.METHOD in vars(cell):
        raise InstallError(f"{where} is replaced by {vars(cell)[kind.METHOD]!r}: its regions can't be told apart")
    used = {name for method in (kind.METHOD, *kind.INNER) for code in _codes(cell, method) for name in code.co_names}
    unknown = sorted(used - set(kind.KNOWN.split()))
    if unknown:
        what = f"this MindFormers' {type(cell).__name__} computes in another way (it uses {', '.join(unknown)})"
        raise InstallError(f"{where}: {what}")
    part = kind(cell)
    object.__setattr__(cell, mark, part)
    object.__setattr__(cell, kind.METHOD, part.forward)
    return part


def _codes(cell: Any, name: str) -> Iterator[CodeType]:
    """The code of a method in the cell's own classes, or else of a function of its module."""
    classes = [cls for cls in type(cell).__mro__ if issubclass(cls, nn.Cell) and cls is not nn.Cell] or [type(cell)]
    found = [vars(cls)[name] for cls in classes if name in vars(cls)]
    if not found:
        module = importlib.import_module(type(cell).__module__)
        found = [getattr(module, name)] if hasattr(module, name) else []
    return (function.__code__ for function in found if hasattr(function, "__code__"))
