"""Regions and blocks that take and return distributed tensors, converted in Cell hooks as MindFormers does.

The distributed tensor is a Tensor subclass whose operations run on its local part through ``__fallback__``: the
mechanism of HyperParallel's ``DTensor`` (``hyper_parallel/platform/mindspore/dtensor.py``).
"""

from __future__ import annotations

import contextlib

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore._c_expression import NoFallbackGuard

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, observe, region


class Distributed(ms.Tensor):
    """Replicated: its local part is the whole."""

    device_mesh, placements = "mesh", ("replicated",)

    def __new__(cls, local):
        made = ms.Tensor._make_subclass(cls, local)
        made._local = local
        return made

    def __init__(self, local):
        pass

    @staticmethod
    def from_local(local, mesh, placements):
        assert (mesh, placements) == ("mesh", ("replicated",))
        return Distributed(local)

    def to_local(self):
        return self._local

    def __fallback__(self, func, args=(), kwargs=None):
        with NoFallbackGuard():
            out = func(*_map(args, _local), **_map(kwargs or {}, _local))
        return _map(out, lambda value: Distributed(value) if type(value) is ms.Tensor else value)


def _local(value):
    return value.to_local() if isinstance(value, Distributed) else value


def _map(tree, fn):
    if isinstance(tree, (tuple, list)):
        return type(tree)(_map(item, fn) for item in tree)
    if isinstance(tree, dict):
        return {key: _map(item, fn) for key, item in tree.items()}
    return fn(tree)


class Linear(nn.Cell):
    def __init__(self, seen, local_output):
        super().__init__()
        values = np.random.RandomState(0).randn(8, 8).astype(np.float32) / 3
        self.weight, self.seen = ms.Parameter(ms.Tensor(values), name="weight"), seen
        self.register_forward_pre_hook(self.convert)
        if local_output:
            self.register_forward_hook(lambda cell, args, out: out.to_local())

    def convert(self, cell, args):
        self.seen.append("hook")
        return (args[0] if isinstance(args[0], Distributed) else Distributed(args[0]),)

    def construct(self, x):
        self.seen.append(type(x).__name__)
        return ops.matmul(x, self.weight)


class Block(nn.Cell):
    def __init__(self, seen, local_output, wrap):
        super().__init__()
        self.linear, self.seen = wrap(Linear(seen, local_output)), seen

    def construct(self, x):
        self.seen.append(f"block {type(x).__name__}")
        y = self.linear(ops.tanh(x))
        self.seen.append(f"gives {type(y).__name__}")
        return ops.tanh(ops.tanh(y) * y)


def plain(cell):
    return cell


def excluded(cell):
    return checkpoint_exclude_wrapper(cell, name="r")


def named(cell):
    return region(cell, name="r")


def train(wrap, boundary, distributed_input, local_output, context=contextlib.nullcontext):
    """(loss, dx, dw) and what was seen."""
    seen = []
    block = Block(seen, local_output, wrap)
    run = boundary(block)
    x = ms.Tensor(np.random.RandomState(1).randn(4, 8).astype(np.float32))
    with context():
        grad = ms.value_and_grad(lambda x: _local(run(x)).sum(), 0, block.trainable_params())
        value, (dx, dw) = grad(Distributed(x) if distributed_input else x)
    return [_local(t).asnumpy().tobytes() for t in (value, dx, dw[0])], seen


@pytest.mark.parametrize("local_output", [True, False], ids=["local output", "distributed output"])
@pytest.mark.parametrize("distributed_input", [False, True], ids=["local input", "distributed input"])
@pytest.mark.parametrize("context", [contextlib.nullcontext, observe], ids=["unobserved", "observed"])
class TestReplays:
    def test_a_plan_changes_no_bit(self, distributed_input, local_output, context):
        want, _ = train(plain, plain, distributed_input, local_output)
        for wrap in (plain, named, excluded):
            got, _ = train(wrap, checkpoint_wrapper, distributed_input, local_output, context)
            assert got == want, wrap.__name__

    def test_a_replay_takes_and_hands_out_what_the_forward_did(self, distributed_input, local_output, context):
        _, seen = train(excluded, checkpoint_wrapper, distributed_input, local_output, context)
        kind = "Tensor" if local_output else "Distributed"
        first = f"block {'Distributed' if distributed_input else 'Tensor'}"
        # The saved region's hooks and body run once: they belong to it.
        assert seen == [first, "hook", "Distributed", f"gives {kind}", first, f"gives {kind}"]

    def test_a_replayed_region_replays_its_hooks(self, distributed_input, local_output, context):
        _, seen = train(named, checkpoint_wrapper, distributed_input, local_output, context)
        assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def test_hooks_registered_afterwards_run_outside_and_once_more():
    """FSDP comes after the plan: its hooks gather around the region, and know nothing of the ones inside."""
    seen = []
    linear = Linear(seen, local_output=True)
    wrapped = excluded(linear)
    wrapped.register_forward_pre_hook(lambda cell, args: seen.append(f"outside {type(args[0]).__name__}"))
    wrapped.register_forward_hook(lambda cell, args, out: seen.append(f"outside {type(out).__name__}"))
    wrapped(ms.Tensor(np.ones((2, 8), np.float32)))
    assert seen == ["outside Tensor", "hook", "Distributed", "outside Tensor"]
    seen.clear()
    linear(ms.Tensor(np.ones((2, 8), np.float32)))
    assert seen == ["hook", "Distributed"], "the Cell itself stays as it was"


def test_a_removed_hook_is_gone():
    seen = []
    wrapped = excluded(Linear(seen, local_output=True))
    wrapped.register_forward_pre_hook(lambda cell, args: seen.append("outside")).remove()
    wrapped(ms.Tensor(np.ones((2, 8), np.float32)))
    assert seen == ["hook", "Distributed"]
