"""Gradients of a weight used transposed, added over several backwards, against numpy."""

from __future__ import annotations

import numpy as np
import pytest


def _sum_of_three(prepare) -> tuple[np.ndarray, np.ndarray]:
    from mindspore import Parameter, Tensor, mint

    from hp_memory.mindformers.standin import autograd

    autograd.enable_mindspore_backward_compat()
    rng = np.random.default_rng(3)
    weight = Parameter(Tensor(rng.random((4, 6), np.float32)), name="weight")
    prepare(weight)
    expected = np.zeros((4, 6), np.float32)
    for _ in range(3):
        x, seed = rng.random((3, 6), np.float32), rng.random((3, 4), np.float32)
        mint.matmul(Tensor(x), mint.transpose(weight, 0, 1)).backward(Tensor(seed))
        expected += seed.T @ x
    return weight.grad.asnumpy(), expected


def test_gradients_are_added_element_by_element(mindspore):
    from hp_memory.mindformers.cpu_grads import add_in_order

    found, expected = _sum_of_three(add_in_order)
    assert found == pytest.approx(expected, rel=1e-6)


def test_mindspore_still_needs_it(mindspore):
    """Once this fails, ``cpu_grads`` can go."""
    found, expected = _sum_of_three(lambda weight: None)
    assert found != pytest.approx(expected, rel=1e-2)
