"""Random blocks under random layouts, replays and interleavings give the bits of the plain block, and leave nothing."""

from __future__ import annotations

import gc
import weakref
from collections import namedtuple

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import mint, nn, ops
from mindspore._c_expression import run_backward
from mindspore.common._grad_function import _Function
from mindspore.common.recompute import _clear_recompute_session, _recompute_handle_collector_ctx, _recompute_session_ctx
from mindspore.graph.api import _pynative_executor as executor

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper
from hp_memory.activation.invocation import Invocation

WIDTH = 4
Pair = namedtuple("Pair", ["first", "second"])


class SavesView(_Function):
    """(x^T)^T * 1.5 whose backward reads the transposed view of its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.T)
        return x * 1.5 + x * x

    @staticmethod
    def backward(ctx, grad):
        (view,) = ctx.saved_tensors
        return grad * 1.5 + grad * view.T * 2.0


def halves(x):
    left, right = mint.chunk(x, 2, 1)
    return mint.cat((right * left, left), dim=1)


def half_weight(block, x):
    weight = block.w.astype(ms.float16)
    return mint.matmul(x.astype(ms.float16), weight).astype(ms.float32)


# Operations on (rows, WIDTH) tensors, by what they save: nothing, inputs, views, internals, parameters, casts.
UNARY = {
    "scale": lambda block, x: x * 0.5,
    "shift": lambda block, x: x + 1.0,
    "square": lambda block, x: x * x,
    "silu": lambda block, x: ops.silu(x),
    "tanh": lambda block, x: ops.tanh(x),
    "matmul": lambda block, x: mint.matmul(x, block.w) * 0.5,
    "matmul_t": lambda block, x: mint.matmul(x, block.v.T) * 0.5,
    "half": half_weight,
    "reshape": lambda block, x: ops.tanh(x.reshape(-1)).reshape(-1, WIDTH),
    "halves": lambda block, x: halves(x),
    "flip": lambda block, x: (x.T * x.T).T * 0.25,
    "view": lambda block, x: SavesView.apply(x) * 0.5,
}
BINARY = {
    "add": lambda x, y: x + y,
    "mul": lambda x, y: x * y * 0.5,
}


class Program(nn.Cell):
    """A block made of steps. Each step: (region, op names, inputs, container, passes an input through)."""

    def __init__(self, steps):
        super().__init__()
        rng = np.random.RandomState(3)
        self.w = ms.Parameter(ms.Tensor((rng.randn(WIDTH, WIDTH) / 2).astype(np.float32)), name="w")
        self.v = ms.Parameter(ms.Tensor((rng.randn(WIDTH, WIDTH) / 2).astype(np.float32)), name="v")
        self.steps = steps
        self.bodies = {}
        self.runs = {}

    def body(self, region, chain, *operands, extra=()):
        self.runs[region] = self.runs.get(region, 0) + 1
        x = operands[0]
        for other in (*operands[1:], *extra):
            x = BINARY["mul"](x, other)
        return [x := UNARY[name](self, x) for name in chain]

    def construct(self, x):
        pool = [x]
        for region, chain, reads, container, bare in self.steps:
            inputs = [pool[i % len(pool)] for i in reads]
            call = self.bodies.get(region, self.body)
            results = unpack(call(region, chain, inputs[0], extra=inputs[1:]), container)
            if bare:
                results.append(BINARY["add"](results[-1], pool[-1]))
            pool.extend(results)
        total = pool[-1]
        for tensor in pool[1:-1][::2]:
            total = total + tensor * 0.125
        return ops.tanh(total)


def pack_results(call, container):
    """The body's list of results in the container that the region returns."""

    def packed(region, chain, *operands, extra=()):
        results = call(region, chain, *operands, extra=extra)
        if container == "one":
            return results[-1]
        if container == "dict":
            return {"first": results[0], "last": {"value": results[-1]}, "count": len(results)}
        if container == "named":
            return Pair(results[0], results[-1])
        if container == "with input":
            return results[-1], operands[0]
        return tuple(results)

    return packed


def unpack(results, container):
    if container == "one":
        return [results]
    if container == "dict":
        return [results["first"], results["last"]["value"]]
    return list(results)


def build(program, saved, wrap):
    """The program; regions in ``saved`` excluded, the block checkpointed, unless it is the plain reference."""
    block = Program(program)
    for region, _, _, container, _ in program:
        body = pack_results(block.body, container)
        block.bodies[region] = checkpoint_exclude_wrapper(body, name=region) if wrap and region in saved else body
    return block, checkpoint_wrapper(block, early_stop=wrap == "early stop") if wrap else block


