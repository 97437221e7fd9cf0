"""How tensors get to the host and back, and the one place where a device's way is chosen."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol

import mindspore as ms
from mindspore import Tensor

from hp_memory.host.pool import Buffer


class Outgoing(Protocol):
    """A copy to the host under way, or complete. The only way back: nothing can be read that wasn't sent."""

    buffer: Buffer

    def done(self) -> bool:
        """Whether the source may be freed."""

    def wait(self) -> None:
        """What computes next runs after the copy. Raises HostCopyError if the copy failed."""

    def cancel(self) -> bool:
        """Drops the copy if it hasn't begun, which is done then; whether it was dropped."""

    def back(self) -> Incoming:
        """Brings the tensor back in its shape and dtype, in the other lane, once this copy is complete."""


class Incoming(Protocol):
    """A copy to the device under way, or complete."""

    def take(self) -> Tensor:
        """The tensor; what computes next runs after the copy. Raises HostCopyError if it failed."""


class Transport(Protocol):
    """Copies in two lanes: out and in. Each lane keeps its order; neither waits for the other but where it must."""

    def allocate(self, nbytes: int) -> Any:
        """Host memory that its copies can use."""

    def copy_out(self, source: Tensor, buffer: Buffer) -> Outgoing:
        """Copies ``source``, which is contiguous, once all that was dispatched before has run.

        The caller keeps ``source`` until the copy is done.
        """


class WhenNeeded:
    """The transport of the device, made when the first tensor leaves: a trace on the meta device has none."""

    @cached_property
    def _made(self) -> Transport:
        return of_device()

    def allocate(self, nbytes: int) -> Any:
        """See :class:`Transport`."""
        return self._made.allocate(nbytes)

    def copy_out(self, source: Tensor, buffer: Buffer) -> Outgoing:
        """See :class:`Transport`."""
        return self._made.copy_out(source, buffer)


def of_device() -> Transport:
    """The transport of the device that is set."""
    if ms.get_context("device_target") == "CPU":
        from hp_memory.host.threads import Threads

        return Threads()
    from hp_memory.host.streams import Streams

    return Streams()
