"""What autograd is given instead of a tensor: an empty slot that a replay fills.

Ownership, so that everything dies with the graph and without the garbage collector:
``autograd -> Slot -> Invocation -> records -> weakref(Slot)``.
"""

from __future__ import annotations

from typing import Any

from hp_memory.activation import native, observing


class Slot:
    """One tensor that backward reads and the first forward doesn't keep.

    ``uses`` is how many saved tensors stand on it (``x * x`` saves x twice); ``left`` how many of them backward has
    still to read before the replayed tensor can be dropped.
    """

    __slots__ = ("__weakref__", "invocation", "left", "uses", "value")

    def __init__(self, invocation: Any, uses: int) -> None:
        self.invocation = invocation
        self.uses = uses
        self.left = 0
        self.value = None

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
    """A strided view of a slot's tensor: the operation saved a slice, transpose or reshape of a region's input."""

    __slots__ = ("offset", "shape", "slot", "stride")

    def __init__(self, slot: Slot, shape: tuple, stride: tuple, offset: int) -> None:
        self.slot = slot
        self.shape = shape
        self.stride = stride
        self.offset = offset  # elements from the start of the input, not of its storage

    def take(self) -> Any:
        base = self.slot.take()
        return native.as_strided(base, self.shape, self.stride, base.storage_offset() + self.offset)


def unpack(packed: Any) -> Any:
    """The unpack hook of every checkpointed call and excluded region."""
    if observing.active is not None:
        observing.active.freeze()
    if type(packed) is Slot or type(packed) is View:
        return packed.take()
    return packed.tensor if type(packed) is observing.Kept else packed
