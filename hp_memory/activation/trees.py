"""Walking what is given to a call and what comes back: tensors inside containers, arrays and plain objects."""

from __future__ import annotations

import copy
import dataclasses
import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from hp_memory.activation.distributed import is_distributed

Path = tuple[Any, ...]
"""Where a tensor stands in a call: ``(0, i, ...)`` from ``args[i]``, ``(1, name, ...)`` from ``kwargs[name]``."""

LOCAL = "to_local()"
"""Path step from a distributed tensor to the shard of this rank, which is what operations save."""

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: made by a class statement
# Made by class statements too, but never a container of somebody's results.
_CLOSED = (nn.Cell, type, types.ModuleType, types.FunctionType, types.MethodType, functools.partial, BaseException)


class Attribute(str):
    """Path step to an attribute of an object."""

    __slots__ = ()


@functools.cache
def _is_record_class(cls: type) -> bool:
    """A class whose instances are their attributes and nothing else: a dataclass, or written like one."""
    if issubclass(cls, types.SimpleNamespace):
        return True
    return (
        bool(cls.__flags__ & _HEAP_TYPE)
        and cls.__new__ is object.__new__
        and not issubclass(cls, _CLOSED)
        and cls.__module__.partition(".")[0] not in ("mindspore", "threading", "logging", "weakref", "enum")
    )


def attributes(value: Any) -> dict[str, Any] | None:
    """What ``value`` consists of if it is a plain object; None for everything else."""
    cls: type = type(value)
    if not _is_record_class(cls):
        return None
    found = dict(getattr(value, "__dict__", ()))
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def call_tensors(args: tuple, kwargs: dict) -> list[tuple[Path, Tensor]]:
    """Every tensor of a call with its path, in order of arguments; the same object may appear twice."""
    found: list[tuple[Path, Tensor]] = []
    for root, values in ((0, enumerate(args)), (1, kwargs.items())):
        for key, value in values:
            if isinstance(value, Tensor):
                found.append(_leaf((root, key), value))
            elif not is_number(value):
                found.extend(_walk((root, key), value, set()))
    return found


def _leaf(path: Path, value: Tensor) -> tuple[Path, Tensor]:
    return ((*path, LOCAL), value.to_local()) if is_distributed(value) else (path, value)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors in tuples, lists and dicts, as handed over: a distributed one may still be in the making."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


def is_number(value: Any) -> bool:
    """Nothing in it, and nobody can change it."""
    return value is None or type(value) in (int, float, bool, str)


def _walk(path: Path, value: Any, inside: set[int]) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield _leaf(path, value)
    elif not is_number(value) and id(value) not in inside:
        steps = _steps(value)
        for step, item in steps:
            yield from _walk((*path, step), item, inside | {id(value)})


def _steps(value: Any) -> list[tuple[Any, Any]]:
    """(path step, item) of everything directly in ``value``."""
    if isinstance(value, (tuple, list, deque)):
        return list(enumerate(value))
    if isinstance(value, dict):
        return list(value.items())
    return [(Attribute(name), item) for name, item in (attributes(value) or {}).items()]


def resolve(path: Path, args: tuple, kwargs: dict) -> Any:
    """What stands at ``path`` in another call of the same shape. Raises LookupError, TypeError or AttributeError."""
    value: Any = kwargs if path[0] else args
    for step in path[1:]:
        value = _taken(value, step)
    return value


def _taken(value: Any, step: Any) -> Any:
    if step is LOCAL:
        return value.to_local()
    return getattr(value, step) if type(step) is Attribute else value[step]


def spell(path: Path) -> str:
    """``args[1]['mask'][0].hidden``, for error messages."""
    root = "kwargs" if path[0] else "args"
    return root + "".join(f".{s}" if s is LOCAL or type(s) is Attribute else f"[{s!r}]" for s in path[1:])


def map_tensors(tree: Any, fn: Callable[[Any], Any], kinds: Any = Tensor) -> Any:
    """``Mapping(fn, kinds).of(tree)``."""
    if isinstance(tree, kinds):
        return fn(tree)
    return tree if is_number(tree) else Mapping(fn, kinds).of(tree)


class Mapping:
    """New containers, arrays and objects like given ones, every leaf of ``kinds`` replaced by ``fn(leaf)``.

    What stands in several places is one object in the result too. Cells, functions and objects that aren't written in
    Python stay as they are, and so do plain objects without a leaf inside, which may be anybody's.

    Attributes:
        closed: objects that weren't looked into.
        shared: (object, copy) of plain objects without a leaf.
    """

    def __init__(self, fn: Callable[[Any], Any], kinds: Any = Tensor) -> None:
        self.fn, self.kinds = fn, kinds
        self.closed: list[Any] = []
        self.shared: list[tuple[Any, Any]] = []
        self._leaves = 0
        self._made: dict[int, tuple[Any, Any]] = {}  # with the originals, so that their ids stay theirs

    def of(self, tree: Any) -> Any:
        if isinstance(tree, self.kinds):
            self._leaves += 1
            return self.fn(tree)
        if is_number(tree):
            return tree
        if id(tree) in self._made:
            return self._made[id(tree)][1]
        if isinstance(tree, tuple):
            items = [self.of(item) for item in tree]
            return self._note(tree, type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items))
        if isinstance(tree, (list, deque)):
            return self._filled(tree, self._note(tree, copy.copy(tree)), enumerate(tree))
        if isinstance(tree, dict):
            # copy() keeps what a plain constructor would lose: the default of a defaultdict, an order.
            return self._filled(tree, self._note(tree, tree.copy()), tree.items())
        if isinstance(tree, (np.ndarray, set, bytearray)):
            self.closed.append(tree)
            return self._note(tree, tree.copy())
        return self._object(tree)

    def _note(self, tree: Any, made: Any) -> Any:
        self._made[id(tree)] = tree, made
        return made

    def _filled(self, tree: Any, made: Any, items: Iterable[tuple[Any, Any]]) -> Any:
        for key, item in items:
            made[key] = self.of(item)
        return made

    def _object(self, tree: Any) -> Any:
        found = attributes(tree)
        if found is None:
            self.closed.append(tree)
            return tree
        cls: Any = type(tree)
        leaves, made = self._leaves, self._note(tree, cls.__new__(cls))
        for name, item in found.items():
            object.__setattr__(made, name, self.of(item))
        if self._leaves == leaves and not (dataclasses.is_dataclass(tree) or isinstance(tree, types.SimpleNamespace)):
            self.shared.append((tree, made))
            return self._note(tree, tree)
        return made


def difference(before: Any, after: Any, path: Path = (), inside: frozenset[int] = frozenset()) -> Path | None:
    """Where ``after`` isn't what its copy ``before`` is any more; None where nothing changed."""
    if before is after or id(after) in inside:
        return None
    if type(before) is not type(after) or isinstance(after, Tensor):
        return path
    if is_number(after) or isinstance(after, (np.ndarray, set, bytearray)):
        return None if _same_values(before, after) else path
    if not isinstance(after, (tuple, list, deque, dict)) and attributes(after) is None:
        return path
    old, new = _steps(before), _steps(after)
    if [step for step, _ in old] != [step for step, _ in new]:
        return path
    for (step, was), (_, now) in zip(old, new, strict=True):
        found = difference(was, now, (*path, step), inside | {id(after)})
        if found is not None:
            return found
    return None


def _same_values(before: Any, after: Any) -> bool:
    if isinstance(after, np.ndarray):
        return before.dtype == after.dtype and before.shape == after.shape and before.tobytes() == after.tobytes()
    return before == after
