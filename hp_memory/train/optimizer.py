"""AdamW and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, ops
from mindspore import dtype as mstype

from hp_memory.train.settings import TrainSettings


def learning_rate(step: int, settings: TrainSettings) -> float:
    """The rate of a step (from 0): linear warm-up, then a cosine to the minimum."""
    if step < settings.warmup_steps:
        return settings.learning_rate * (step + 1) / settings.warmup_steps
    end = settings.decay_steps or settings.steps
    done = min(1.0, (step - settings.warmup_steps) / max(1, end - settings.warmup_steps))
    swing = settings.learning_rate - settings.min_learning_rate
    return settings.min_learning_rate + swing * 0.5 * (1 + math.cos(math.pi * done))


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019) on MindSpore's fused kernel.

    Attributes:
        step: updates made so far.
    """

    def __init__(self, parameters: Sequence[Parameter], settings: TrainSettings) -> None:
        self.parameters, self.settings, self.step = list(parameters), settings, 0
        self._first = [_zeros_like(p, "first_moment") for p in self.parameters]
        self._second = [_zeros_like(p, "second_moment") for p in self.parameters]
        self._adam = ops.Adam()

    def apply(self, grads: Sequence[Tensor]) -> None:
        """One update of every parameter, in place."""
        s = self.settings
        rate = learning_rate(self.step, s)
        self.step += 1
        powers = [Tensor(beta**self.step, mstype.float32) for beta in (s.beta1, s.beta2)]
        fixed = [Tensor(x, mstype.float32) for x in (rate, s.beta1, s.beta2, s.epsilon)]
        for p, first, second, grad in zip(self.parameters, self._first, self._second, grads, strict=True):
            if p.ndim > 1:
                p.copy_(p * (1 - rate * s.weight_decay))
            self._adam(p, first, second, *powers, *fixed, grad)

    def state(self) -> dict[str, np.ndarray]:
        """Both moments by name, for a checkpoint."""
        return {moment.name: moment.asnumpy() for moment in (*self._first, *self._second)}

    def load_state(self, arrays: dict[str, np.ndarray], step: int) -> None:
        """Takes back what ``state`` gave after ``step`` updates. Raises KeyError for a missing moment."""
        for moment in (*self._first, *self._second):
            moment.set_data(Tensor(arrays[moment.name]))
        self.step = step


def _zeros_like(parameter: Parameter, kind: str) -> Parameter:
    return Parameter(ops.zeros(parameter.shape, parameter.dtype), name=f"{kind}.{parameter.name}", requires_grad=False)
