"""Somebody around the checkpoint packs what is saved, as an offload to the host: the replay's inputs lie elsewhere."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, ops

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper
from hp_memory.mindspore.private import Function

VIEWS = {
    "transposed": lambda t: mint.transpose(t, 0, 1),
    "itself": lambda t: t,
    "rows": lambda t: mint.narrow(t, 0, 1, 1),
    "columns": lambda t: mint.chunk(t, 2, 1)[1],
}
SPLITS = {
    "rows of one storage": lambda x: mint.split(x * 1.0, 2, 0),
    "columns of one storage": lambda x: mint.chunk(x * 1.0, 2, 1),
    "one inside the other": lambda x: (lambda y: (mint.narrow(y, 0, 0, 3)[:2], mint.narrow(y, 0, 1, 2)))(x * 1.0),
    "transposed": lambda x: [t.T for t in mint.split(x * 1.0, 2, 0)],
    "two storages": lambda x: (x * 1.0, x * 2.0),
}


def saves_views(view):
    """A custom function that saves views of its inputs, as a fused kernel keeps the layout that it wants."""

    class SavesViews(Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(view(a), view(b))
            return a * 1.0 + b * 2.0

        @staticmethod
        def backward(ctx, grad):
            a, b = ctx.saved_tensors
            return grad * a.sum() + grad, grad * b.sum() - grad

    return SavesViews.apply


def on_the_host():
    return ms.saved_tensors_hooks(lambda t: t.asnumpy().copy(), Tensor)


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("inside", [False, True], ids=["made before the block", "made in the block"])
def test_views_stay_within_their_own_input(steps, tensor, view, split, inside):
    body = saves_views(view)

    def loss(call, hooked):
        def block(a, b):
            return ops.tanh(call(a, b))

        def whole(x):
            return block(*split(x))

        def run(x):
            given = (x,) if inside else split(x)
            part = wrap(whole if inside else block)
            if not hooked:
                return part(*given)
            with on_the_host():
                return part(*given)

        wrap = checkpoint_wrapper if call is not body else lambda fn: fn
        return run

    x = tensor(4, 6)
    want = steps.run(loss(body, False), x)
    region = checkpoint_exclude_wrapper(body, name="r")
    for hooked in (False, True):
        assert steps.same(want, steps.run(loss(region, hooked), x))


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_built_in_operations_on_parts_of_one_storage(steps, tensor, split):
    def body(a, b):
        return a * a * 0.5 + (b.reshape(-1) * b.reshape(-1)).reshape(b.shape)

    def loss(block, hooked):
        def run(x):
            given = split(x)
            if not hooked:
                return block(*given)
            with on_the_host():
                return block(*given)

        return run

    x = tensor(4, 6)
    want = steps.run(loss(lambda a, b: ops.tanh(body(a, b)), False), x)
    region = checkpoint_exclude_wrapper(body, name="r")
    wrapped = checkpoint_wrapper(lambda a, b: ops.tanh(region(a, b)))
    for hooked in (False, True):
        assert steps.same(want, steps.run(loss(wrapped, hooked), x))


def test_offsets_of_large_inputs(steps):
    """Far apart in one storage: what lay after the first would be far outside the second."""
    x = Tensor(np.random.RandomState(0).randn(4, 1024).astype(np.float32))
    body = saves_views(VIEWS["transposed"])
    region = checkpoint_exclude_wrapper(body, name="r")
    wrapped = checkpoint_wrapper(lambda a, b: ops.tanh(region(a, b)))

    def loss(x):
        a, b = mint.split(x * 1.0, 2, 0)
        with on_the_host():
            return wrapped(a, b)

    want = steps.run(lambda x: ops.tanh(body(*mint.split(x * 1.0, 2, 0))), x)
    assert steps.same(want, steps.run(loss, x))
