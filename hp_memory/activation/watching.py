"""Watches a first forward: which operations run outside excluded regions, and whose outputs they read.

MindSpore's dispatch mode sees operations. It doesn't see what the host reads (``asnumpy``, ``bool``, an integer
index), nor, inside a custom function's forward, which tensor the copy of a view was made from. So these methods of
Tensor, and ``_Function.apply``, are replaced while a forward is watched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mindspore import MsDispatchMode, Tensor

from hp_memory.activation import frames, writing
from hp_memory.activation.elision import read_by
from hp_memory.activation.trees import call_tensors
from hp_memory.errors import ReplayError
from hp_memory.mindspore.private import Function as _Function

# The hooks detach what they pack by this operation while a dispatch mode is on.
_DETACH = "StopGradient"
_APPLY = _Function.__dict__["apply"]


def _note(frame: frames.Frame, tensor: Tensor, reader: str) -> None:
    key = read_by(frame, tensor)
    if key is not None:
        frame.reads.setdefault(key, reader)


class Watch(MsDispatchMode):
    """Notes every operation outside excluded regions, and the excluded outputs it takes."""

    def __init__(self, frame: frames.Frame) -> None:
        self.frame = frame
        self.names: list[str] = []

    def __enter__(self) -> Watch:
        self.frame.reads, self.frame.nodes = {}, {}
        _host_reads.start()
        return super().__enter__()

    def __exit__(self, *exc: Any) -> bool:
        _host_reads.stop()
        return super().__exit__(*exc)

    def __ms_dispatch__(self, func: Any, args: tuple, kwargs: dict | None = None) -> Any:
        if self.frame.inside is None and func.name != _DETACH:
            self.names.append(func.name)
            self._scan(func.name, args)
        if self.frame.capture is not None:
            for target in writing.targets(func.name, args):
                self.frame.capture.written(target)
        return func(*args, **(kwargs or {}))

    def _scan(self, reader: str, values: Any) -> None:
        for value in values:
            if isinstance(value, Tensor):
                _note(self.frame, value, reader)
            elif isinstance(value, (tuple, list)):
                self._scan(reader, value)


class Retrace(MsDispatchMode):
    """Compares the operations of a replay with those of the watched forward.

    With ``may_skip`` the replay may leave out operations: the user's ``context_fn`` tells a model that it is replayed,
    so that it doesn't count tokens or log losses a second time.
    """

    def __init__(self, frame: frames.Frame, names: list[str], block: str, may_skip: bool = False) -> None:
        self.frame = frame
        self.names = names
        self.block = block
        self.may_skip = may_skip
        self.done = 0

    def __ms_dispatch__(self, func: Any, args: tuple, kwargs: dict | None = None) -> Any:
        if self.may_skip and func.name in self.names[self.done :]:
            self.done = self.names.index(func.name, self.done)
        if func.name == _DETACH or self.frame.inside is not None:
            return func(*args, **(kwargs or {}))
        expected = self.names[self.done] if self.done < len(self.names) else "nothing"
        if func.name != expected:
            raise ReplayError(
                f"the replay of {self.block} runs {func.name} where its forward ran {expected} "
                f"(operation {self.done}): control flow changed between forward and replay"
            )
        self.done += 1
        return func(*args, **(kwargs or {}))


class _HostReads:
    """Replaces the methods by which the host reads a tensor, for as long as any forward is watched."""

    METHODS = ("__getitem__", "__setitem__", "__bool__", "__int__", "__float__", "__index__", "__str__", "__repr__")
    METHODS += ("__array__", "__iter__", "asnumpy", "tolist", "item", "numpy")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched = 0
        self._own: dict[str, Callable | None] = {}

    def start(self) -> None:
        with self._lock:
            self._watched += 1
            if self._watched == 1:
                for name in self.METHODS:
                    if hasattr(Tensor, name):
                        self._own[name] = Tensor.__dict__.get(name)
                        setattr(Tensor, name, _noting(name, getattr(Tensor, name)))
                _Function.apply = classmethod(_noting_apply)

    def stop(self) -> None:
        with self._lock:
            self._watched -= 1
            if self._watched == 0:
                for name, own in self._own.items():
                    if own is None:  # inherited
                        delattr(Tensor, name)
                    else:
                        setattr(Tensor, name, own)
                self._own.clear()
                _Function.apply = _APPLY


def _noting(name: str, original: Callable) -> Callable:
    def read(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        frame = frames.current()
        if frame is not None and frame.reads is not None and frame.inside is None:
            _note(frame, self, f"Tensor.{name}")
        return original(self, *args, **kwargs)

    return read


def _noting_apply(cls: type, *args: Any, **kwargs: Any) -> Any:
    frame = frames.current()
    if frame is not None and frame.reads is not None and frame.inside is None:
        for _, tensor in call_tensors(args, kwargs):
            _note(frame, tensor, f"{cls.__name__}.apply")
    return _APPLY.__func__(cls, *args, **kwargs)


_host_reads = _HostReads()
