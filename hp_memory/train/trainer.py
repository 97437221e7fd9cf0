"""Loss, gradients and update of one step, over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint

from hp_memory.errors import NotFinite
from hp_memory.kernels import devices
from hp_memory.kernels.groups import Group
from hp_memory.models.reference import Model, next_token_loss
from hp_memory.models.reference.init import is_expert
from hp_memory.runs.checkpoint import DamagedCheckpoint
from hp_memory.train.data import MicroBatch
from hp_memory.train.optimizer import AdamW
from hp_memory.train.process import Groups, gather_bytes
from hp_memory.train.settings import TrainSettings


class Trainer:
    """A model with its optimizer. The loss is the mean over the tokens of all ranks and micro-batches.

    Attributes:
        parameters: the trainable parameters; gradients come in this order.
        step: steps done.
    """

    def __init__(self, model: Model, settings: TrainSettings, groups: Groups) -> None:
        self.model, self.settings, self.groups = model, settings, groups
        self.parameters = model.trainable_params()
        self.optimizer = AdamW(self.parameters, settings)
        self._own_loss: Tensor | None = None
        self._after_forward: Callable[[], None] | None = None
        self._value_and_grad = ms.value_and_grad(self._forward, None, self.parameters)

    @property
    def step(self) -> int:
        return self.optimizer.step

    def loss_and_grads(
        self, batch: Sequence[MicroBatch], after_forward: Callable[[], None] | None = None
    ) -> tuple[float, list[Tensor]]:
        """The step's loss and gradients, averaged over the ranks; no parameter changes.

        Args:
            batch: this rank's micro-batches.
            after_forward: called after each micro-batch's forward, when its activations are held and its backward has
                not begun.
        """
        self._after_forward = after_forward
        losses: list[Tensor] = []
        total: list[Tensor] = []
        try:
            for micro in batch:
                loss, grads = self._value_and_grad(Tensor(micro.tokens), Tensor(micro.labels))
                losses.append(loss)
                total = [*grads] if not total else [a + b for a, b in zip(total, grads, strict=True)]
        finally:
            self._after_forward = None
        scale = 1.0 / (len(batch) * self.groups.world.size)
        return self._mean_loss(losses), self._average(total, scale)

    def require_finite(self, loss: float) -> None:
        """Stops a training that has gone astray, before the update and so before any checkpoint of it.

        Raises:
            NotFinite: on every rank, if the step's loss isn't finite, naming the ranks whose own part isn't.
        """
        if math.isfinite(loss):
            return
        assert self._own_loss is not None, "there is a loss"
        parts = gather_bytes(bytes([not math.isfinite(float(self._own_loss.asnumpy()))]), self.groups.world)
        ranks = [rank for rank, part in enumerate(parts) if part[0]]
        raise NotFinite(f"the loss of step {self.step + 1} is {loss}: not finite on rank(s) {ranks}")

    def apply(self, grads: Sequence[Tensor]) -> None:
        """The optimizer's update."""
        self.optimizer.apply(grads)

    def train_step(self, batch: Sequence[MicroBatch]) -> float:
        """One whole step; returns the loss before the update. Raises NotFinite before it."""
        loss, grads = self.loss_and_grads(batch)
        self.require_finite(loss)
        self.apply(grads)
        return loss

    def evaluate(self, batches: Sequence[MicroBatch]) -> float:
        """The mean loss over all ranks, without gradients."""
        losses = [next_token_loss(self.model(Tensor(b.tokens)), Tensor(b.labels)) for b in batches]
        return self._mean_loss(losses)

    def state(self) -> dict[str, np.ndarray]:
        """Parameters and optimizer state by name, for a checkpoint."""
        return {p.name: p.asnumpy() for p in self.parameters} | self.optimizer.state()

    def load_state(self, arrays: dict[str, np.ndarray], step: int) -> None:
        """Continues from what ``state`` gave after ``step`` steps.

        Raises:
            KeyError: for a missing array.
            DamagedCheckpoint: for one of another shape, before anything is changed.
        """
        for parameter in self.parameters:
            if tuple(arrays[parameter.name].shape) != tuple(parameter.shape):
                why = f"is {arrays[parameter.name].shape} in the checkpoint, the model's is {tuple(parameter.shape)}"
                raise DamagedCheckpoint(f"{parameter.name} {why}")
        for parameter in self.parameters:
            parameter.set_data(Tensor(arrays[parameter.name]))
        self.optimizer.load_state(arrays, step)

    def _forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        loss = next_token_loss(self.model(tokens), labels)
        if self._after_forward:
            self._after_forward()
        return loss

    def _mean_loss(self, losses: Sequence[Tensor]) -> float:
        total = sum(losses[1:], losses[0])
        self._own_loss = total
        total = devices.collectives().reduce_sum(total.reshape(1), self.groups.world)
        return float(total.asnumpy()[0]) / (len(losses) * self.groups.world.size)

    def _average(self, grads: list[Tensor], scale: float) -> list[Tensor]:
        """Sums each gradient over the ranks that hold its parameter, and scales it.

        An expert's gradient has come from every rank of its group already, with the tokens sent there, so it is summed
        over the expert's copies only; all are scaled alike.
        """
        ours = [is_expert(p.name) for p in self.parameters]
        for wanted, group in ((False, self.groups.world), (True, self.groups.expert_copies)):
            places = [i for i, expert in enumerate(ours) if expert == wanted]
            for i, grad in zip(places, _sum_together([grads[i] for i in places], group), strict=True):
                grads[i] = grad * scale
        return grads


def _sum_together(grads: list[Tensor], group: Group) -> list[Tensor]:
    """Each tensor's sum over the group, by one collective for all."""
    if group.size == 1 or not grads:
        return grads
    flat = devices.collectives().reduce_sum(mint.cat([grad.reshape(-1) for grad in grads], 0), group)
    parts = mint.split(flat, [grad.size for grad in grads], 0)
    return [part.reshape(grad.shape) for part, grad in zip(parts, grads, strict=True)]
