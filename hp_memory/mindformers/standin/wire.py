"""Messages between pipeline stages on a CPU: tensors, and before the first of a direction what they look like.

As in HyperParallel a sender says shapes, types and who wants a gradient once, with its first message; afterwards all
messages of that direction carry the same. mccl sends no objects between two ranks, so the description travels as
numbers. Its messages are first in, first out for a pair of ranks, and a send never waits for its receive.
"""

from __future__ import annotations

import json
from typing import Any

import mindspore as ms
import mindspore.mint.distributed as dist
import numpy as np
from mindspore import Tensor, ops


class Wire:
    """One stage's messages in one communicator."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._described: set[tuple[int, str]] = set()
        self._like: dict[tuple[int, str], list[dict[str, Any]]] = {}
        self._under_way: list[tuple[Any, Tensor]] = []

    def send(self, peer: int, way: str, tensors: tuple[Tensor, ...]) -> None:
        """Sends to the global rank ``peer``; ``way`` is ``forward`` or ``backward``."""
        if (peer, way) not in self._described:
            self._described.add((peer, way))
            codes = np.frombuffer(json.dumps([_describe(t) for t in tensors]).encode(), np.uint8).astype(np.int32)
            self._send(peer, Tensor([codes.size], ms.int32))
            self._send(peer, Tensor(codes))
        for tensor in tensors:
            self._send(peer, ops.stop_gradient(tensor).contiguous())

    def _send(self, peer: int, tensor: Tensor) -> None:
        self._under_way.append((dist.isend(tensor, peer, group=self._group), tensor))

    def receive(self, peer: int, way: str) -> tuple[Tensor, ...]:
        """What the global rank ``peer`` sent; tensors that wanted a gradient there are leaves that want one here."""
        if (peer, way) not in self._like:
            size = int(self._receive(peer, (1,), ms.int32).asnumpy()[0])
            codes = self._receive(peer, (size,), ms.int32).asnumpy()
            self._like[peer, way] = json.loads(codes.astype(np.uint8).tobytes())
        return tuple(self._tensor(peer, like) for like in self._like[peer, way])

    def _tensor(self, peer: int, like: dict[str, Any]) -> Tensor:
        tensor = self._receive(peer, tuple(like["shape"]), getattr(ms, like["dtype"]))
        if like["requires_grad"]:
            tensor.requires_grad_()
        return tensor

    def _receive(self, peer: int, shape: tuple[int, ...], dtype: Any) -> Tensor:
        tensor = ops.zeros(shape, dtype)
        dist.recv(tensor, peer, group=self._group)
        return tensor

    def finish(self) -> None:
        """Waits until everything sent has left."""
        for work, _ in self._under_way:
            if work is not None:
                work.wait()
        self._under_way.clear()


def _describe(tensor: Tensor) -> dict[str, Any]:
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).lower(),
        "requires_grad": bool(tensor.requires_grad),
    }
