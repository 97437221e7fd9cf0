"""What autograd is given instead of a tensor, and how backward gets the tensor from it.

Ownership, so that everything dies with the graph and without the garbage collector:
``autograd -> Slot -> Invocation -> records -> weakref(Slot)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mindspore import Tensor, nn, ops

from hp_memory.activation import native, observing
from hp_memory.activation.geometry import Flat, Slices
from hp_memory.activation.moving import Moved
from hp_memory.activation.weights import Axes
from hp_memory.activation.writing import standing_alone
from hp_memory.errors import ReplayError

if TYPE_CHECKING:
    from hp_memory.activation.invocation import Invocation


class Slot:
    """One tensor that backward reads and the first forward doesn't keep: empty until a replay fills it.

    ``uses`` is how many saved tensors stand on it (``x * x`` saves x twice); ``left`` how many of them backward has
    still to read before the replayed tensor can be dropped.
    """

    __slots__ = ("__weakref__", "invocation", "left", "uses", "value")

    def __init__(self, invocation: Invocation, uses: int) -> None:
        self.invocation = invocation
        self.uses = uses
        self.left = 0
        self.value: Tensor | None = None

    def fill(self, value: Any) -> None:
        """Gives the replayed tensor, which takes the place of an earlier replay's."""
        self.value = value
        self.left = self.uses

    def take(self) -> Any:
        """The tensor for backward; the first slot that is found empty makes its invocation replay."""
        session = native.current_session()
        if self.value is None:
            self.invocation.fill_on_demand(self, session)
        value = self.value
        # A session decides how long its tensors live. On a thread that doesn't see the session they stay until the
        # graph or the session ends, because a second engine run (dw) may need them.
        keep = session.retain_on_unpack if session is not None else self.invocation.held_by_session
        if not keep:
            self.left -= 1
            if self.left <= 0:
                self.value = None
        return value


class View:
    """A view of a slot's tensor or of a weight: the operation saved a slice, transpose or reshape of it."""

    __slots__ = ("geometry", "slot")

    def __init__(self, slot: Slot | OfParameter, geometry: Flat | Slices) -> None:
        self.slot = slot
        self.geometry = geometry

    def take(self) -> Any:
        return standing_alone(self.geometry.of(self.slot.take()))


class Copy:
    """A contiguous copy of a slot's tensor in another shape: the backend made one before the kernel saved it."""

    __slots__ = ("shape", "slot")

    def __init__(self, slot: Slot, shape: tuple) -> None:
        self.slot = slot
        self.shape = shape

    def take(self) -> Any:
        return standing_alone(self.slot.take().reshape(self.shape).contiguous())


class OfParameter:
    """A Parameter, or a cast, reshape or transposition of one. It is looked up again in its Cell for backward.

    Keeping the tensor would keep the gathered copy of a sharded parameter, or a half-precision copy of the experts.
    As in every checkpoint, parameters must not change between a forward and its backward.
    """

    __slots__ = ("axes", "cell", "contiguous", "dtype", "name", "shape")

    def __init__(self, cell: nn.Cell, name: str, like: Tensor, axes: Axes = ()) -> None:
        self.cell = cell
        self.name = name
        self.shape = tuple(like.shape)
        self.dtype = like.dtype
        self.axes = axes
        self.contiguous = not axes or like.is_contiguous()

    def take(self) -> Any:
        value = self.cell._params[self.name].data
        if value.size != _elements(self.shape):
            raise ReplayError(
                f"parameter {self.name} has shape {tuple(value.shape)} when backward reads it, the forward saved "
                f"{self.shape}: a sharded parameter has to be gathered before backward"
            )
        if value.dtype != self.dtype:
            value = ops.cast(value, self.dtype)
        if self.axes:
            value = value.permute(self.axes)
        if tuple(value.shape) != self.shape:
            value = value.reshape(self.shape)
        return standing_alone(value.contiguous() if self.contiguous else value)


def _elements(shape: tuple) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


_RECIPES = frozenset({Slot, View, Copy, OfParameter, Moved})


def unpack(packed: Any) -> Any:
    """The unpack hook of every checkpointed call and excluded region."""
    if observing.active is not None:
        observing.active.freeze()
    if type(packed) in _RECIPES:
        return packed.take()
    return packed.tensor if type(packed) is observing.Kept else packed
