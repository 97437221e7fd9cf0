"""Walking the tensors inside arguments and results: tuples, lists, dicts and named tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mindspore import Tensor

Path = tuple[Any, ...]
"""Where a tensor stands in a call: ``(0, i, ...)`` from ``args[i]``, ``(1, name, ...)`` from ``kwargs[name]``."""

LOCAL = "to_local()"
"""Path step from a distributed tensor to the shard of this rank, which is what operations save."""


def is_distributed(value: Any) -> bool:
    return type(value) is not Tensor and hasattr(value, "to_local")


def _leaf(path: Path, value: Tensor) -> tuple[Path, Tensor]:
    return ((*path, LOCAL), value.to_local()) if is_distributed(value) else (path, value)


def call_tensors(args: tuple, kwargs: dict) -> list[tuple[Path, Tensor]]:
    """Every tensor of a call with its path, in order of arguments; the same object may appear twice."""
    found: list[tuple[Path, Tensor]] = []
    for i, value in enumerate(args):
        if isinstance(value, Tensor):
            found.append(_leaf((0, i), value))
        elif isinstance(value, (tuple, list, dict)):
            found.extend(_walk((0, i), value))
    for name, value in kwargs.items():
        if isinstance(value, Tensor):
            found.append(_leaf((1, name), value))
        elif isinstance(value, (tuple, list, dict)):
            found.extend(_walk((1, name), value))
    return found


def _walk(path: Path, value: Any) -> Iterator[tuple[Path, Tensor]]:
    if isinstance(value, Tensor):
        yield _leaf(path, value)
    elif isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            yield from _walk((*path, i), item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk((*path, key), item)


def resolve(path: Path, args: tuple, kwargs: dict) -> Any:
    """What stands at ``path`` in another call of the same shape. Raises LookupError or TypeError where nothing does."""
    value: Any = kwargs if path[0] else args
    for step in path[1:]:
        value = value.to_local() if step is LOCAL else value[step]
    return value


def spell(path: Path) -> str:
    """``args[1]['mask'][0]``, for error messages."""
    root = "kwargs" if path[0] else "args"
    return root + "".join(f".{step}" if step is LOCAL else f"[{step!r}]" for step in path[1:])


def map_tensors(tree: Any, fn: Callable[[Any], Any], kinds: Any = Tensor) -> Any:
    """The same containers with every leaf of ``kinds`` replaced by ``fn(leaf)``; other leaves stay as they are."""
    if isinstance(tree, kinds):
        return fn(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[map_tensors(item, fn, kinds) for item in tree])
    if isinstance(tree, (tuple, list)):
        return type(tree)([map_tensors(item, fn, kinds) for item in tree])
    if isinstance(tree, dict):
        # copy() keeps what a plain constructor would lose: the default of a defaultdict, an order.
        mapped = tree.copy()
        for key, item in tree.items():
            mapped[key] = map_tensors(item, fn, kinds)
        return mapped
    return tree
