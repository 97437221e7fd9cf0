"""Compares a kernel with a double-precision reference: values, and gradients by central differences."""

from __future__ import annotations

import numpy as np
import pytest


def _as_tuple(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.fixture
def check_kernel(mindspore):
    """check(kernel, reference, *arrays): both take and return arrays or tuples of them, all differentiable."""

    def check(kernel, reference, *arrays, places=6):
        tensors = [mindspore.Tensor(a.astype(np.float32)) for a in arrays]
        exact = [a.astype(np.float64) for a in arrays]
        outputs, wanted = _as_tuple(kernel(*tensors)), _as_tuple(reference(*exact))
        for output, want in zip(outputs, wanted, strict=True):
            np.testing.assert_allclose(output.asnumpy(), want, rtol=2e-5, atol=2e-5)
        weights = [np.random.default_rng(i).standard_normal(w.shape) for i, w in enumerate(wanted)]

        def loss(*inputs):
            parts = zip(_as_tuple(kernel(*inputs)), weights, strict=True)
            return sum((out * mindspore.Tensor(w.astype(np.float32))).sum() for out, w in parts)

        def exact_loss(*inputs):
            return sum((out * w).sum() for out, w in zip(_as_tuple(reference(*inputs)), weights, strict=True))

        grads = mindspore.grad(loss, tuple(range(len(tensors))))(*tensors)
        for number, grad in enumerate(_as_tuple(grads)):
            assert grad.shape == arrays[number].shape
            generator = np.random.default_rng(number)
            for _ in range(places):
                place = tuple(generator.integers(0, n) for n in arrays[number].shape)
                slope = _central_difference(exact_loss, exact, number, place)
                assert grad.asnumpy()[place] == pytest.approx(slope, rel=2e-3, abs=2e-4)

    return check


def _central_difference(function, inputs, number, place, step=1e-5):
    values = []
    for sign in (1, -1):
        moved = [a.copy() for a in inputs]
        moved[number][place] += sign * step
        values.append(function(*moved))
    return (values[0] - values[1]) / (2 * step)


@pytest.fixture
def saved_by(mindspore):
    """saved(function, *tensors): the storage addresses that autograd saves in the function's forward."""

    def saved(function, *tensors):
        kept = []

        def pack(tensor):
            kept.append((tuple(tensor.shape), tensor.untyped_storage().data_ptr()))
            return tensor

        with mindspore.saved_tensors_hooks(pack, lambda tensor: tensor):
            mindspore.grad(lambda *xs: _as_tuple(function(*xs))[0].sum(), tuple(range(len(tensors))))(*tensors)
        return kept

    return saved