@st.composite
def programs(draw):
    """Regions may be called several times, each always with one container."""
    names = ["r0", "r1", "r2", "r3"]
    containers = {n: draw(st.sampled_from(["one", "one", "tuple", "dict", "named", "with input"])) for n in names}
    steps = []
    for _ in range(draw(st.integers(1, 6))):
        region = draw(st.sampled_from(names))
        chain = draw(st.lists(st.sampled_from(sorted(UNARY)), min_size=1, max_size=3))
        reads = draw(st.lists(st.integers(0, 5), min_size=1, max_size=2))
        steps.append((region, tuple(chain), tuple(reads), containers[region], draw(st.booleans())))
    return steps


def backward(out, inputs, retain):
    return run_backward(
        (out,), (ops.ones_like(out),), retain, False, inputs, allow_unreachable=True, accumulate_grad=False
    )


def one_run(out, x, weights, _handles):
    return backward(out, (x, *weights), False)


def dx_then_dw(out, x, weights, _handles):
    return backward(out, (x,), True) + backward(out, weights, False)


def with_session(out, x, weights, _handles):
    session = object()
    with _recompute_session_ctx(session, retain_on_unpack=True):
        dx = backward(out, (x,), True)
    with _recompute_session_ctx(session, retain_on_unpack=False):
        dw = backward(out, weights, False)
    _clear_recompute_session(session)
    return dx + dw


def pre_fired(out, x, weights, handles):
    session = object()
    with _recompute_session_ctx(session, retain_on_unpack=True):
        for handle in handles:
            handle.recompute(session)
        dx = backward(out, (x,), True)
    with _recompute_session_ctx(session, retain_on_unpack=False):
        dw = backward(out, weights, False)
    _clear_recompute_session(session)
    return dx + dw


def retained(out, x, weights, _handles):
    backward(out, (x, *weights), True)
    return backward(out, (x, *weights), False)


BACKWARDS = {f.__name__: f for f in (one_run, dx_then_dw, with_session, pre_fired, retained)}


def micro_batches(block, run, count, rows, order, how):
    """Gradients of each micro-batch; the forwards run before the backwards, which run in ``order``."""
    weights = tuple(block.trainable_params())
    flying = []
    for index in range(count):
        x = ms.Tensor(np.random.RandomState(index).randn(rows, WIDTH).astype(np.float32))
        x.requires_grad_()
        with _recompute_handle_collector_ctx() as handles:
            flying.append((run(x), x, handles))
    results = {}
    for index in order:
        out, x, handles = flying[index]
        grads = BACKWARDS[how](out, x, weights, handles)
        results[index] = [None if t is None else t.asnumpy().copy() for t in (out, *grads)]
        handles.clear()
        flying[index] = None
    return [results[i] for i in range(count)]


def bits(results):
    return [[None if a is None else (a.shape, a.tobytes()) for a in result] for result in results]


@pytest.fixture(scope="module")
def invocations():
    """Every invocation that still lives, with the collector off: nothing may wait for it."""
    living = weakref.WeakSet()
    original = Invocation.__init__

    def init(self, *args):
        original(self, *args)
        living.add(self)

    gc.collect()
    gc.disable()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Invocation, "__init__", init)
        yield living
    gc.enable()


@pytest.fixture(scope="module")
def recording(mindspore):
    before = executor.grad_flag()
    executor.set_grad_flag(True)
    yield
    executor.set_grad_flag(before)


@pytest.mark.usefixtures("recording")
class TestPrograms:
    @given(data=st.data())
    def test_equal_bits_and_nothing_left(self, invocations, data):
        program = data.draw(programs(), "program")
        names = sorted({step[0] for step in program})
        saved = data.draw(st.sets(st.sampled_from(names)), "saved")
        count = data.draw(st.integers(1, 3), "micro-batches")
        order = data.draw(st.permutations(range(count)), "backward order")
        rows = data.draw(st.sampled_from([3, 1, 0]), "rows")
        how = data.draw(st.sampled_from(sorted(BACKWARDS)), "backward")
        wrap = data.draw(st.sampled_from(["whole", "early stop"]), "replay")
        want = micro_batches(*build(program, saved, None), count, rows, order, "one_run")
        block, run = build(program, saved, wrap)
        for _ in range(2):
            block.runs.clear()
            got = micro_batches(block, run, count, rows, order, how)
            assert bits(got) == bits(want)
            calls = {name: count * sum(step[0] == name for step in program) for name in names}
            assert all(block.runs[name] == calls[name] for name in saved)
            assert len(invocations) == 0
