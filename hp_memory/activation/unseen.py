"""Reads that a dispatch mode doesn't see: by the host, by compiled or custom functions, for copies, on other threads.

The methods through which they go are replaced for as long as a forward is watched or a replay has stand-ins out. What
they are called with is shown to the watch or the shade that the tensor belongs to; then they do what they always did.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from mindspore import Parameter, Tensor

from hp_memory.activation import frames, marks
from hp_memory.activation.trees import tensors_in
from hp_memory.mindspore.private import Function, JitExecutor

_OF_TENSORS = (
    *("__bool__", "__int__", "__float__", "__index__", "__str__", "__repr__", "__format__", "__array__"),
    *("__iter__", "__contains__", "__setitem__", "__reduce_ex__", "__copy__", "__deepcopy__"),
    *("asnumpy", "tolist", "item", "numpy", "set_data", "assign_value"),
)
FUNCTION = ".apply"  # after the name of a custom function where it stands for an operation
_APPLY = Function.__dict__["apply"]


def show(tensor: Tensor, reader: str) -> None:
    """Tells whom it concerns that ``reader`` takes the values of ``tensor``."""
    mark = marks.of(tensor)
    frame = frames.current()
    if type(mark) is marks.Ghost:
        mark.shade.refuse(mark, reader)
    elif type(mark) is marks.Made and mark.watch is not None:
        mark.watch.read_unseen(tensor, reader, frame)
    elif frame is not None and frame.watch is not None:
        frame.watch.read_unseen(tensor, reader, frame)


def _showing(reader: str, original: Callable) -> Callable:
    def read(*args: Any, **kwargs: Any) -> Any:
        for tensor in tensors_in((args, kwargs)):
            show(tensor, reader)
        return original(*args, **kwargs)

    return read


def _showing_source(reader: str, original: Callable) -> Callable:
    """For ``__init__``: what is being made isn't a tensor yet."""

    def make(self: Tensor, *args: Any, **kwargs: Any) -> None:
        for tensor in tensors_in((args, kwargs)):
            show(tensor, reader)
        original(self, *args, **kwargs)

    return make


def _showing_index(reader: str, original: Callable) -> Callable:
    """Slices are operations, which the dispatch mode sees; an integer index is none."""

    def read(self: Tensor, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if not all(isinstance(part, slice) for part in parts):
            show(self, reader)
            return original(self, index)
        frame = frames.current()
        watch = frame.watch if frame is not None else None
        before = watch.seen if watch is not None else 0
        out = original(self, index)
        if watch is not None and watch.seen == before:
            show(self, reader)
        return out

    return read


def _showing_apply(_reader: str, _original: Callable) -> classmethod:
    def apply(cls: type, *args: Any, **kwargs: Any) -> Any:
        function = partial(_APPLY.__func__, cls)
        frame = frames.current()
        watcher = (frame.watch or frame.shade) if frame is not None and frame.inside is None else None
        if watcher is None:
            return function(*args, **kwargs)
        return watcher.apply(cls.__name__, function, args, kwargs)

    return classmethod(apply)


def _telling_of_threads(_reader: str, original: Callable) -> Callable:
    def start(*args: Any, **kwargs: Any) -> Any:
        frame = frames.current()
        if frame is not None and frame.watch is not None and frame.inside is None:
            frame.watch.trace.all_needed = "another thread"
        return original(*args, **kwargs)

    return start


_PLACES: list[tuple[type, str, Callable]] = [
    *((Tensor, name, _showing) for name in _OF_TENSORS),
    (Tensor, "__getitem__", _showing_index),
    (Tensor, "__init__", _showing_source),
    (Parameter, "__init__", _showing_source),
    (Parameter, "set_data", _showing),
    (JitExecutor, "__call__", _showing),
    (Function, "apply", _showing_apply),
    (threading.Thread, "start", _telling_of_threads),
    (ThreadPoolExecutor, "submit", _telling_of_threads),
]


class _Guards:
    """Puts the replacements in place while anybody needs them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._own: list[tuple[type, str, Any]] = []

    def start(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                for owner, name, replacing in _PLACES:
                    if hasattr(owner, name):
                        self._own.append((owner, name, owner.__dict__.get(name)))
                        setattr(owner, name, replacing(f"{owner.__name__}.{name}", getattr(owner, name)))

    def stop(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                for owner, name, own in self._own:
                    if own is None:  # inherited
                        delattr(owner, name)
                    else:
                        setattr(owner, name, own)
                self._own.clear()


guards = _Guards()
