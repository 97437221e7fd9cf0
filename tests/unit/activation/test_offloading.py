"""Offloaded regions: the same bits in every order of copies, and a device that holds nothing in between."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore import Parameter, Tensor, mint, nn, ops

from hp_memory.activation import (
    checkpoint_exclude_wrapper,
    checkpoint_wrapper,
    findings,
    observe,
    offload_wrapper,
)
from hp_memory.activation.probe import block_of, was_freed
from hp_memory.errors import HostCopyError, ReplayError
from hp_memory.host.window import Window
from tests.unit.host.by_hand import ByHand

WIDTH = 8


def window_of(transport, memory=1 << 24, min_bytes=1, prefetch=1, pending=100):
    return Window(transport, memory, min_bytes, prefetch, pending)


def pair(x):
    """Two outputs, one of them also an input of what follows."""
    return x * x, ops.silu(x)


class Block(nn.Cell):
    """up and act may be offloaded; ``live`` is replayed and reads an output of ``up``."""

    def __init__(self, seed, width=WIDTH):
        super().__init__()
        draw = np.random.RandomState(seed)
        self.w, self.v = (
            Parameter(Tensor((draw.randn(width, width) / np.sqrt(width)).astype(np.float32)), name=f"{n}{seed}")
            for n in "wv"
        )

    def up(self, x):
        return mint.matmul(x, self.w)

    def act(self, x):
        gate, value = mint.chunk(x, 2, dim=1)
        return mint.cat([ops.silu(gate) * value, ops.sigmoid(value)], dim=1)

    def live(self, x, y):
        return ops.tanh(x) * y

    def down(self, x):
        return mint.matmul(x, self.v)

    def construct(self, x):
        h = self.up(ops.tanh(x))
        return x + self.down(self.live(h, self.act(h)))


ACTIONS = ("recompute", "save", "offload")
PARTS = ("up", "act", "live", "down")


def model(actions, window, blocks=3, boundary=True, width=WIDTH):
    cells = [Block(i, width) for i in range(blocks)]
    weights = [w for cell in cells for w in cell.trainable_params()]
    calls = []
    for i, cell in enumerate(cells):
        for part, action in actions.items():
            body, name = getattr(cell, part), f"{i}/{part}"
            if action == "save":
                setattr(cell, part, checkpoint_exclude_wrapper(body, name=name))
            elif action == "offload":
                setattr(cell, part, offload_wrapper(body, window=window, name=name))
        calls.append(checkpoint_wrapper(cell, name=str(i)) if boundary else cell)

    def run(x):
        for call in calls:
            x = call(x)
        return x

    return SimpleNamespace(run=run, weights=weights, calls=calls)


@pytest.fixture
def x(tensor):
    return tensor(6, WIDTH)


def plain(steps, *inputs, blocks=3):
    found = model({}, None, blocks, boundary=False)
    return [steps.run(found.run, x, weights=found.weights) for x in inputs]


@settings(max_examples=40)
@given(actions=st.fixed_dictionaries({part: st.sampled_from(ACTIONS) for part in PARTS}), boundary=st.booleans(),
       outs=st.lists(st.booleans(), min_size=4, max_size=4), prefetch=st.integers(0, 2))  # fmt: skip
def test_every_choice_of_actions_gives_the_same_bits(actions, boundary, outs, prefetch):
    from tests.unit.activation.conftest import Steps

    x = Tensor(np.random.RandomState(0).randn(6, WIDTH).astype(np.float32))
    ((expected),) = plain(Steps, x)
    transport = ByHand()
    found = model(actions, window_of(transport, prefetch=prefetch), boundary=boundary)

    def forward(x):
        y = found.run(x)
        for out, complete in zip(transport.outs, outs * 100, strict=False):
            if complete:
                out.finish()
        return y

    for _ in range(2):  # watched, then by what was learned
        assert Steps.same(Steps.run(forward, x, weights=found.weights), expected)
        transport.outs.clear()


@pytest.mark.parametrize("boundary", [True, False])
def test_after_the_copies_the_device_holds_nothing_of_an_offloaded_region(steps, x, boundary):
    transport = ByHand()
    window = window_of(transport)
    found = model(dict.fromkeys(PARTS, "offload"), window, boundary=boundary)
    seen = []

    def forward(x):
        y = found.run(x)
        window.settle()
        seen.append([held.region for held in observation.held])
        return y

    for _ in range(2):
        with observe() as observation:
            assert steps.same(steps.run(forward, x, weights=found.weights), plain(steps, x)[0])
    assert not any("/" in region for region in seen[0] + seen[1])
    assert window.moves.moved_bytes == window.moves.returned_bytes > 0


def test_the_storage_itself_is_given_back(tensor):
    width, window = 512, window_of(ByHand())
    blocks, verdicts = [], []

    def body(x):
        y = ops.tanh(x)
        blocks.append(block_of(y))
        return y

    region = offload_wrapper(body, window=window, name="region")
    call = checkpoint_wrapper(lambda x: mint.mean(region(x * 2.0)))

    def forward(x):
        loss = call(x)
        window.settle()
        verdicts.append(was_freed(blocks[0]))
        return loss

    ms.value_and_grad(forward)(tensor(width, width))
    assert verdicts == [True]


def test_what_a_live_replayed_operation_reads_waits_on_the_host_too(steps, x):
    transport = ByHand()
    window = window_of(transport)
    found = model({"up": "offload", "act": "save"}, window, blocks=1)
    for _ in range(2):
        held = []

        def forward(x, held=held):
            y = found.run(x)
            window.settle()
            held += [h for h in observation.held if h.region == "0/up"]
            return y

        with observe() as observation:
            assert steps.same(steps.run(forward, x, weights=found.weights), plain(steps, x, blocks=1)[0])
        assert not held
    assert [f.how for f in findings(found.calls[0]) if f.what.startswith("output") and f.region == "0/up"] == [
        "kept for replay"
    ]
    # `up` saves its input, which a replay makes again: what moves is the output that `live` reads, once in each step.
    assert window.moves.moved == 2


def test_two_micro_batches_in_flight_get_their_own(steps, tensor):
    inputs = [tensor(6, WIDTH, seed=i) for i in range(2)]
    expected = plain(steps, *inputs)
    transport = ByHand()
    window = window_of(transport)
    found = model(dict.fromkeys(("up", "act"), "offload"), window)
    for _ in range(2):
        pulls = []
        for micro, value in enumerate(inputs):
            with window.stretch(micro):
                pulls.append(_vjp(found, value))
            transport.outs[-1].finish()
        window.ahead(0)
        for want, pull in zip(expected, pulls, strict=True):
            assert steps.same(pull(), want)


def _vjp(found, x):
    """The forward now, gradients when called."""
    from hp_memory.pipeline.split_backward import record, whole_backward

    out = record(found.run, x, inputs=[x])

    def pull():
        grads = whole_backward((out,), (ops.ones_like(out),), (x, *found.weights))
        return [out.sum().asnumpy(), *[g.asnumpy() for g in grads]]

    return pull


@pytest.mark.parametrize(
    ("rule", "prefire"), [("share", False), ("share", True), ("keep", False), ("keep", True), ("none", False)]
)
def test_split_backward_reads_what_came_back(x, rule, prefire):
    from hp_memory.pipeline.session import RecomputeSession
    from hp_memory.pipeline.split_backward import SplitBackward, record, whole_backward

    base = model({}, None, boundary=False)
    out = record(base.run, x, inputs=[x])
    expected = [g.asnumpy() for g in whole_backward((out,), (ops.ones_like(out),), (x, *base.weights))]
    window = window_of(ByHand())
    found = model({"up": "offload", "act": "offload", "down": "save"}, window)
    session = RecomputeSession("micro-batch 0", rule)
    with session.recording():
        out = record(found.run, x, inputs=[x])
    window.settle()
    if prefire:
        session.prefire()
    split = SplitBackward((out,), (x,), found.weights)
    with session.use("dx"):
        got = [g.asnumpy() for g in split.dx((ops.ones_like(out),))]
    with session.use("dw"):
        got += [g.asnumpy() for g in split.dw()]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(got, expected, strict=True))


def test_a_load_before_its_copy_out_is_complete_would_be_seen(steps, x):
    """The planted fault: a transport that doesn't wait. Its memory is full of NaN until the copy has run."""

    class Hasty(ByHand):
        def copy_in(self, out):
            out.dtype = out.dtype or np.dtype(np.float32)
            out.complete = True
            return super().copy_in(out)

    transport = Hasty()
    window = window_of(transport)
    found = model({"act": "offload"}, window)

    def forward(x):
        y = found.run(x)
        for group in window._leaving:  # as if the copies were complete
            for leaving in group:
                leaving.out.complete = True
        window._retire()
        return y

    assert not steps.same(steps.run(forward, x, weights=found.weights), plain(steps, x)[0])


