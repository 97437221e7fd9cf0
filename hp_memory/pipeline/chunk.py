"""One chunk of the model on one rank: runs its steps and keeps what each micro-batch needs between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from mindspore import Tensor, nn

from hp_memory.activation import Observation, observe
from hp_memory.errors import SessionError
from hp_memory.host.window import Window
from hp_memory.pipeline import held
from hp_memory.pipeline.session import RecomputeSession
from hp_memory.pipeline.split_backward import Gradients, SplitBackward, record, whole_backward


@dataclass
class _InFlight:
    """A micro-batch between its forward and its last backward step."""

    session: RecomputeSession
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    observation: Observation | None = None
    split: SplitBackward | None = None

    def held(self, parameters: frozenset[int]) -> dict[int, int]:
        """Storages that autograd holds for this micro-batch now, replayed ones too: address -> bytes."""
        assert self.observation is not None, "asked of an observed micro-batch only"
        return held.saved(self.observation, parameters) | held.replayed(self.session.living(), parameters)


class Chunk:
    """A Cell with its accumulated gradients and its micro-batches in flight.

    Args:
        index: the chunk's number in the schedule.
        cell: called as ``cell(*inputs, *data)``; returns a tensor or a tuple of tensors.
        rule: session rule (see ``RecomputeSession``).
        observed: count what autograd holds, for ``held_bytes``.
        window: where the cell's offloaded regions wait, if it has any.

    Attributes:
        grads: accumulated gradients, one per weight, in the order of ``weights``.
        on_forward: called with the session of each forward, for those who watch what is left of it.
    """

    def __init__(
        self, index: int, cell: nn.Cell, rule: str = "share", *, observed: bool = False, window: Window | None = None
    ) -> None:
        self.index, self.cell, self.rule, self.observed, self.window = index, cell, rule, observed, window
        self.weights = tuple(cell.trainable_params())
        self.grads: list[Tensor | None] = [None] * len(self.weights)
        self.on_forward: Callable[[RecomputeSession], None] | None = None
        self._flying: dict[int, _InFlight] = {}

    @property
    def in_flight(self) -> tuple[int, ...]:
        return tuple(self._flying)

    @property
    def held_bytes(self) -> int:
        """Bytes that autograd holds for the micro-batches in flight, each storage once. MEASURED, between steps.

        Copies to the host are waited for: what is on its way isn't held by autograd any more.
        """
        if self.window is not None:
            self.window.settle()
        storages: dict[int, int] = {}
        parameters = frozenset(weight.untyped_storage().data_ptr() for weight in self.cell.get_parameters())
        for flight in self._flying.values():
            storages |= flight.held(parameters)
        return sum(storages.values())

    def forward(self, micro: int, inputs: Sequence[Tensor], data: Sequence[Any] = ()) -> tuple[Tensor, ...]:
        """Outputs of one micro-batch. ``inputs`` get gradients later, ``data`` (tokens, labels) doesn't."""
        session = RecomputeSession(f"micro-batch {micro} of chunk {self.index}", self.rule)
        leaving = self.window.stretch(micro) if self.window is not None else nullcontext()
        with session.recording(), leaving, observe() if self.observed else nullcontext() as observation:
            out = record(self.cell, *inputs, *data, inputs=inputs)
        outputs = tuple(out) if isinstance(out, (tuple, list)) else (out,)
        self._flying[micro] = _InFlight(session, tuple(inputs), outputs, observation)
        if self.on_forward is not None:
            self.on_forward(session)
        return outputs

    def come_back(self, micro: int) -> None:
        """The backward of this micro-batch, or its replay, is near: what waits on the host starts to come back."""
        if self.window is not None:
            self.window.ahead(micro)

    def prefire(self, micro: int) -> None:
        """Replay the checkpointed calls of this micro-batch ahead of its gradient."""
        self._take(micro, "R").session.prefire()

    def whole(self, micro: int, grads: Sequence[Tensor]) -> Gradients:
        """Whole backward: adds to ``self.grads`` and returns the gradients of the inputs."""
        flight = self._take(micro, "BW")
        with flight.session.use("whole"):
            found = whole_backward(flight.outputs, grads, (*flight.inputs, *self.weights))
        del self._flying[micro]
        self._add(found[len(flight.inputs) :])
        return found[: len(flight.inputs)]

    def dx(self, micro: int, grads: Sequence[Tensor]) -> Gradients:
        """Gradients of the inputs alone."""
        flight = self._take(micro, "B")
        with flight.session.use("dx"):
            flight.split = flight.split or SplitBackward(flight.outputs, flight.inputs, self.weights)
            found = flight.split.dx(grads)
        flight.inputs = flight.outputs = ()
        return found

    def dw(self, micro: int) -> None:
        """Gradients of the weights, added to ``self.grads``."""
        flight = self._take(micro, "W")
        assert flight.split is not None, "dx comes first"
        with flight.session.use("dw"):
            found = flight.split.dw()
        del self._flying[micro]
        self._add(found)

    def _take(self, micro: int, op: str) -> _InFlight:
        if micro not in self._flying:
            raise SessionError(
                f"{op} of micro-batch {micro} on chunk {self.index}: no forward of it is in flight "
                f"(in flight: {list(self._flying) or 'none'})"
            )
        return self._flying[micro]

    def _add(self, found: Gradients) -> None:
        for i, grad in enumerate(found):
            if grad is not None:
                self.grads[i] = grad if self.grads[i] is None else self.grads[i] + grad
