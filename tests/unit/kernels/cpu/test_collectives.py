"""The collectives on one rank; tests/integration/train runs them on two."""

from __future__ import annotations

import numpy as np
import pytest

from hp_memory.kernels.groups import ALONE


@pytest.fixture(scope="module")
def collectives(mindspore):
    from hp_memory.kernels.cpu import collectives

    return collectives


@pytest.mark.parametrize("rows", [6, 0])
def test_all_to_all_with_oneself_is_the_identity(collectives, mindspore, rows):
    x = mindspore.ops.ones((rows, 3))
    out = collectives.all_to_all_single(x, (rows,), (rows,), ALONE)
    np.testing.assert_array_equal(out.asnumpy(), x.asnumpy())
    grad = mindspore.grad(lambda x: (collectives.all_to_all_single(x, (rows,), (rows,), ALONE) * 2.0).sum())(x)
    np.testing.assert_array_equal(grad.asnumpy(), 2 * x.asnumpy())


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_reduce"])
def test_alone_every_collective_is_the_identity(collectives, mindspore, name):
    x = mindspore.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    collective = getattr(collectives, name)
    np.testing.assert_array_equal(collective(x, ALONE).asnumpy(), x.asnumpy())
    grad = mindspore.grad(lambda x: (collective(x, ALONE) * 3.0).sum())(x)
    np.testing.assert_array_equal(grad.asnumpy(), np.full((2, 3), 3.0, np.float32))


def test_a_reduction_leaves_its_input_alone(collectives, mindspore):
    x = mindspore.ops.ones((3,))
    collectives.reduce_sum(x, ALONE).copy_(mindspore.ops.zeros((3,)))
    assert x.asnumpy().tolist() == [1, 1, 1]
