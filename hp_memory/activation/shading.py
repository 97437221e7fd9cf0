"""Stand-ins for outputs that weren't kept, and the replay around them.

A stand-in is a tensor of the right shape and dtype on the meta device: whatever reads its values raises. Operations
that were dead in the watched forward may take it all the same: they run on fresh memory of no value, for the shape of
what they make, and what they make is a stand-in again. So no value of it can reach anything live, and this holds for
every replay and not only for the one that was watched.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mindspore import MsDispatchMode, Tensor, mint

from hp_memory.activation import frames, marks
from hp_memory.activation.trees import tensors_in
from hp_memory.activation.unseen import FUNCTION, guards
from hp_memory.errors import ReplayError

if TYPE_CHECKING:
    from hp_memory.activation.exclude import Region

_DETACH = "StopGradient"  # by this operation, which saves nothing, the hooks detach what they pack


class StandIn:
    """What a record has in place of an output that no replay needs.

    Attributes:
        until: see ``marks.Ghost``.
    """

    __slots__ = ("requires_grad", "template", "until")

    def __init__(self, output: Tensor, until: int) -> None:
        self.requires_grad = output._requires_grad
        self.template = output.to("meta")
        self.until = until

    def lend(self, shade: Shade, region: Region) -> Tensor:
        """A tensor for one replay. Never shared: after a failed read MindSpore turns the object into zeros."""
        shade.enter()
        return _ghost(self.template.data, marks.Ghost(shade, region, self.until), self.requires_grad)


def _ghost(meta: Tensor, mark: marks.Ghost, requires_grad: bool) -> Tensor:
    marks.put(meta, mark)
    if requires_grad:
        meta.requires_grad_()
    return meta


class Shade(MsDispatchMode):
    """Lets dead operations take stand-ins, and nothing else. On from the first stand-in to the end of the replay.

    Attributes:
        dead: names of the operations that took stand-ins' values in no forward that was watched.
        seen: how many operations came by.
        last: name of the last one.
    """

    def __init__(self, frame: frames.Frame, dead: frozenset[str], on_meta: bool) -> None:
        self.frame: frames.Frame | None = frame
        self.dead = dead
        self.seen = 0
        self.last: str | None = None
        self.on_meta = on_meta  # all of the block is, so that a meta tensor is none of ours
        self._entered = False
        self._running = False  # a dead operation

    @contextlib.contextmanager
    def scope(self, at_once: bool) -> Iterator[None]:
        """Around a replay: on from the beginning, or from the first stand-in."""
        try:
            if at_once:
                self.enter()
            yield
        finally:
            self._leave()

    def enter(self) -> None:
        """Does nothing the second time."""
        if not self._entered:
            self._entered = True
            guards.start()
            super().__enter__()

    def _leave(self) -> None:
        if self._entered:
            self._entered = False
            guards.stop()
            super().__exit__(None, None, None)
        self.frame = None

    def __ms_dispatch__(self, func: Any, args: tuple, kwargs: dict | None = None) -> Any:
        if self._running or self.frame is None or self.frame.inside is not None:
            return func(*args, **(kwargs or {}))
        self.seen += 1
        if func.name != _DETACH:
            self.last = func.name
        ghost = None
        for tensor in tensors_in(args):
            found = marks.ghost_of(tensor)
            if found is not None:
                ghost = found if ghost is None or found.until < ghost.until else ghost
            elif not self.on_meta and tensor.is_meta:
                self.refuse(None, func.name)
        if ghost is None:
            return func(*args, **(kwargs or {}))
        return self._run_dead(func, func.name, args, kwargs or {}, ghost, self.frame.cursor)

    def apply(self, name: str, function: Callable, args: tuple, kwargs: dict) -> Any:
        """A custom function, which is one operation here, whatever it consists of."""
        self.last = None
        ghosts = [ghost for tensor in tensors_in((args, kwargs)) if (ghost := marks.ghost_of(tensor)) is not None]
        if self._running or self.frame is None or not ghosts:
            return function(*args, **kwargs)
        ghost = min(ghosts, key=lambda ghost: ghost.until)
        return self._run_dead(function, name + FUNCTION, args, kwargs, ghost, self.frame.cursor)

    def _run_dead(self, func: Callable, name: str, args: tuple, kwargs: dict, ghost: marks.Ghost, calls: int) -> Any:
        """``calls`` saved ones have been replayed so far."""
        if name not in self.dead or calls > ghost.until:
            self.refuse(ghost, name)
        self._running = True
        try:
            out = func(*_each(args, _worthless), **_each(kwargs, _worthless))
            return _each(out, lambda made: _ghost(made.to("meta").data, ghost, made._requires_grad))
        finally:
            self._running = False

    def check(self, tensor: Tensor, reader: str) -> None:
        """Raises if ``tensor``, which backward is to read, is a stand-in or was made of one."""
        ghost = marks.ghost_of(tensor)
        if ghost is not None or (self._entered and not self.on_meta and tensor.is_meta):
            self.refuse(ghost, reader)

    def refuse(self, ghost: marks.Ghost | None, reader: str) -> None:
        """A value that isn't there is read. Kept for the end of the replay too: the block may swallow the error."""
        if self.frame is None:
            return
        name = ghost.region.name if ghost else "an excluded region"
        error = ReplayError(
            f"{reader} at {_line()} reads the output of {name} in a replay, but nothing in the first forward needed "
            "its values there, so it wasn't kept: control flow changed between forward and replay, or since the first "
            "step (then give that region save_output=True)"
        )
        if self.frame.failure is None:
            self.frame.failure = error
        raise error


def _worthless(tensor: Tensor) -> Tensor:
    """Memory of no value for a dead operation; everything else as it is."""
    ghost = marks.ghost_of(tensor)
    if ghost is None:
        return tensor
    memory = mint.empty(tensor.shape, dtype=tensor.dtype)
    return _ghost(memory, ghost, tensor._requires_grad)


def _each(value: Any, change: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)([_each(item, change) for item in value])
    if isinstance(value, dict):
        return {key: _each(item, change) for key, item in value.items()}
    return value


def _line() -> str:
    """The innermost line that isn't MindSpore's, Python's own or this package's."""
    inner = (os.path.dirname(__file__), os.path.dirname(os.__file__))
    for line in reversed(traceback.extract_stack()):
        if os.path.dirname(line.filename) not in inner and "mindspore" not in line.filename.split(os.sep):
            return f"{line.filename}:{line.lineno} `{line.line}`"
    return "an unknown line"
