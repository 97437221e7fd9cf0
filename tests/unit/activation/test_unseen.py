"""What trains under MindSpore's own recompute trains here: reads that no dispatch mode sees, caches, hooks, guards."""

from __future__ import annotations

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, nn, ops
from mindspore.common._grad_function import _Function
from mindspore.common.api import _no_grad

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, is_recomputing, observe
from hp_memory.errors import ReplayError


@ms.jit
def compiled(y):
    return y * y + 1.0


class Squares(_Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2.0 * x


class Doubles(_Function):
    """Saves nothing and reads nothing but what it is given."""

    @staticmethod
    def forward(ctx, x):
        return x + x

    @staticmethod
    def backward(ctx, grad):
        return grad * 2.0


def on_a_thread(y):
    found = []
    thread = threading.Thread(target=lambda: found.append(float(y.asnumpy().sum())))
    thread.start()
    thread.join()
    return found[0]


def in_a_pool(y):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: (y.asnumpy() * 1.0).sum()).result()


def into_a_parameter(y):
    held = ms.Parameter(ops.zeros((3, 4)), name="held")
    held.set_data(y)
    return held


# How the block reads the output y of a saved region; x is the block's input. Each reader is needed for the gradient.
READERS = {
    "stop_gradient": lambda x, y: ops.stop_gradient(y) * mint.tanh(x),
    "stop_gradient of a view": lambda x, y: ops.stop_gradient(y.T).T * mint.tanh(x),
    "data": lambda x, y: y.data * mint.tanh(x),
    "data of a view": lambda x, y: y.reshape(-1).data.reshape(3, 4) * mint.tanh(x),
    "compiled function": lambda x, y: mint.tanh(compiled(y)),
    "compiled function of a view": lambda x, y: mint.tanh(compiled(y.T)).T,
    "custom function": lambda x, y: Squares.apply(y),
    "custom function of a view": lambda x, y: Squares.apply(y.T).T,
    "custom function that saves nothing": lambda x, y: ops.square(Doubles.apply(y)),
    "Parameter.set_data": lambda x, y: into_a_parameter(y) * mint.tanh(x),
    "copy.copy": lambda x, y: copy.copy(y.data) * mint.tanh(x),
    "copy.deepcopy": lambda x, y: copy.deepcopy(y.data) * mint.tanh(x),
    "Tensor": lambda x, y: ms.Tensor(y.asnumpy()) * mint.tanh(x),
    "a number": lambda x, y: mint.tanh(x) * float(y.asnumpy().max()),
    "a branch": lambda x, y: mint.tanh(x) * (2.0 if bool(y.sum() > 0) else 3.0),
    "an integer index": lambda x, y: mint.tanh(x) * y[0],
    "iteration": lambda x, y: sum(mint.tanh(row) for row in y),
    "written into": lambda x, y: (ops.zeros((3, 4)) * 1.0).copy_(y) * mint.tanh(x),
    "no_grad": lambda x, y: without_gradient(lambda: y * 2.0) * mint.tanh(x),
    "no_grad of a view": lambda x, y: without_gradient(lambda: (y.T * 2.0).T + 0.0) * mint.tanh(x),
    "an index made of it": lambda x, y: ops.gather(mint.tanh(x), ops.argmax(y, 1) % 3, 0),
    "a mask made of it": lambda x, y: mint.where(y > 0, mint.tanh(x), x),
    "text": lambda x, y: mint.tanh(x) * float(len(str(y)) > 0),
    "another thread": lambda x, y: mint.tanh(x) * on_a_thread(y),
    "a pool of threads": lambda x, y: mint.tanh(x) * float(in_a_pool(y)),
}


BETWEEN = {"it": lambda y: y, "more": lambda y: y.reshape(4, 3).reshape(3, 4) * 1.0}


def without_gradient(run):
    with _no_grad():
        return run()


def recomputed(block):
    return lambda x: ms.recompute(block, x, use_reentrant=False, early_stop=False)


class TestReaders:
    @pytest.mark.parametrize(
        "between", [lambda y: y, lambda y: y.reshape(4, 3).reshape(3, 4) * 1.0], ids=["it", "more"]
    )
    @pytest.mark.parametrize("read", READERS.values(), ids=READERS)
    def test_trains(self, steps, tensor, read, between):
        def block(first, last):
            return lambda x: read(x, between(first(x * 2.0))) + last(between(first(x)))

        parts = (lambda x: x + 1.0, lambda x: x * 3.0)
        run = checkpoint_wrapper(block(*(checkpoint_exclude_wrapper(p, name=f"r{i}") for i, p in enumerate(parts))))
        for step in range(2):
            x = tensor(3, 4, seed=step)
            want = steps.run(recomputed(block(*parts)), x)
            assert steps.same(steps.run(run, x), want)


class Table(nn.Cell):
    """Makes a table at its first call, as rotary embeddings do."""

    def __init__(self):
        super().__init__()
        self.table = None

    def construct(self, x):
        if self.table is None:
            self.table = mint.cos(ms.Tensor(np.arange(4, dtype=np.float32)))
        return mint.tanh(x * self.table) * x


class Counter(nn.Cell):
    """Counts once, as ``is_recomputing`` invites to."""

    def __init__(self):
        super().__init__()
        self.tokens = ms.Tensor(np.zeros(4, np.float32))

    def construct(self, x):
        y = mint.tanh(x)
        if not is_recomputing():
            self.tokens = self.tokens + ops.stop_gradient(y).sum(0)
        return y * y


