"""Gradients that MindSpore's CPU backend adds up wrongly, put right.

From the second backward on, autograd adds to a parameter's gradient as both lie in memory. The gradient of a weight
that was used transposed lies in memory transposed the first time and not the next: the sum mixes up its elements,
without an error. A gradient made contiguous before it is added has one order only.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from mindspore import Parameter, Tensor


def add_in_order(parameter: Parameter) -> None:
    """Makes each new gradient of ``parameter`` contiguous before it is added to the others."""
    if parameter.requires_grad:
        parameter.register_hook(_contiguous)


def _contiguous(grad: Tensor) -> Tensor:
    return grad.contiguous()


def apply() -> None:
    """Has every Trainer of one process do so; over several processes gradients are taken after each backward."""
    trainer = importlib.import_module("mindformers.pynative.trainer.trainer").Trainer
    plain = trainer._register_grad_hooks
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def register(self: Any) -> None:
        plain(self)
        for model in () if self.enable_parallel else self.model:
            for parameter in model.trainable_params():
                add_in_order(parameter)

    trainer._register_grad_hooks = register