def test_an_error_of_a_copy_comes_out_of_backward(x):
    class Broken(ByHand):
        def copy_in(self, out):
            raise HostCopyError("link down")

    window = window_of(Broken())
    found = model({"act": "offload"}, window)

    def forward(x):
        y = found.run(x)
        window.settle()
        return y.sum()

    with pytest.raises(HostCopyError, match="link down"):
        ms.value_and_grad(forward, None, found.weights)(x)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("boundary", [True, False])
def test_an_exception_leaves_nothing_on_the_host(steps, x, where, boundary):
    transport = ByHand()
    window = window_of(transport)
    found = model({"up": "offload", "act": "offload"}, window, boundary=boundary)

    class Fault(nn.Cell):
        def construct(self, x):
            if where == "forward":
                raise ValueError("planted")
            return x

        def bprop(self, x, out, dout):
            raise ValueError("planted")

    fault = Fault()
    with pytest.raises(ValueError, match="planted"):
        ms.value_and_grad(lambda x: fault(found.run(x)).sum(), None, found.weights)(x)
    transport.outs.clear(), transport.ins.clear()
    gc.collect()
    assert steps.same(steps.run(found.run, x, weights=found.weights), plain(steps, x)[0])
    transport.outs.clear(), transport.ins.clear()
    window.settle()
    assert window.pool.used == 0


