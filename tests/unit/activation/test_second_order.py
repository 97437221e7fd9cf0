"""Gradients of gradients through a checkpoint with a saved region."""

from __future__ import annotations

import mindspore as ms
import pytest
from mindspore import mint, ops

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper
from hp_memory.mindspore.private import executor, run_backward

BODIES = {
    "itself": lambda x: x * x,
    "flattened": lambda x: (lambda y: y * y)(x.reshape(-1)).reshape(x.shape),
    "flattened, its own factor": lambda x: (lambda y: ops.tanh(y) * y)(x.reshape(-1)).reshape(x.shape),
    "viewed": lambda x: (lambda y: y * y * y)(x.view(-1)).view(x.shape),
    "unsqueezed": lambda x: (lambda y: y * y * y)(mint.unsqueeze(x, 0)).reshape(x.shape),
    "both shapes": lambda x: x * x * (x.reshape(-1) * x.reshape(-1)).reshape(x.shape),
    "transposed": lambda x: (lambda y: y * y * y)(x.T).T,
    "rows": lambda x: (lambda y: y * y * y)(x[0:1]) * x,
    "other shape": lambda x: mint.matmul(x.reshape(4, 2), x).reshape(-1)[:8].reshape(2, 4),
}
INPUTS = {
    "the block's input": lambda x: x,
    "reshaped input": lambda x: x.reshape(4, 2).reshape(2, 4),
    "made in the block": lambda x: x * 1.5,
    "made and reshaped": lambda x: (x * 1.5).view(-1).view(2, 4),
}


def by_functions(run, x):
    return ms.grad(lambda v: (ms.grad(run)(v) * v).sum())(x).asnumpy()


def by_engine(run, x):
    """One engine run that is recorded, then another through it."""
    before = executor.grad_flag()
    executor.set_grad_flag(True)
    x = ms.Tensor(x.asnumpy())
    x.requires_grad_()
    try:
        out = run(x)
        (first,) = run_backward((out,), (ops.ones_like(out),), True, True, (x,), True, accumulate_grad=False)
        out = (first * x).sum()
        return run_backward((out,), (ops.ones_like(out),), False, False, (x,), True, accumulate_grad=False)[0].asnumpy()
    finally:
        executor.set_grad_flag(before)


@pytest.mark.parametrize("given", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("twice", [by_functions, by_engine])
def test_equal_to_the_plain_block(tensor, given, body, twice):
    def block(call):
        return lambda x: ops.tanh(call(given(x))).sum()

    x = tensor(2, 4)
    want = twice(block(body), x)
    native = twice(lambda x: ms.recompute(block(body), x, use_reentrant=False, early_stop=False), x)
    assert want.tobytes() == native.tobytes()
    region = checkpoint_exclude_wrapper(body, name="r")
    assert want.tobytes() == twice(checkpoint_wrapper(block(region)), x).tobytes()
