"""Watches a first forward: which operations run outside saved regions, what they read, and what has to be there again.

What the dispatch mode can't see is in :mod:`hp_memory.activation.unseen`. Where the watch can't know, it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mindspore import MsDispatchMode, Tensor

from hp_memory.activation import frames, marks, native, writing
from hp_memory.activation.distributed import is_distributed
from hp_memory.activation.liveness import Trace, Value
from hp_memory.activation.trees import tensors_in
from hp_memory.activation.unseen import FUNCTION, guards

# Operations that change an operand, or whose kernel fills a buffer it is given. Versions tell most; these have none.
_WRITES = ("Assign", "Inplace", "DistComm", "Scatter", "Apply", "CopyWithSlice")
_FARTHEST = 20_000  # graph nodes looked at for one tensor of unknown origin


class Watch(MsDispatchMode):
    """Fills a ``liveness.Trace`` of the operations outside saved regions.

    Attributes:
        seen: how many operations came by.
        last: number of the last operation in the trace.
        slot_operations: name of the operation that saved each slot, None for custom functions.
    """

    def __init__(self, frame: frames.Frame, inputs: Iterable[Tensor]) -> None:
        self.frame: frames.Frame | None = frame
        self.token = frame.call.token
        self._records = frame.call.records
        self.trace = Trace()
        self.seen = 0
        self.last: int | None = None
        self._in_function = False
        self.slot_operations: list[str | None] = []
        # With the node itself: the number of one that is gone may be another's.
        self._nodes: dict[tuple[int, int], tuple[Value | None, Any]] = {}
        self._outside: list[Tensor] = []
        for tensor in inputs:
            self._follow(tensor, None)

    def __enter__(self) -> Watch:
        guards.start()
        return super().__enter__()

    def __exit__(self, *exc: Any) -> bool:
        guards.stop()
        for tensor in self._outside:
            marks.put(tensor, None)
        self.frame, self._records, self._outside, self._nodes = None, [], [], {}
        return super().__exit__(*exc)

    def __ms_dispatch__(self, func: Any, args: tuple, kwargs: dict | None = None) -> Any:
        if self.frame is None or self.frame.inside is not None:
            if self.frame is not None and self.frame.capture is not None:
                for target in writing.targets(func.name, args):
                    self.frame.capture.written(target)
            return func(*args, **(kwargs or {}))
        self.seen += 1
        if self._in_function:
            return self._part_of_function(func, args, kwargs or {})
        return self._run(func.name, func, args, kwargs or {})

    def _run(self, name: str, func: Callable, args: tuple, kwargs: dict) -> Any:
        operands = list(tensors_in((args, kwargs)))
        reads = [value for tensor in operands for value in self.values(tensor, name)]
        versions = [tensor._version for tensor in operands]
        # Without a graph node the copy that a kernel gets of a view can't be followed: keep what it is made of.
        live = name.startswith(_WRITES) or not native.recording()
        number = self.last = self.trace.add(name, reads, len(self._records), live)
        out = func(*args, **kwargs)
        written = versions != [tensor._version for tensor in operands]
        if self._mark_results(number, out) or written:
            self.trace.operations[number].live = True
        return out

    def apply(self, name: str, function: Callable, args: tuple, kwargs: dict) -> Any:
        """A custom function, which is one operation here, whatever it consists of."""
        if self.frame is None or self._in_function:
            return function(*args, **kwargs)
        self._in_function = True
        try:
            return self._run(name + FUNCTION, function, args, kwargs)
        finally:
            self._in_function = False

    def _part_of_function(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """What would turn numbers of no value into indices, or write them outside the function, makes it live."""
        out = func(*args, **kwargs)
        operands = list(tensors_in((args, kwargs)))
        writes = func.name.startswith(_WRITES) and any(self._is_known(tensor) for tensor in operands)
        indices = any(not tensor.is_floating_point() for tensor in tensors_in((out,)))
        if writes or (indices and any(tensor.is_floating_point() for tensor in operands)):
            self._keep_last()
        return out

    def _keep_last(self) -> None:
        assert self.last is not None, "a custom function is an operation itself"
        self.trace.operations[self.last].live = True

    def _is_known(self, tensor: Tensor) -> bool:
        mark = marks.of(tensor)
        return type(mark) is marks.Made and mark.token is self.token

    def _mark_results(self, number: int, out: Any) -> bool:
        """True if a result says that the operation must have its values: an index, or one of its own operands."""
        live = False
        for tensor in tensors_in((out,)):
            known = marks.of(tensor)
            if type(known) is marks.Made and known.token is self.token:
                live = True
                continue
            marks.put(tensor, marks.Made(self.token, number, self))
            live = live or not tensor.is_floating_point()
        return live

    def values(self, tensor: Tensor, reader: str) -> tuple[Value, ...]:
        """What ``tensor`` is in this forward; nothing for what came from outside."""
        known = marks.of(tensor)
        node = tensor._grad_node
        if type(known) is marks.Made and known.token is self.token:
            if known.value is None:
                return ()
            if node is None:
                # The copy that a kernel gets of a view of it would carry neither mark nor node: keep it.
                self.trace.need(known.value, reader)
            else:
                self._follow(tensor, known.value)
            return (known.value,)
        found = self._behind(node, tensor._output_index) if node is not None else ()
        value = self.trace.add("Contiguous", found, len(self._records)) if found else None
        marks.put(tensor, marks.Made(self.token, value, self))
        if value is None:
            self._outside.append(tensor)
            return ()
        return (value,)

    def _follow(self, tensor: Tensor, value: Value | None) -> None:
        """Notes which value the graph node of a tensor stands for; none for what came from outside."""
        node = tensor._grad_node
        if node is not None:
            self._nodes[node._unique_id(), tensor._output_index] = (value, node)

    def _behind(self, node: Any, output: int) -> tuple[Value, ...]:
        """The values that a tensor of unknown origin was made of, by the graph nodes that lead to it."""
        found: dict[Value, None] = {}
        seen, ahead = set(), [(node, output)]
        while ahead:
            node, output = ahead.pop()
            key = (node._unique_id(), output)
            if key in self._nodes:
                value, _ = self._nodes[key]
                if value is not None:
                    found[value] = None
            elif key[0] not in seen:
                seen.add(key[0])
                ahead += [(parent, index) for parent, index in node.next_functions if parent is not None]
            if len(seen) > _FARTHEST:
                self.trace.all_needed = "a tensor of unknown origin"
                break
        return tuple(found)

    # -- what has to be there again --------------------------------------------------------------------------------

    def read_unseen(self, tensor: Tensor, reader: str, frame: frames.Frame | None) -> None:
        """Something reads ``tensor`` that isn't an operation; ``frame`` is that of the reading thread."""
        if self.frame is None or (frame is self.frame and self.frame.inside is not None):
            return
        if self._in_function and not self._is_known(tensor):
            self._keep_last()  # made inside, of who knows what
        else:
            self.need(tensor, reader)

    def need(self, tensor: Tensor, reader: str) -> None:
        """A replay must have the values of ``tensor``."""
        for value in self.values(tensor, reader):
            self.trace.need(value, reader)

    def saved(self, tensor: Tensor) -> None:
        """The operation that ran last saves ``tensor`` outside saved regions."""
        operation = self.trace.operations[self.last] if self.last is not None else None
        name = operation.name if operation else None
        self.slot_operations.append(name if name and not name.endswith(FUNCTION) else None)
        if not self._is_known(tensor) and operation is not None:
            operation.live = True  # something inside it, or a result before it got its mark
        self.need(tensor, name or "backward")

    def called(self, call: int, inputs: Iterable[tuple[Tensor, bool]], outputs: Iterable[tuple[int, Tensor]]) -> None:
        """A saved region ran. ``inputs`` come with whether a replay has to bring them."""
        for tensor, bound in inputs:
            for value in self.values(tensor, "a saved region"):
                self.trace.taken.append((call, value))
                if bound:
                    self.trace.need(value, "a saved region")
        for leaf, tensor in outputs:
            node = tensor._grad_node
            if node is None or is_distributed(tensor):
                self.trace.need((call, leaf), None)
            else:
                self._follow(tensor, (call, leaf))
