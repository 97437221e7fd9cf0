"""A tensor that waits on the host, and how it lies in memory."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from mindspore import Tensor

from hp_memory.mindspore.private import as_strided
from hp_memory.mindspore.private import no_grad as _no_grad

if TYPE_CHECKING:
    from hp_memory.host.pool import Buffer
    from hp_memory.host.transport import Incoming, Outgoing
    from hp_memory.host.window import Window


class Group:
    """The tickets of one call of a region: they leave together, and come back together.

    Attributes:
        key: of the stretch of forward that it belongs to, see :meth:`Window.stretch`.
        number: groups count up in the order of the forward.
        reached: backward has read one of its tickets.
    """

    __slots__ = ("__weakref__", "_tickets", "key", "number", "reached")

    def __init__(self, key: object, number: int, tickets: list[Ticket]) -> None:
        self.key = key
        self.number = number
        self.reached = False
        self._tickets = [weakref.ref(ticket) for ticket in tickets]

    def tickets(self) -> list[Ticket]:
        """Those that somebody can still read."""
        return [ticket for ref in self._tickets if (ticket := ref()) is not None]


class Ticket:
    """One tensor that waits on the host, for all of its readers. It dies with the last of them.

    What happens to it is the window's business; readers call :meth:`read`.

    Attributes:
        source: the tensor as it was offered, contiguous; None once the device needn't hold it.
        wanted: backward is near: the source, if still there, stays.
        out: the copy to the host; None before the launch, and after it was called off.
        back: the copy to the device, or None.
        uses: how many readers it has; ``left``, how many of them have still to read what came back.
    """

    __slots__ = ("__weakref__", "_stride", "back", "buffer", "group", "left", "out", "shape", "source", "uses",
                 "wanted", "window")  # fmt: skip

    def __init__(self, window: Window, tensor: Tensor, buffer: Buffer) -> None:
        self.window = window
        self.shape = tuple(tensor.shape)
        self.source, self._stride = lying_flat(tensor)
        self.buffer: Buffer | None = buffer
        self.group: Group | None = None
        self.out: Outgoing | None = None
        self.back: Incoming | None = None
        self.wanted = False
        self.uses = self.left = 0

    def __del__(self) -> None:
        if self.out is not None:
            self.out.cancel()

    @property
    def on_device(self) -> bool:
        """Whether the device holds it now: it hasn't left yet, or it is back."""
        return self.source is not None or self.back is not None

    def read(self, keep: bool) -> Tensor:
        """The tensor, with its values, shape and strides. ``keep``: the same reader comes again."""
        return self.window.read(self, keep)

    def as_offered(self, flat: Tensor) -> Tensor:
        """``flat`` in the offered tensor's shape and strides."""
        return flat if self._stride is None else as_strided(flat, self.shape, self._stride, flat.storage_offset())


def lying_flat(tensor: Tensor) -> tuple[Tensor, tuple[int, ...] | None]:
    """The elements of ``tensor`` contiguously, without its graph, and the strides to see them by again.

    A tensor without gaps (a transposed one) is taken as it lies and gets its strides back. One with gaps (a slice)
    comes back contiguous: its gaps belong to others.
    """
    with _no_grad():
        if tensor.is_contiguous():
            return tensor.data, None
        stride = tuple(tensor.stride())
        if _without_gaps(tuple(tensor.shape), stride):
            return as_strided(tensor, (tensor.size,), (1,), tensor.storage_offset()).data, stride
        return tensor.contiguous().data, None


def _without_gaps(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for step, extent in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n != 1):
        if step != expected:
            return False
        expected *= extent
    return True
