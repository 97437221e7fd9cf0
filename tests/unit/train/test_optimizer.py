"""AdamW against its formula in double precision, and the learning rate."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from hp_memory.train.settings import TrainSettings


@pytest.fixture
def sizes():
    return TrainSettings(steps=20, micro_batch_size=1, learning_rate=0.1, min_learning_rate=0.01, warmup_steps=4)


def reference(weight, grads, sizes, rate_of):
    """Loshchilov and Hutter, algorithm 2, with the decay only for matrices."""
    first = second = np.zeros_like(weight)
    for step, grad in enumerate(grads):
        rate = rate_of(step, sizes)
        first = sizes.beta1 * first + (1 - sizes.beta1) * grad
        second = sizes.beta2 * second + (1 - sizes.beta2) * grad**2
        mean, square = first / (1 - sizes.beta1 ** (step + 1)), second / (1 - sizes.beta2 ** (step + 1))
        decay = rate * sizes.weight_decay if weight.ndim > 1 else 0.0
        weight = weight * (1 - decay) - rate * mean / (np.sqrt(square) + sizes.epsilon)
    return weight


@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_adamw_follows_the_formula(mindspore, sizes, shape):
    from hp_memory.train.optimizer import AdamW, learning_rate

    generator = np.random.default_rng(0)
    start, grads = generator.standard_normal(shape), [generator.standard_normal(shape) for _ in range(5)]
    parameter = mindspore.Parameter(mindspore.Tensor(start.astype(np.float32)), name="w")
    optimizer = AdamW([parameter], sizes)
    for grad in grads:
        optimizer.apply([mindspore.Tensor(grad.astype(np.float32))])
    want = reference(start, grads, sizes, learning_rate)
    np.testing.assert_allclose(parameter.asnumpy(), want, rtol=1e-5, atol=1e-5)


def test_the_rate_warms_up_then_falls_to_the_minimum(mindspore, sizes):
    from hp_memory.train.optimizer import learning_rate

    rates = [learning_rate(step, sizes) for step in range(25)]
    assert rates[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert all(a >= b for a, b in itertools.pairwise(rates[3:]))
    assert rates[20:] == pytest.approx([0.01] * 5)


def test_decay_steps_keep_the_rate_when_a_run_is_continued_for_longer(mindspore, sizes):
    from dataclasses import replace

    from hp_memory.train.optimizer import learning_rate

    short, long = replace(sizes, decay_steps=40), replace(sizes, decay_steps=40, steps=40)
    assert [learning_rate(s, short) for s in range(20)] == [learning_rate(s, long) for s in range(20)]
