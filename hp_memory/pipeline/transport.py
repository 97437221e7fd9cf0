"""How tensors travel between ranks of a pipeline: queues in one process, or point-to-point messages between workers."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, Protocol

from mindspore import Tensor, ops

Tensors = tuple[Tensor, ...]


class Transport(Protocol):
    """First in, first out per pair of ranks; a send never waits for its receive."""

    def send(self, peer: int, tensors: Tensors) -> None: ...

    def ready(self, peer: int) -> bool: ...

    def receive(self, peer: int) -> Tensors: ...


class Queues:
    """All ranks in one process. ``end(rank)`` is one rank's view. Tensors are copied, as a wire would."""

    def __init__(self) -> None:
        self._queues: dict[tuple[int, int], deque[Tensors]] = defaultdict(deque)

    def end(self, rank: int) -> _QueueEnd:
        return _QueueEnd(self._queues, rank)

    @property
    def left(self) -> int:
        """Messages that nobody received."""
        return sum(map(len, self._queues.values()))


class _QueueEnd:
    def __init__(self, queues: dict[tuple[int, int], deque[Tensors]], rank: int) -> None:
        self._queues, self._rank = queues, rank

    def send(self, peer: int, tensors: Tensors) -> None:
        self._queues[self._rank, peer].append(tuple(Tensor(t.asnumpy()) for t in tensors))

    def ready(self, peer: int) -> bool:
        return bool(self._queues[peer, self._rank])

    def receive(self, peer: int) -> Tensors:
        return self._queues[peer, self._rank].popleft()


class Messages:
    """Between workers of one job (mccl on a CPU, HCCL on Ascend).

    Args:
        peers: global rank of each rank of the pipeline.
        group: communicator that holds them.
        like: shape and dtype of each tensor that crosses a chunk's border; all borders carry the same.
    """

    def __init__(self, peers: Sequence[int], group: str, like: Sequence[tuple[tuple[int, ...], Any]]) -> None:
        self._peers, self._group, self._like = tuple(peers), group, tuple(like)
        self._under_way: list[tuple[Any, Tensor]] = []

    def send(self, peer: int, tensors: Tensors) -> None:
        import mindspore.mint.distributed as dist

        for tensor in tensors:
            tensor = tensor.contiguous()
            work = dist.isend(tensor, self._peers[peer], group=self._group)
            self._under_way.append((work, tensor))

    def ready(self, peer: int) -> bool:
        return True

    def receive(self, peer: int) -> Tensors:
        import mindspore.mint.distributed as dist

        tensors = tuple(ops.zeros(shape, dtype) for shape, dtype in self._like)
        for tensor in tensors:
            dist.recv(tensor, self._peers[peer], group=self._group)
        return tensors

    def finish(self) -> None:
        """Wait until everything sent has left; sent tensors are kept until then."""
        for work, _ in self._under_way:
            if work is not None:
                work.wait()
        self._under_way.clear()
