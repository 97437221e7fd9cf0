"""What a body makes of parameters by moving their numbers: casts, transposes, slices, gathered rows.

Autograd would hold such a copy from forward to backward: a half-precision or gathered copy of the experts, in every
layer. It is a weight, though, and the weight is there in backward. So while a body runs, a dispatch mode writes down
how each copy came from parameters, and backward is given the same operations on the same parameters instead.

An operation costs about 5 us more under the mode: after a watched forward it stays on only for regions that save such
copies.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from mindspore import MsDispatchMode, Parameter, Tensor, nn

from hp_memory.activation.writing import standing_alone
from hp_memory.errors import ReplayError
from hp_memory.mindspore.private import no_grad

_ORIGIN = "hp_memory_origin"
# They give the numbers they were given, in another order, shape, dtype or number. None draws, none communicates.
_MOVES = frozenset(
    (
        *("Cast", "Contiguous", "Reshape", "View", "ExpandDims", "ExpandDimsView", "Squeeze", "SqueezeView", "Flatten"),
        *(
            "Transpose",
            "TransposeView",
            "TransposeExt",
            "TransposeExtView",
            "Permute",
            "BroadcastTo",
            "BroadcastToView",
        ),
        *("Narrow", "NarrowView", "Slice", "SliceExt", "SliceExtView", "StridedSlice", "SelectExt", "SelectExtView"),
        *("Split", "SplitTensor", "SplitTensorView", "SplitWithSize", "SplitWithSizeView", "Chunk", "ChunkView"),
        *("Concat", "Stack", "StackExt", "Gather", "IndexSelect", "SelectView", "Unstack", "UnstackExtView", "Tile"),
    )
)


class Source:
    """A parameter, found again where it stands: in its Cell, also after it was resharded."""

    __slots__ = ("cell", "name", "parameter", "shape")

    def __init__(self, parameter: Parameter, cell: nn.Cell | None = None, name: str = "") -> None:
        self.parameter = parameter if cell is None else None  # an argument of the call
        self.cell = cell
        self.name = name or parameter.name
        self.shape = tuple(parameter.shape)

    def value(self) -> Tensor:
        found = (self.cell._params[self.name] if self.cell is not None else self.parameter).data
        if tuple(found.shape) != self.shape:
            raise ReplayError(
                f"parameter {self.name} has shape {tuple(found.shape)} when backward reads it, the forward saved "
                f"{self.shape}: a sharded parameter has to be gathered before backward"
            )
        return found

    def take(self) -> Tensor:
        return standing_alone(self.value())


class MadeOf:
    """What an operation gave, to be made again: ``output`` counts its results, origins stand in place of tensors."""

    __slots__ = ("args", "function", "output")

    def __init__(self, function: Callable, args: Any, output: int) -> None:
        self.function = function
        self.args = args
        self.output = output

    def value(self) -> Tensor:
        made = self.function(*_values(self.args))
        return made[self.output] if isinstance(made, (tuple, list)) else made

    def take(self) -> Tensor:
        with no_grad():
            return standing_alone(self.value().contiguous())


class Laid(MadeOf):
    """The contiguous copy that a kernel is given of a view. Below the dispatch an operation takes what it is given."""

    __slots__ = ()

    def value(self) -> Tensor:
        return super().value().contiguous()


Origin = Source | MadeOf


def _values(args: Any) -> Any:
    """``args`` with tensors in place of their origins."""
    if isinstance(args, (Source, MadeOf)):
        return args.value()
    return type(args)(_values(item) for item in args) if type(args) in (tuple, list) else args


def _same(left: Any, right: Any) -> bool:
    if type(left) in (tuple, list):
        return type(right) is type(left) and len(left) == len(right) and all(map(_same, left, right))
    return left is right or (not isinstance(left, Tensor) and type(left) is type(right) and left == right)


def _tensors(args: Any) -> Iterator[Tensor]:
    for item in args:
        if isinstance(item, Tensor):
            yield item
        elif type(item) in (tuple, list):
            yield from _tensors(item)


class _Origin:
    """Mark on a tensor for the time of one body: how to make it again, and at which version it was that."""

    __slots__ = ("origin", "trace", "version")

    def __init__(self, trace: Trace, origin: Origin, version: int) -> None:
        self.trace = trace
        self.origin = origin
        self.version = version


class _Done(NamedTuple):
    """An operation on parameters and what was made of them. Its own graph node isn't there yet when it is noted."""

    function: Callable
    args: Any
    shapes: list[tuple]  # (shape, dtype) of its results
    before: list[Any]  # the nodes of its operands, which keep their ids while they live