class Gathers(nn.Cell):
    """A Cell whose weight is a shard that is gathered before it is used, unless somebody has done so already."""

    def __init__(self, region):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor(np.full((2, 8), 0.5, np.float32)), name="weight")
        self.full = ops.zeros((4, 4))
        self.gathered = False
        self.inner = region(lambda x: mint.matmul(x, self.full))
        self.gathers = 0

    def gather(self):
        with _no_grad():
            buffer = mint.empty((16,), dtype=ms.float32)
            buffer.copy_(self.weight.reshape(-1))
        self.full = (self.weight.reshape(-1) * 1.0).reshape(4, 4)
        self.gathered = True
        self.gathers += 1

    def construct(self, x):
        if not self.gathered:
            self.gather()
        out = mint.tanh(self.inner(mint.tanh(x)))
        self.gathered = False
        return out


class TestPlatform:
    @pytest.mark.parametrize("make", [Table, Counter])
    def test_a_replay_may_leave_out_what_backward_does_not_need(self, steps, tensor, make):
        run, x = checkpoint_wrapper(make()), tensor(3, 4)
        for _ in range(2):
            assert steps.same(steps.run(run, x), steps.run(recomputed(make()), x))

    @pytest.mark.parametrize("saved", [False, True])
    def test_a_replay_may_gather_what_was_gathered_before_the_forward(self, steps, tensor, saved):
        """As FSDP does with prefetch: the layer before gathers for the forward, in backward the replay does it."""

        def region(body):
            return checkpoint_exclude_wrapper(body, name="gmm") if saved else body

        plain, cell = Gathers(lambda body: body), Gathers(region)
        run, x = checkpoint_wrapper(cell), tensor(3, 4)
        want = steps.run(plain, x, weights=[plain.weight])
        for _ in range(2):
            cell.gathered = False

            def loss(x):
                cell.gather()
                return run(x)

            assert steps.same(steps.run(loss, x, weights=[cell.weight]), want)
        assert cell.gathers == 4

    def test_another_operation_that_saves_alike_is_still_an_error(self, tensor):
        def block(x):
            y = mint.tanh(x)
            return ops.silu(y) if is_recomputing() else ops.tanh(y)

        with pytest.raises(ReplayError, match="control flow changed"):
            ms.grad(lambda x: checkpoint_wrapper(block)(x).sum())(tensor(3, 4))


class TestExperts:
    """Regions whose calls differ from step to step."""

    def block(self, region, outside=mint.tanh):
        def run(x, tokens):
            total = x * 0.5
            for expert, count in enumerate(tokens):
                if count:
                    h = region[expert]["up"](x[:count] * 2.0)
                    total = total + outside(region[expert]["down"](h)).sum() * x
            return total

        return run

    def parts(self, wrap):
        def part(scale, name):
            return wrap(lambda x: x * scale + 1.0, name)

        return [{"up": part(i + 1.0, f"up{i}"), "down": part(i + 2.0, f"down{i}")} for i in range(4)]

    @pytest.mark.parametrize("outside", [mint.tanh, lambda y: y * 2.0], ids=["saves", "saves nothing"])
    def test_without_tokens_in_some_steps(self, steps, tensor, outside):
        regions = self.parts(lambda body, name: checkpoint_exclude_wrapper(body, name=name))
        run, plain = checkpoint_wrapper(self.block(regions, outside)), self.block(self.parts(lambda b, _: b), outside)
        kept = []
        for tokens in [
            (0, 2, 1, 3),
            (1, 2, 1, 2),
            (1, 2, 1, 2),
            (1, 2, 1, 2),
            (3, 0, 0, 1),
            (1, 2, 1, 2),
            (2, 2, 0, 2),
        ]:
            x = tensor(3, 4, seed=len(kept))
            with observe() as observation:
                got = steps.run(lambda x, tokens=tokens: run(x, tokens), x)
            assert steps.same(got, steps.run(lambda x, tokens=tokens: plain(x, tokens), x))
            kept.append(sum(held.reason == "output kept for replay" for held in observation.held))
        # The second step takes a way of its own and keeps what it can't be sure of; the third learns it.
        assert kept[2] == kept[3] == kept[5] == 4

    def test_called_several_times_by_one_region(self, steps, tensor):
        """Which call's output is read is another one in each step, so that each is kept."""
        region = checkpoint_exclude_wrapper(lambda x: x + 1.0, name="expert")
        last = checkpoint_exclude_wrapper(lambda x: x * 2.0, name="last")

        def block(region, last):
            def run(x, count, read):
                outs = [region(x * float(i)) for i in range(count)]
                return mint.tanh(outs[read]) + last(outs[0])

            return run

        run, plain = checkpoint_wrapper(block(region, last)), block(lambda x: x + 1.0, lambda x: x * 2.0)
        for count, read in [(3, 2), (2, 1), (3, 2), (4, 0), (3, 1), (2, 0), (4, 3)]:
            x = tensor(3, 4)
            got = steps.run(lambda x, c=count, r=read: run(x, c, r), x)
            assert steps.same(got, steps.run(lambda x, c=count, r=read: plain(x, c, r), x))
