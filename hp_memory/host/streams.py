"""Copies on Ascend: a stream for each lane beside the compute stream, ordered by events, into pinned memory.

MindSpore has no ``record_stream``: whoever starts a copy keeps its tensors until the copy's event has passed. Device
memory for what comes back is allocated on the compute stream, where it is freed later, so that the allocator's order is
the order of use.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import mindspore as ms
from mindspore import Tensor, mint

from hp_memory.host.pool import Buffer


class Out:
    """A copy to the host on the out stream."""

    def __init__(self, streams: Streams, source: Tensor, buffer: Buffer, event: Any) -> None:
        self._streams = streams
        self.buffer = buffer
        self.shape, self.dtype = tuple(source.shape), source.dtype
        self.event = event

    def done(self) -> bool:
        return self.event.query()

    def wait(self) -> None:
        self._streams.runtime.current_stream().wait_event(self.event)

    def cancel(self) -> bool:
        return False  # the stream has it already

    def back(self) -> In:
        return self._streams.copy_in(self)


class In:
    """A copy to the device on the in stream."""

    def __init__(self, runtime: Any, tensor: Tensor, event: Any, out: Out) -> None:
        self._runtime, self._tensor, self._event = runtime, tensor, event
        self._out = out  # whose host memory is read until the event has passed
        self._taken = False

    def __del__(self) -> None:
        if not self._taken:
            # Nobody waits for it any more, and the copy still writes: its memory isn't free before the event.
            self._event.synchronize()

    def take(self) -> Tensor:
        self._taken = True
        self._runtime.current_stream().wait_event(self._event)
        return self._tensor


class Streams:
    """Copies on two streams of the device.

    Args:
        runtime: ``mindspore.runtime``, or what stands for it in a test of the order of calls.
    """

    def __init__(self, runtime: ModuleType | Any = ms.runtime) -> None:
        self.runtime = runtime
        self._out, self._in = runtime.Stream(), runtime.Stream()

    def allocate(self, nbytes: int) -> Tensor:
        return mint.empty((nbytes,), dtype=ms.uint8, device="CPU", pin_memory=True)

    def copy_out(self, source: Tensor, buffer: Buffer) -> Out:
        with self._after_compute(self._out):
            _as(buffer, tuple(source.shape), source.dtype).copy_(source, non_blocking=True)
            return Out(self, source, buffer, self._out.record_event())

    def copy_in(self, out: Out) -> In:
        """See :meth:`Outgoing.back`."""
        tensor = mint.empty(out.shape, dtype=out.dtype)
        with self._after_compute(self._in):
            self._in.wait_event(out.event)
            tensor.copy_(_as(out.buffer, out.shape, out.dtype), non_blocking=True)
            return In(self.runtime, tensor, self._in.record_event(), out)

    def _after_compute(self, stream: Any) -> Any:
        """What is dispatched within runs on ``stream``, after all that compute was given so far."""
        stream.wait_event(self.runtime.current_stream().record_event())
        return self.runtime.StreamCtx(stream)


def _as(buffer: Buffer, shape: tuple[int, ...], dtype: Any) -> Tensor:
    return buffer.memory.view(dtype).reshape(shape)
