"""The operations queue: what the optimizer inserts, and after which kernel.

``HyperOffloadOperations`` keeps one queue before the first kernel (``PRE``) and one after each kernel. A queue is an
insertion-ordered set, so that taking an operation out of a long queue costs as much as out of a short one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hp_memory.offload.graph import Source

PRE = -1  # the queue in front of the first kernel

D2H, H2D, WRITE_BACK = "copy_to_host", "copy_to_device", "copy_to_host_inplace"
SEND, RECV, FREE, ASSIGN = "send", "recv", "free", "assign"
BEFORE_D2H, AFTER_D2H, AFTER_H2D = "before_d2h", "after_d2h", "after_h2d"
DEVICE, HOST = "device", "host"
COMPUTE_STREAM, TRANSFER_STREAM = 0, 1


@dataclass(slots=True, eq=False)
class Operation:
    """One inserted node. Two operations are the same only if they are the same object, like nodes of a graph.

    Args:
        op: ``copy_to_host``, ``copy_to_device``, ``copy_to_host_inplace``, ``send``, ``recv``, ``free`` or ``assign``.
        data: the tensor moved, waited for or freed; for a write-back the reload that is written into its parameter.
        stream, event: for send and recv.
        side: for free, the copy that is freed; for assign, where the tensor lives from now on.
        copy: for an assign to the device, the reload that becomes the tensor's buffer.
        slot: position of the kernel it follows, or ``PRE``.
        output_reload: a reload made for the graph's outputs.
    """

    op: str
    data: Moved
    stream: int | None = None
    event: str | None = None
    side: str | None = None
    copy: Operation | None = None
    slot: int = PRE
    output_reload: bool = False


Moved = Source | Operation
Input = Source | Operation  # a kernel's input after rewriting: the original tensor or a reload


class HyperOffloadOperations:
    """Queues of inserted operations by position in the original execution order."""

    def __init__(self) -> None:
        self._queues: dict[int, dict[Operation, None]] = {}

    def add_after(self, position: int, operation: Operation) -> None:
        operation.slot = position
        self._queues.setdefault(position, {})[operation] = None

    def add_before(self, position: int, operation: Operation) -> None:
        self.add_after(position - 1, operation)

    def remove(self, operation: Operation) -> None:
        del self._queues[operation.slot][operation]

    def move_ahead(self, operation: Operation, distance: int, floor: int | None = None) -> None:
        """Move towards the start by ``distance`` slots, never below ``floor``.

        Without a floor a reload may pass its own copy-out, as in MindSpore 2.10.0: ``hazards`` reports it.
        """
        if operation.slot == PRE or (distance == 0 and floor is None):
            return
        slot = max(operation.slot - distance, PRE if floor is None else floor)
        self.remove(operation)
        self.add_after(slot, operation)

    def after(self, position: int) -> tuple[Operation, ...]:
        return tuple(self._queues.get(position, ()))

    @property
    def pre(self) -> tuple[Operation, ...]:
        return self.after(PRE)

    def __iter__(self) -> Iterator[Operation]:
        """All operations in the order they will run."""
        for position in sorted(self._queues):
            yield from tuple(self._queues[position])

    def of_kind(self, *kinds: str) -> list[Operation]:
        return [operation for operation in self if operation.op in kinds]

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))
