"""A pipeline stage with HyperParallel's interface: forwards, backwards in one or two halves, sessions and messages.

Modelled after ``hyper_parallel/core/pipeline_parallel/stage.py`` and ``platform/mindspore/pipeline_parallel/stage.py``:
a forward runs inside MindSpore's collector of recompute handles; ``recompute_one_chunk`` replays them ahead of backward
under the session (stage, micro-batch), which keeps what it hands out; a whole backward and dw release as they read and
then clear the session, dx keeps. Gradients of weights are added up in ``Parameter.grad``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mindspore import Tensor, mint

from hp_memory.errors import NeedsHyperParallel, SessionError
from hp_memory.mindformers.standin.autograd import accumulate_backward, enable_mindspore_backward_compat
from hp_memory.mindformers.standin.fully_shard import HSDPModule
from hp_memory.mindformers.standin.wire import Wire
from hp_memory.pipeline.session import RecomputeSession
from hp_memory.pipeline.split_backward import SplitBackward, record


@dataclass
class _InFlight:
    """One micro-batch between its forward and its last backward step."""

    session: RecomputeSession
    inputs: tuple[Tensor, ...]
    outputs: tuple[Any, ...]
    grads: tuple[Tensor, ...] = ()
    split: SplitBackward | None = None

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """The inputs whose gradients are sent back."""
        return tuple(t for t in self.inputs if t.requires_grad)


@dataclass
class _Boxes:
    """What was received and not used yet, and what is ready to be sent, by micro-batch."""

    inputs: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    grads: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    outputs: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)
    input_grads: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)


class PipelineStage:
    """One chunk of the model on this rank.

    Args:
        submodule: the chunk. Called with what the stage before returned, and with every stage's keyword inputs.
        stage_index: its number from the model's input.
        stage_num: stages in all.
        device: where buffers are; MindSpore has one device per process.
        group: communicator of the pipeline's ranks.
        mesh: the same as a mesh of one dimension, with their global ranks.
        options: what HyperParallel takes besides, and MindFormers doesn't use.
    """

    def __init__(
        self,
        submodule: Any,
        stage_index: int,
        stage_num: int,
        device: Any = None,
        group: str | None = None,
        mesh: Any = None,
        **options: Any,
    ) -> None:
        if options or mesh is None:
            raise NeedsHyperParallel(f"PipelineStage({', '.join(options) or 'mesh=None'})", "MindFormers gives a mesh")
        self.submodule, self.stage_index, self.stage_num = submodule, stage_index, stage_num
        self.mesh, self.ranks = mesh, mesh.size()
        self.wire = Wire(group or mesh.get_group())
        self._flying: dict[int, _InFlight] = {}
        self._box = _Boxes()
        enable_mindspore_backward_compat()

    @property
    def is_first_stage(self) -> bool:
        return self.stage_index == 0

    @property
    def is_last_stage(self) -> bool:
        return self.stage_index == self.stage_num - 1

    @property
    def sharded(self) -> HSDPModule | None:
        """The chunk as an FSDP module, None where it isn't one."""
        return self.submodule if isinstance(self.submodule, HSDPModule) else None

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward_one_chunk(
        self, micro_index: int, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs the chunk and keeps what its backward needs."""
        inputs = tuple(args) if self.is_first_stage else self._box.inputs.pop(micro_index)
        leaves = tuple(t for t in inputs if isinstance(t, Tensor) and t.requires_grad)
        session = RecomputeSession(f"micro-batch {micro_index} of stage {self.stage_index}")
        with session.recording():
            out = record(self.submodule, *inputs, inputs=leaves, **(kwargs or {}))
        outputs = out if isinstance(out, tuple) else (out,)
        self._flying[micro_index] = _InFlight(session, inputs, outputs)
        if not self.is_last_stage:
            self._box.outputs[micro_index] = outputs
        return out

    # -- backward --------------------------------------------------------------------------------------------------

    def recompute_one_chunk(self, micro_index: int) -> None:
        """Replays the chunk's checkpointed blocks now, on this thread, for the backward that follows."""
        self._flying[micro_index].session.prefire()

    def backward_one_chunk(self, micro_index: int) -> None:
        """The whole backward: gradients of the weights into ``Parameter.grad``, those of the inputs to be sent."""
        flight = self._take(micro_index, "backward")
        with flight.session.use("whole"):
            accumulate_backward(*self._seeds(micro_index, flight))
        del self._flying[micro_index]
        self._give_back(micro_index, flight.leaves, tuple(t.grad for t in flight.leaves))

    def backward_input_one_chunk(self, micro_index: int) -> None:
        """dx alone. The first stage has none: its dw does the whole backward."""
        if self.is_first_stage:
            return
        flight = self._take(micro_index, "dx")
        outputs, seeds = self._seeds(micro_index, flight)
        weights = tuple(self.submodule.trainable_params())
        with flight.session.use("dx"):
            flight.split = SplitBackward(outputs, flight.leaves, weights)
            found = flight.split.dx(seeds)
        flight.grads = weights
        self._give_back(micro_index, flight.leaves, found)

    def backward_weight_one_chunk(self, micro_index: int) -> None:
        """dw alone, after dx."""
        flight = self._take(micro_index, "dw")
        if flight.split is None:
            if not self.is_first_stage:
                raise SessionError(f"dw of {flight.session.name} called before dx")
            self.backward_one_chunk(micro_index)
            return
        with flight.session.use("dw"):
            found = flight.split.dw()
        del self._flying[micro_index]
        for weight, grad in zip(flight.grads, found, strict=True):
            if grad is not None:
                weight.grad = grad if weight.grad is None else weight.grad + grad

    def _take(self, micro_index: int, what: str) -> _InFlight:
        if micro_index not in self._flying:
            raise SessionError(
                f"{what} of micro-batch {micro_index} on stage {self.stage_index}: its forward isn't in "
                f"flight (in flight: {list(self._flying) or 'none'})"
            )
        return self._flying[micro_index]

    def _seeds(self, micro_index: int, flight: _InFlight) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """The outputs with a graph, and the gradient of each."""
        live = tuple(t for t in flight.outputs if isinstance(t, Tensor) and t.requires_grad)
        if not self.is_last_stage:
            return live, self._box.grads.pop(micro_index)
        seeds = zip(flight.outputs, self.get_last_stage_sens(flight.outputs), strict=True)
        return live, tuple(seed for out, seed in seeds if any(out is t for t in live))

    def get_last_stage_sens(self, last_stage_outputs: Any) -> Any:
        """The gradient that the last stage's backward begins with: ones, a list of them for several outputs."""
        if isinstance(last_stage_outputs, (tuple, list)):
            return [_ones(out) for out in last_stage_outputs]
        return _ones(last_stage_outputs)

    def _give_back(self, micro_index: int, leaves: Sequence[Tensor], grads: Sequence[Tensor | None]) -> None:
        if not self.is_first_stage:
            filled = [
                mint.zeros(t.shape, dtype=t.dtype) if g is None else g for t, g in zip(leaves, grads, strict=True)
            ]
            self._box.input_grads[micro_index] = tuple(filled)

    # -- messages --------------------------------------------------------------------------------------------------

    def _peer(self, stage_index: int) -> int:
        return int(self.mesh.rank_list[stage_index % self.ranks])

    def send_forward(self, micro_index: int) -> None:
        """Sends the outputs to the next stage."""
        self.wire.send(self._peer(self.stage_index + 1), "forward", self._box.outputs.pop(micro_index))

    def receive_forward(self, micro_index: int) -> None:
        """Receives the inputs from the stage before."""
        self._box.inputs[micro_index] = self.wire.receive(self._peer(self.stage_index - 1), "forward")

    def send_backward(self, micro_index: int) -> None:
        """Sends the gradients of the inputs to the stage before."""
        self.wire.send(self._peer(self.stage_index - 1), "backward", self._box.input_grads.pop(micro_index))

    def receive_backward(self, micro_index: int) -> None:
        """Receives the gradients of the outputs from the next stage."""
        self._box.grads[micro_index] = self.wire.receive(self._peer(self.stage_index + 1), "backward")

    # -- around all micro-batches ----------------------------------------------------------------------------------

    def begin(self) -> None:
        """A training step begins: the order, not the modules' own hooks, gathers, reduces and reshards."""
        if self.sharded is not None:
            self.sharded.set_reshard_after_forward(False)
            self.sharded.set_reshard_after_backward(False)
            self.sharded.set_requires_gradient_sync(False)

    def unshard(self) -> None:
        """Gathers the parameters of every FSDP module of the chunk."""
        for module in self._modules():
            module.unshard()

    def reshard(self) -> None:
        """Frees the gathered parameters."""
        for module in self._modules():
            module.reshard()

    def reduce_gradients(self) -> None:
        """Reduces what all micro-batches have added up."""
        if self.sharded is not None:
            self.sharded.reduce_gradients()

    def _modules(self) -> list[HSDPModule]:
        return [cell for _, cell in self.submodule.cells_and_names() if isinstance(cell, HSDPModule)]

    def finish(self) -> None:
        """A training step ends: everything sent has left, and nothing is in flight."""
        self.wire.finish()
        left = [*self._flying, *self._box.inputs, *self._box.grads, *self._box.outputs, *self._box.input_grads]
        if left:
            raise SessionError(f"stage {self.stage_index}: micro-batches {sorted(set(left))} aren't through")


def _ones(like: Tensor) -> Tensor:
    return mint.ones(like.shape, dtype=like.dtype)
