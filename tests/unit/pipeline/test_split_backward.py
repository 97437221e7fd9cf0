"""dx then dw gives the bits of one whole backward, whatever the graph looks like."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hp_memory.errors import SessionError

pytestmark = pytest.mark.usefixtures("mindspore")


class Graphs:
    """Small graphs over fixed weights; each returns a tensor or a tuple."""

    def __init__(self):
        from mindspore import Parameter, Tensor, mint, ops

        draw = np.random.default_rng(0)

        def tensor(*shape):
            return Tensor(draw.standard_normal(shape).astype(np.float32))

        self.tensor, self.mm, self.ops = tensor, mint.matmul, ops
        self.w1, self.w2, self.w3 = (Parameter(tensor(4, 4), name=n) for n in ("w1", "w2", "w3"))
        self.scalar = Parameter(tensor(), name="scalar")
        self.weights = (self.w1, self.w2, self.w3, self.scalar)

    def middle(self, x):
        return self.mm(self.ops.silu(self.mm(x, self.w1)), self.w2)

    def first_stage(self):
        return self.mm(self.ops.silu(self.mm(self.w3, self.w1)), self.w2)

    def tied_five_times(self, x):
        y = self.mm(self.mm(self.mm(self.mm(x, self.w1), self.w1), self.w1.T), self.ops.silu(self.w1) * self.scalar)
        return self.mm(y, self.w1)

    def weight_only_from_an_output(self, x):
        return self.mm(x, self.w1), self.mm(self.w2, self.w2)

    def several_inputs_and_outputs(self, x, y):
        return self.mm(x, self.w1) + y, self.mm(y, self.w1) * x, (x * y).sum() * self.scalar

    def unused_input(self, x, y):
        return self.mm(x, self.w1)

    def input_as_output(self, x):
        return x, self.mm(x, self.w1)

    def one_node_with_two_outputs(self, x):
        return tuple(self.ops.split(self.mm(x, self.w1), 2, 1))

    def one_part_of_a_node(self, x):
        return self.ops.split(self.mm(x, self.w1), 2, 1)[1] * 1.5

    def output_without_graph(self, x):
        return self.mm(x, self.w1), self.tensor(2, 2)

    def the_same_output_twice(self, x):
        y = self.mm(x, self.w1)
        return y, y

    def weights_of_weights(self, x):
        return self.mm(self.mm(x, self.mm(self.w1, self.w2)), self.mm(self.w2, self.w1))

    def no_weights(self, x):
        return self.ops.silu(x) * 2


NAMES = [name for name, value in vars(Graphs).items() if callable(value) and not name.startswith("_")]


def run(graph, inputs):
    from hp_memory.pipeline.split_backward import record

    out = record(graph, *inputs, inputs=inputs)
    return tuple(out) if isinstance(out, tuple) else (out,)


def compare(graph, inputs, weights, tensor):
    from hp_memory.pipeline.split_backward import SplitBackward, whole_backward

    outputs = run(graph, inputs)
    grads = [tensor(*out.shape) for out in outputs]
    live = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if out._grad_node is not None]
    expected = whole_backward([o for o, _ in live], [g for _, g in live], (*inputs, *weights))
    split = SplitBackward(run(graph, inputs), inputs, weights)
    found = (*split.dx(grads), *split.dw())
    for a, b in zip(expected, found, strict=True):
        assert (a is None) == (b is None)
        assert a is None or np.array_equal(a.asnumpy(), b.asnumpy())


@pytest.mark.parametrize("name", NAMES)
def test_equal_to_the_whole_backward(name):
    graphs = Graphs()
    graph = getattr(graphs, name)
    inputs = [graphs.tensor(3, 4) for _ in range(graph.__func__.__code__.co_argcount - 1)]
    compare(graph, inputs, graphs.weights, graphs.tensor)


@settings(max_examples=settings().max_examples // 5)
@given(st.lists(st.tuples(st.sampled_from("wtsab"), st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=9))
def test_random_graphs(program):
    """w: times a weight, t: times its transpose, s: silu, a: plus an earlier value, b: times an earlier value."""
    graphs = Graphs()

    def graph(x, y):
        values = [x, y]
        for op, weight, pick in program:
            last, w, other = values[-1], graphs.weights[weight], values[pick % len(values)]
            made = {
                "w": lambda v=last, w=w: graphs.mm(v, w),
                "t": lambda v=last, w=w: graphs.mm(v, w.T),
                "s": lambda v=last: graphs.ops.silu(v),
                "a": lambda v=last, o=other: v + o,
                "b": lambda v=last, o=other: v * o,
            }[op]()
            values.append(made)
        return values[-1], values[len(values) // 2] * graphs.scalar

    compare(graph, [graphs.tensor(3, 4), graphs.tensor(3, 4)], graphs.weights, graphs.tensor)


def split_of_middle():
    from hp_memory.pipeline.split_backward import SplitBackward

    graphs = Graphs()
    x = graphs.tensor(3, 4)
    return SplitBackward(run(graphs.middle, [x]), [x], graphs.weights), graphs.tensor(3, 4)


def test_dw_before_dx_is_refused():
    split, _ = split_of_middle()
    with pytest.raises(SessionError, match="dw of a split backward called before dx"):
        split.dw()


def test_a_second_dx_is_refused():
    split, grad = split_of_middle()
    split.dx((grad,))
    with pytest.raises(SessionError, match="dx of a split backward called after dx"):
        split.dx((grad,))


def test_dw_after_a_dx_that_raised_says_so():
    from mindspore.common._grad_function import _Function

    from hp_memory.pipeline.split_backward import SplitBackward

    class Fails(_Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, grad):
            raise ValueError("boom")

    graphs = Graphs()
    x = graphs.tensor(3, 4)
    split = SplitBackward(run(lambda x: graphs.middle(Fails.apply(x)), [x]), [x], graphs.weights)
    with pytest.raises(ValueError, match="boom"):
        split.dx((graphs.tensor(3, 4),))
    with pytest.raises(SessionError, match="dw of a split backward called after a dx that raised"):
        split.dw()


def test_a_third_use_is_refused():
    split, grad = split_of_middle()
    split.dx((grad,))
    split.dw()
    with pytest.raises(SessionError, match="dw of a split backward called after dw"):
        split.dw()


def test_an_error_in_the_forward_leaves_the_grad_flag_as_it_was():
    from mindspore.graph.api import _pynative_executor

    from hp_memory.pipeline.split_backward import record

    before = _pynative_executor.grad_flag()
    with pytest.raises(ZeroDivisionError):
        record(lambda: 1 / 0)
    assert _pynative_executor.grad_flag() == before
    test_equal_to_the_whole_backward("middle")


def test_each_half_skips_the_other_halfs_work():
    """Counted by the backward of custom functions: dx runs no weight branch, dw no input branch."""
    from mindspore.common._grad_function import _Function

    from hp_memory.pipeline.split_backward import SplitBackward

    ran = []

    class Mark(_Function):
        @staticmethod
        def forward(ctx, x, name):
            ctx.name = name
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            ran.append(ctx.name)
            return grad, None

    graphs = Graphs()
    x = graphs.tensor(3, 4)
    out = run(lambda x: graphs.mm(Mark.apply(x, "input"), Mark.apply(graphs.w1, "weight")), [x])
    split = SplitBackward(out, [x], graphs.weights)
    split.dx((graphs.tensor(3, 4),))
    assert ran == ["input"]
    split.dw()
    assert ran == ["input", "weight"]


def test_boundary_nodes_of_custom_functions_survive_dx():
    """A middle stage whose outputs and last operations are gone: nobody else owns the node of a custom function."""
    from mindspore.common._grad_function import _Function

    class Multiply(_Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return graphs.mm(x, w)

        @staticmethod
        def backward(ctx, grad):
            x, w = ctx.saved_tensors
            return graphs.mm(grad, w.T), graphs.mm(x.T, grad)

    graphs = Graphs()
    compare(
        lambda x: x + Multiply.apply(graphs.ops.silu(Multiply.apply(x, graphs.w1)), graphs.w2),
        [graphs.tensor(3, 4)],
        graphs.weights,
        graphs.tensor,
    )