def test_an_evaluation_moves_nothing(x):
    window = window_of(ByHand())
    found = model({"up": "offload"}, window)
    found.run(x)
    assert window.moves.moved == 0


def test_a_forward_without_backward_is_called_off(x):
    transport = ByHand()
    found = model({"act": "offload"}, window_of(transport))
    from hp_memory.pipeline.split_backward import record

    out = record(found.run, x, inputs=[x])
    alive = weakref.ref(out)
    assert transport.outs
    del out
    gc.collect()
    assert alive() is None
    assert all(o.cancelled for o in transport.outs)


def test_weights_and_choices_stay(tensor):
    transport = ByHand()
    window = window_of(transport)
    weight = Parameter(tensor(4, 4, seed=1), name="w")

    class Gather(nn.Cell):
        def __init__(self):
            super().__init__()
            self.w = weight

        def construct(self, x, index):
            return mint.matmul(x.astype(ms.float16), self.w.astype(ms.float16))[index]

    index = Tensor(np.array([2, 0, 1]))
    region = offload_wrapper(Gather(), window=window, name="gather")
    ms.value_and_grad(lambda x: (region(x, index) * 2.0).sum(), 0, [weight])(tensor(3, 4))
    assert all(out.shape != (4, 4) for out in transport.outs)


def test_without_room_on_the_host_it_stays_and_says_so(steps, x):
    transport = ByHand()
    window = window_of(transport, memory=6 * WIDTH * 4)
    found = model({"act": "offload"}, window)
    assert steps.same(steps.run(found.run, x, weights=found.weights), plain(steps, x)[0])
    assert window.moves.kept["the host's memory is used up"] > 0
    assert window.moves.host_peak <= 6 * WIDTH * 4


def test_second_order_gradients_survive(tensor):
    window = window_of(ByHand())

    def body(x):
        return ops.tanh(x) * x

    region = offload_wrapper(body, window=window, name="r")
    run = checkpoint_wrapper(lambda x: (region(x) * region(x)).sum())
    x = tensor(4)
    want = ms.grad(lambda x: ms.grad(lambda y: (body(y) * body(y)).sum())(x).sum())(x)
    got = ms.grad(lambda x: ms.grad(run)(x).sum())(x)
    assert got.asnumpy().tobytes() == want.asnumpy().tobytes()


def test_a_write_after_the_region_is_refused(tensor):
    region = offload_wrapper(lambda x: ops.tanh(x), window=window_of(ByHand()), name="r")

    def block(x):
        y = region(x)
        y.copy_(y * 2.0)
        return y * y

    with pytest.raises(ReplayError, match=r"written in place|writes in place"):
        ms.grad(lambda x: checkpoint_wrapper(block)(x * 1.0).sum())(tensor(4))


def test_the_wrapper_takes_a_window_only():
    with pytest.raises(TypeError, match="window must be a Window"):
        offload_wrapper(lambda x: x, window=None)
