"""One FSDP unit: when its parameters are gathered and dropped, and when its gradients are reduced.

Modelled on HyperParallel's scheduler for MindSpore: a forward pre-hook gathers unless a prefetch did; a forward hook
drops what was gathered and hangs a hook on the outputs, which gathers again when their gradients arrive; a function on
the inputs, and a callback at the end of backward, reduce the gradients. A replay of a unit inside a checkpoint runs the
same hooks as a forward, without prefetching; once a unit's own backward has begun they do nothing. Ours: a gather is
complete when it returns, so a prefetch moves it but hides no time.
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor, nn

from hp_memory.errors import NeedsHyperParallel
from hp_memory.mindformers.standin.layouts import Cut
from hp_memory.mindformers.standin.mesh import DeviceMesh
from hp_memory.mindformers.standin.placements import Replicate, Shard
from hp_memory.mindformers.standin.sharded import Copied, Sharded
from hp_memory.mindspore.private import Function as _Function
from hp_memory.mindspore.private import executor as _pynative_executor


class State(enum.Enum):
    """Where a unit is in its step."""

    IDLE = "idle"
    FORWARD = "forward"
    BACKWARD = "backward"


class Backward(threading.local):
    """Whether a backward runs in this thread: a forward inside one is a replay."""

    running = False


backward = Backward()


class Unit:
    """What ``fully_shard`` adds to a Cell.

    Attributes:
        forward_prefetch, backward_prefetch: units gathered while this one computes.
        average: gradients are divided by the number of ranks they are summed over.
        reduces: gradients are reduced at the end of a backward; otherwise they stay where it left them.
        reshard_after_backward: what was gathered is dropped at the end of a backward.
    """

    def __init__(self, cell: nn.Cell, mesh: DeviceMesh, reshard_after_forward: bool, whole: Sequence[int]) -> None:
        self.reshard_after_forward = reshard_after_forward
        self.forward_prefetch: list[Unit] = []
        self.backward_prefetch: list[Unit] = []
        self.average, self.reduces, self.reshard_after_backward = False, True, True
        self._state = threading.local()
        *copies, shards = (Cut(mesh[name], Replicate()) for name in mesh.mesh_dim_names)
        sharding = (*copies, Cut(shards.mesh, Shard(0)))
        replicating = (*copies, Cut(shards.mesh, Replicate()))
        self.sharded: list[Sharded] = []
        self.copied: list[Copied] = []
        for owner, name, parameter in unmanaged(cell):
            if getattr(parameter, "replaced_by_part", False):
                raise NeedsHyperParallel(
                    f"fully_shard of {parameter.name}, which two cells share", "each cell would train a part of its own"
                )
            parameter.replaced_by_part = True
            if id(parameter) in whole or not parameter.shape:
                self.copied.append(Copied(owner, name, parameter, replicating))
            else:
                self.sharded.append(Sharded(owner, name, parameter, sharding))
        cell.register_forward_pre_hook(self._before_forward, with_kwargs=True)
        cell.register_forward_hook(self._after_forward)

    @property
    def state(self) -> State:
        """Of the calling thread: one may run a forward beside another's backward."""
        return getattr(self._state, "value", State.IDLE)

    @state.setter
    def state(self, state: State) -> None:
        self._state.value = state

    def unshard(self) -> None:
        """Gathers every parameter that isn't gathered, and puts it where the model finds it."""
        for parameter in self.sharded:
            parameter.unshard()

    def prefetch(self) -> None:
        """Gathers, but leaves the model as it is."""
        for parameter in self.sharded:
            parameter.gather()

    def reshard(self) -> None:
        """Puts this rank's parts back and frees what was gathered."""
        for parameter in self.sharded:
            parameter.reshard()

    def zero_grad(self) -> None:
        for parameter in (*self.sharded, *self.copied):
            parameter.zero_grad()

    def _before_forward(self, cell: nn.Cell, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        if self.state is not State.BACKWARD:
            self.unshard()
            for unit in () if backward.running else self.forward_prefetch:
                unit.prefetch()
        return self._watch_inputs(args, kwargs)

    def _watch_inputs(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """Passes the inputs that need gradients through a function that sees when they have them."""
        if not _pynative_executor.enable_grad():
            return args, kwargs
        values = [*args, *kwargs.values()]
        places = [i for i, value in enumerate(values) if isinstance(value, Tensor) and value._requires_grad]
        if not places:
            return args, kwargs
        passed = _Watch.apply(self._after_backward, *(values[i] for i in places))
        for i, value in zip(places, passed, strict=True):
            values[i] = value
        return tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :], strict=True))

    def _after_forward(self, cell: nn.Cell, inputs: Any, outputs: Any) -> Any:
        for output in outputs if isinstance(outputs, (tuple, list)) else (outputs,):
            if isinstance(output, Tensor) and output._requires_grad:
                output.register_hook(self._before_backward)
        if self.state is not State.BACKWARD:
            self.state = State.FORWARD
            if self.reshard_after_forward:
                self.reshard()
        return outputs

    def _before_backward(self, grad: Tensor) -> Tensor:
        _pynative_executor.queue_backward_final_callback(self._end_of_backward)
        backward.running = True
        if self.state is not State.BACKWARD:
            self.state = State.BACKWARD
            self.unshard()
            for unit in self.backward_prefetch:
                unit.prefetch()
        return grad

    def _end_of_backward(self) -> None:
        backward.running = False
        if self.state is State.BACKWARD:
            self._after_backward()

    def _after_backward(self) -> None:
        self.state = State.IDLE
        if self.reduces:
            self.reduce_gradients()
        if self.reshard_after_backward:
            self.reshard()

    def reduce_gradients(self) -> None:
        """Sums over the ranks what backwards have left since the last time."""
        held: list[Sharded | Copied] = [*self.sharded, *self.copied]
        for parameter in held:
            parameter.take_gradient(self.average)


class _Watch(_Function):
    @staticmethod
    def forward(ctx: Any, then: Callable[[], None], *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.then = then
        return inputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        ctx.then()
        return (None, *grads)


def unmanaged(cell: nn.Cell) -> list[tuple[nn.Cell, str, Any]]:
    """Every parameter below ``cell`` that no unit holds yet, with its owner and name there."""
    return [
        (owner, name, parameter)
        for _, owner in cell.cells_and_names()
        for name, parameter in owner._params.items()
        if parameter is not None and not getattr(parameter, "held_by_unit", False)
    ]
