"""The host never waits for the device in a block that draws nothing: calls that would wait are counted."""

from __future__ import annotations

from collections import Counter

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, nn, ops
from mindspore.common.generator import default_generator

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, random_state

WAITING = ("untyped_storage", "data_ptr", "storage", "asnumpy", "item", "tolist")


class Layer(nn.Cell):
    def __init__(self, number):
        super().__init__()
        value = np.random.RandomState(number).randn(8, 8).astype(np.float32)
        self.w = ms.Parameter(ms.Tensor(value), name=f"w{number}")

    def construct(self, x):
        return mint.matmul(x, self.w)


class Block(nn.Cell):
    """Matrix products with an activation before each, ``between`` between two of them."""

    def __init__(self, layers, saved, between):
        super().__init__()
        cells = [Layer(i) for i in range(layers)]
        self.stack = nn.CellList([checkpoint_exclude_wrapper(c) if i < saved else c for i, c in enumerate(cells)])
        self.between = between

    def construct(self, x):
        for cell in self.stack:
            x = cell(self.between(x))
        return x


@pytest.fixture
def waits(monkeypatch):
    """Names of waiting calls and how often each was made."""
    found = Counter()

    def counted(name, original):
        def call(*args, **kwargs):
            found[name] += 1
            return original(*args, **kwargs)

        return call

    for name in WAITING:
        monkeypatch.setattr(ms.Tensor, name, counted(name, getattr(ms.Tensor, name)))
    monkeypatch.setattr(default_generator, "get_state", counted("get_state", default_generator.get_state))
    monkeypatch.setattr(random_state, "_set_state", counted("set_state", random_state._set_state))
    return found


@pytest.mark.parametrize(
    "between",
    [ops.tanh, lambda x: x.reshape(-1).reshape(-1, 8), lambda x: ops.softmax(x) * 2.0],
    ids=["an activation", "views", "what saves its result"],
)
@pytest.mark.parametrize("saved", [0, 3, 9])
def test_none_in_the_steady_state(tensor, waits, saved, between):
    block = Block(9, saved, between)
    run, weights = checkpoint_wrapper(block), block.trainable_params()
    step = ms.value_and_grad(lambda x: run(x).sum(), 0, weights)
    for i in range(3):
        waits.clear()
        step(tensor(4, 8, seed=i))
    assert not waits


def test_one_state_per_block_that_draws(tensor, waits):
    """Of a block with one draw outside and one inside a saved region, not more states than draws."""

    def draw(x):
        _, offset = default_generator._step(ms.Tensor(4, ms.int64))
        return ops.tanh(x) * offset.astype(ms.float32)

    region = checkpoint_exclude_wrapper(draw, name="drawing")
    run = checkpoint_wrapper(lambda x: draw(region(draw(x))))
    for i in range(3):
        waits.clear()
        ms.grad(lambda x: run(x).sum())(tensor(4, 8, seed=i))
    assert waits["get_state"] <= 4
    assert waits["set_state"] <= 4
    assert set(waits) == {"get_state", "set_state"}
