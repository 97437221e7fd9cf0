"""What autograd is given of an offloaded region, and what its record keeps, instead of a tensor on the device."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor

from hp_memory.activation import native, observing
from hp_memory.activation.writing import standing_alone
from hp_memory.host.ticket import Ticket
from hp_memory.host.window import Window


class Moved:
    """One reader's hold on a tensor that waits on the host."""

    __slots__ = ("region", "requires_grad", "ticket")

    def __init__(self, ticket: Ticket, region: str, requires_grad: bool) -> None:
        self.ticket = ticket
        self.region = region
        self.requires_grad = requires_grad

    def take(self) -> Tensor:
        """For backward: a session that comes again finds it on the device."""
        session = native.current_session()
        return standing_alone(self.ticket.read(keep=session is not None and session.retain_on_unpack))

    def lend(self) -> Tensor:
        """For one replay, as a new object."""
        values = native.detached(self.ticket.read(keep=False))
        if self.requires_grad:
            values.requires_grad_()
        return values


def offered(window: Window | None, tensor: Tensor, region: str) -> Moved | None:
    """A hold on ``tensor``, if the window takes it."""
    ticket = window.offer(tensor) if window is not None else None
    if ticket is None:
        return None
    if observing.active is not None:
        observing.active.moved(ticket, tensor, region)
    return Moved(ticket, region, tensor._requires_grad)


def launch(window: Window | None, moved: list[Any]) -> None:
    """Starts the copies of those among ``moved`` that are holds."""
    if window is not None:
        window.launch([item.ticket for item in moved if type(item) is Moved])