class Trace(MsDispatchMode):
    """Around one run of a body: knows of each tensor whether it was made of parameters alone."""

    def __init__(self, parameters: list[tuple[nn.Cell, str]], given: list[Parameter]) -> None:
        self.used = False  # a tensor made of parameters was saved
        self._marked: list[Parameter] = []
        self._done: dict[tuple, list[_Done]] = {}  # by the nodes of the operands
        self._items: dict[tuple, tuple[Any, MadeOf]] = {}  # by node, which is kept beside
        for cell, name in parameters:
            self._mark_source(cell._params[name], Source(cell._params[name], cell, name))
        for parameter in given:
            if parameter._get_user_data(_ORIGIN) is None:
                self._mark_source(parameter, Source(parameter))

    def __enter__(self) -> Trace:
        _see_items()
        _running.traces.append(self)
        return super().__enter__()

    def __exit__(self, *exc: Any) -> bool:
        _running.traces.pop()
        return super().__exit__(*exc)

    def close(self) -> None:
        """Takes the marks off the parameters; those of copies die with them."""
        for parameter in self._marked:
            parameter._set_user_data(_ORIGIN, None)
        self._marked, self._done, self._items = [], {}, {}

    def __ms_dispatch__(self, func: Any, args: tuple, kwargs: dict | None = None) -> Any:
        found = self._origins(args) if func.name in _MOVES and not kwargs else None
        made = func(*args, **(kwargs or {}))
        if found is not None:
            self._note(func, found, list(_tensors(args)), made if isinstance(made, (tuple, list)) else (made,))
        return made

    def _note(self, function: Any, args: Any, operands: list[Tensor], made: Sequence[Tensor]) -> None:
        for output, tensor in enumerate(made):
            self._mark(tensor, MadeOf(function, args, output))
        nodes = [(tensor._grad_node, tensor._output_index) for tensor in operands]
        before = [node for node, _ in nodes if node is not None]
        key = tuple((node._unique_id(), output) for node, output in nodes if node is not None)
        done = _Done(function, args, [(tuple(t.shape), t.dtype) for t in made], before)
        self._done.setdefault((function.name, key), []).append(done)

    def note_item(self, tensor: Tensor, index: Any, item: Tensor) -> None:
        """``item`` is ``tensor[index]``: a view, made without a dispatch."""
        origin = self.origin(tensor)
        if origin is None:
            return
        made = MadeOf(operator.getitem, (origin, index), 0)
        self._mark(item, made)
        if item._grad_node is not None:
            self._items[item._grad_node._unique_id(), item._output_index] = item._grad_node, made

    def _mark(self, tensor: Tensor, origin: Origin) -> None:
        tensor._set_user_data(_ORIGIN, _Origin(self, origin, tensor._version))

    def _mark_source(self, parameter: Parameter, source: Source) -> None:
        self._mark(parameter, source)
        self._marked.append(parameter)

    def recipe(self, tensor: Tensor) -> Origin | None:
        """What to keep in place of a saved tensor that was made of parameters alone."""
        found = self.origin(tensor)
        self.used |= isinstance(found, MadeOf)
        return found

    def origin(self, tensor: Tensor) -> Origin | None:
        """How ``tensor`` came from parameters, None if it didn't."""
        mark = tensor._get_user_data(_ORIGIN)
        if type(mark) is _Origin and mark.trace is self:
            return mark.origin if tensor._version == mark.version else None
        node = tensor._grad_node
        if node is None or node.name() != "Contiguous" or tensor._version:
            return None
        # A kernel was given a copy of a view, made behind the dispatch.
        view, output = node.next_functions[0]
        if view is None:
            return None
        item = self._items.get((view._unique_id(), output))
        if item is not None:
            return Laid(item[1].function, item[1].args, item[1].output)
        return self._of_operation(view, output, (tuple(tensor.shape), tensor.dtype))

    def _of_operation(self, view: Any, output: int, shape: tuple) -> Origin | None:
        """By the nodes before the view's: of several such operations only if all of them do the same."""
        key = tuple((node._unique_id(), number) for node, number in view.next_functions if node is not None)
        found = [
            d for d in self._done.get((view.name(), key), ()) if output < len(d.shapes) and d.shapes[output] == shape
        ]
        if not found or not all(_same(found[0].args, other.args) for other in found[1:]):
            return None
        return Laid(found[0].function, found[0].args, output)

    def _origins(self, args: Any) -> Any:
        """``args`` with origins in place of tensors; None where one of them isn't of parameters, or none is there."""
        found, count = self._replaced(args)
        return found if count > 0 else None

    def _replaced(self, args: Any) -> tuple[Any, int]:
        items, count = [], 0
        for item in args:
            if isinstance(item, Tensor):
                item, more = self._kept(item)
            elif type(item) in (tuple, list):
                item, more = self._replaced(item)
            else:
                more = 0
            if more < 0:
                return None, -1
            items.append(item)
            count += more
        return type(args)(items) if type(args) in (tuple, list) else tuple(items), count

    def _kept(self, tensor: Tensor) -> tuple[Any, int]:
        origin = self.origin(tensor)
        if origin is not None:
            return origin, 1
        # Which rows to gather: kept as they are.
        is_index = not tensor._requires_grad and "Int" in str(tensor.dtype)
        return (tensor.data, 0) if is_index else (None, -1)


class _Running(threading.local):
    def __init__(self) -> None:
        self.traces: list[Trace] = []


_running = _Running()


def _see_items() -> None:
    """Integer and slice indices make views without a dispatch: the method shows them to a running trace.

    Put in place with the first trace, and left there: other threads may be inside it at any time.
    """
    if not hasattr(Tensor.__getitem__, "shows_items"):
        Tensor.__getitem__ = _noting(Tensor.__getitem__)


def _noting(original: Callable) -> Callable:
    def item(self: Tensor, index: Any) -> Any:
        found = original(self, index)
        traces = _running.traces
        if traces and isinstance(found, Tensor) and all(_is_plain(step) for step in _steps(index)):
            traces[-1].note_item(self, index, found)
        return found

    item.shows_items = True
    return item


def _steps(index: Any) -> Iterator[Any]:
    for step in index if isinstance(index, tuple) else (index,):
        if isinstance(step, slice):
            yield from (step.start, step.stop, step.step)
        else:
            yield step


def _is_plain(step: Any) -> bool:
    return step is None or step is Ellipsis or type(step) is int
