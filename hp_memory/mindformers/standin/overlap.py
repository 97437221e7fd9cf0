"""A backward beside a forward: two threads that take turns at each exchange of tokens.

Modelled after ``hyper_parallel/core/pipeline_parallel/comm_compute_overlap.py``, ``hook_coordinator.py`` beside it and
the sync hooks of ``platform/mindspore/platform.py``. Both threads meet wherever one of them is about to communicate;
that one goes first, the other computes once the exchange is issued. In a forward the hooks are A, dispatch, B, experts,
C, combine, D, attention; a backward passes them the other way round. The last layer's D (``D_LAST``) is passed in
silence by a forward and is the first meeting of a backward: no forward is recorded beside the first or the last part of
a chunk's backward, which MindSpore's PyNative executor couldn't do.

MindFormers replays the backward's blocks before the two threads start, while the coordinator is off: then the hooks do
nothing but leave their node in the graph.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor
from mindspore.ops import communication

from hp_memory.mindspore.private import Function as _Function


class HookRole(enum.Enum):
    """What the caller does once both threads have met."""

    COMPUTE = "compute"
    COMM = "comm"


class HookCoordinator:
    """Lets two threads meet; the one that communicates goes on first."""

    def __init__(self) -> None:
        self._enabled = False
        self._barrier = threading.Barrier(2)
        self._issued = threading.Event()
        self._own = threading.local()

    def enable(self) -> None:
        """A pair of a forward and a backward begins."""
        self._barrier, self._issued, self._own = threading.Barrier(2), threading.Event(), threading.local()
        self._enabled = True

    def disable(self) -> None:
        """The pair ends: whoever still waits goes on."""
        self._enabled = False
        self._barrier.abort()
        self._issued.set()

    def is_enabled(self) -> bool:
        return self._enabled

    def rendezvous(self, role: HookRole) -> None:
        """Waits for the other thread, and in order to compute also until the other's exchange is issued."""
        if not self._enabled:
            return
        if role is HookRole.COMM:
            self._issued = self._own.event = threading.Event()
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            return
        if role is HookRole.COMPUTE:
            self._issued.wait()

    def notify_dispatched(self, role: HookRole) -> None:
        """The exchange of this thread's last meeting is issued; for COMPUTE, and without a meeting, does nothing."""
        if self._enabled and role is HookRole.COMM and getattr(self._own, "event", None) is not None:
            self._own.event.set()
            self._own.event = None


class CommComputeOverlap:
    """Runs a forward on this thread and a backward on another."""

    def __init__(self) -> None:
        self.coordinator = HookCoordinator()

    def run(self, fwd_fn: Callable[[], None], bwd_fn: Callable[[], None]) -> None:
        """Returns when both have ended.

        Raises:
            RuntimeError: from what the backward raised. What the forward raised is raised as it is.
        """
        failed: list[Exception] = []

        def backward() -> None:
            try:
                bwd_fn()
            except Exception as error:
                failed.append(error)
                self.coordinator.disable()

        self.coordinator.enable()
        thread = threading.Thread(target=backward, name="backward", daemon=True)
        thread.start()
        try:
            fwd_fn()
        finally:
            self.coordinator.disable()
            thread.join()
        if failed:
            raise RuntimeError("the backward beside a forward failed") from failed[0]


_COMM, _COMPUTE = HookRole.COMM, HookRole.COMPUTE
# (what has just been issued, what comes next); hooks that aren't named are passed.
_FORWARD = {
    "CHUNK_START": (_COMPUTE, _COMPUTE),
    "A": (_COMPUTE, _COMM),
    "B": (_COMM, _COMPUTE),
    "C": (_COMPUTE, _COMM),
    "D": (_COMM, _COMPUTE),
    "CHUNK_END": (_COMM, _COMPUTE),
}
_BACKWARD = {
    "D_LAST": (_COMPUTE, _COMM),
    "D": (_COMPUTE, _COMM),
    "C": (_COMM, _COMPUTE),
    "B": (_COMPUTE, _COMM),
    "A": (_COMM, _COMPUTE),
}


def _meet(coordinator: HookCoordinator, roles: tuple[HookRole, HookRole] | None) -> None:
    if roles is not None and coordinator.is_enabled():
        coordinator.notify_dispatched(roles[0])
        coordinator.rendezvous(roles[1])


class _SyncHook(_Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, hook_name: str, coordinator: HookCoordinator) -> Tensor:
        ctx.hook = (hook_name, coordinator)
        _meet(coordinator, _FORWARD.get(hook_name))
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        name, coordinator = ctx.hook
        _meet(coordinator, _BACKWARD.get(name))
        return grad, None, None


def differentiable_sync_hook(x: Tensor, hook_name: str, coordinator: HookCoordinator) -> Tensor:
    """``x``, with a meeting here in the forward and one here in the backward; the node is there in any case."""
    return _SyncHook.apply(x, hook_name, coordinator)


def differentiable_all_to_all_single_async(
    x: Tensor, input_splits: Sequence[int], output_splits: Sequence[int], group: str
) -> Tensor:
    """An exchange whose wait HyperParallel puts off until its result is read; on a CPU it is done when it returns.

    Args:
        x: flat.
        input_splits: elements sent to each rank.
        output_splits: elements received from each rank.
        group: communicator.
    """
    exchanged, _ = communication.all_to_all_single(
        None, x, output_split_sizes=output_splits, input_split_sizes=input_splits, group=group
    )
    return exchanged
