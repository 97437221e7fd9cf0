"""Copies of weights aren't held: a cast, reshape, transposition or slice of a parameter is made again in backward."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.common._grad_function import _Function

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, observe
from hp_memory.activation.weights import axes_of

ROWS, IN, OUT, EXPERTS = 5, 8, 6, 3


class SavesView(_Function):
    """x @ view, whose backward is given the view itself, as on a device whose kernels take strided operands."""

    @staticmethod
    def forward(ctx, x, view):
        ctx.save_for_backward(x, view)
        return mint.matmul(x, view)

    @staticmethod
    def backward(ctx, grad):
        x, view = ctx.saved_tensors
        return mint.matmul(grad, mint.transpose(view, 0, 1)), mint.matmul(mint.transpose(x, 0, 1), grad)


def half(x, weight):
    return ops.cast(mint.matmul(ops.cast(x, ms.float16), weight), ms.float32)


def cast(weight):
    return ops.cast(weight, ms.float16)


# w is (OUT, IN), square (IN, IN), stack (EXPERTS, OUT, IN)
BODIES = {
    "itself": lambda cell, x: mint.matmul(x, cell.square),
    "cast": lambda cell, x: half(x, cast(cell.square)),
    "reshaped": lambda cell, x: mint.matmul(x, cell.w.reshape(IN, OUT)),
    "transposed": lambda cell, x: mint.matmul(x, cell.w.T),
    "cast, then transposed": lambda cell, x: half(x, mint.transpose(cast(cell.w), 1, 0)),
    "transposed, then cast": lambda cell, x: half(x, cast(ops.transpose(cell.w, (1, 0)))),
    "a stack, permuted": lambda cell, x: mint.bmm(
        x.expand_dims(0).broadcast_to((EXPERTS, *x.shape)), mint.permute(cell.stack, (0, 2, 1))
    )[0],
    "a strided view": lambda cell, x: SavesView.apply(x, cell.square.T),
    "a strided view of a cast": lambda cell, x: ops.cast(
        SavesView.apply(ops.cast(x, ms.float16), cast(cell.square).T), ms.float32
    ),
    "a strided slice": lambda cell, x: SavesView.apply(x, cell.stack[1].T),
    "linear": lambda cell, x: mint.nn.functional.linear(x, cell.w),
}


class Part(nn.Cell):
    def __init__(self, body):
        super().__init__()
        random = np.random.RandomState(2)
        for name, shape in (("w", (OUT, IN)), ("square", (IN, IN)), ("stack", (EXPERTS, OUT, IN))):
            setattr(self, name, ms.Parameter(Tensor(random.randn(*shape).astype(np.float32)), name=name))
        self.body = body

    def construct(self, x):
        return self.body(self, x)


def block(part):
    return lambda x: ops.tanh(part(ops.tanh(x)))


def held_weights(seen):
    return [held for held in seen.held if held.region == "part" and ROWS not in held.shape]


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_nothing_of_a_weight_is_held(steps, tensor, body):
    plain, part = Part(body), Part(body)
    wrapped = checkpoint_wrapper(block(checkpoint_exclude_wrapper(part, name="part")))
    want = steps.run(block(plain), tensor(ROWS, IN), weights=plain.trainable_params())
    for _ in range(3):
        with observe() as seen:
            got = steps.run(wrapped, tensor(ROWS, IN), weights=part.trainable_params())
        assert steps.same(want, got)
        assert not held_weights(seen)


def test_of_every_call_of_a_region_that_serves_several_weights(steps, tensor):
    """Also weights that only a later step calls for."""

    class Shared(nn.Cell):
        def __init__(self, saved):
            super().__init__()
            for e in range(EXPERTS):
                values = np.random.RandomState(e).randn(IN, IN).astype(np.float32)
                setattr(self, f"w{e}", ms.Parameter(Tensor(values), name=f"w{e}"))
            self.called = []
            if saved:
                self.expert = checkpoint_exclude_wrapper(self.expert, name="part")

        def expert(self, x, e):
            return half(x, cast(getattr(self, f"w{e}")))

        def construct(self, x):
            x = ops.tanh(x)
            return ops.tanh(mint.cat([self.expert(x, e) for e in self.called], 0))

    plain, shared = Shared(False), Shared(True)
    wrapped = checkpoint_wrapper(shared)
    for called in ([0, 1], [0, 1, 2], [2], [1, 0]):
        plain.called = shared.called = called
        want = steps.run(plain, tensor(ROWS, IN), weights=[getattr(plain, f"w{e}") for e in called])
        with observe() as seen:
            got = steps.run(wrapped, tensor(ROWS, IN), weights=[getattr(shared, f"w{e}") for e in called])
        assert steps.same(want, got)
        assert not held_weights(seen)


def test_what_cant_be_told_apart_is_kept(steps, tensor):
    """A square weight's transposed copy: nothing says which way it lies."""
    plain, part = (Part(lambda cell, x: mint.matmul(x, cell.square.T)) for _ in range(2))
    wrapped = checkpoint_wrapper(block(checkpoint_exclude_wrapper(part, name="part")))
    want = steps.run(block(plain), tensor(ROWS, IN), weights=[plain.square])
    with observe() as seen:
        got = steps.run(wrapped, tensor(ROWS, IN), weights=[part.square])
    assert steps.same(want, got)
    assert [held.shape for held in held_weights(seen)] == [(IN, IN)]


@pytest.mark.parametrize(
    ("make", "names", "axes"),
    [
        (lambda w: w, ["Cast"], ()),
        (lambda w: w, ["Cast", "Cast"], None),
        (lambda w: w.permute((2, 0, 1)), ["TransposeView"], (2, 0, 1)),
        (lambda w: w.permute((2, 0, 1)).contiguous(), ["Contiguous", "TransposeView", "Cast"], (2, 0, 1)),
        (lambda w: w.permute((2, 0, 1)), ["TransposeView", "Transpose"], None),
        (lambda w: w.permute((2, 0, 1)), ["TransposeView", "Reshape"], None),
        (lambda w: w.permute((2, 0, 1))[:, :1], ["TransposeView"], None),
    ],
)
def test_a_transposition_is_taken_where_one_answer_is_left(tensor, make, names, axes):
    weight = tensor(2, 3, 4)
    assert axes_of(make(weight), names, weight.shape) == axes
