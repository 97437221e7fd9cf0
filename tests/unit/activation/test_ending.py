"""A replay ends after the last thing that backward needs: between operations, and never inside an open call."""

from __future__ import annotations

import collections
import contextlib
import threading

import pytest


class Replayed:
    """Counts the operations that replays run, from outside."""

    def __init__(self):
        from mindspore import MsDispatchMode

        from hp_memory.activation import is_recomputing

        class Count(MsDispatchMode):
            def __ms_dispatch__(self, func, args, kwargs=None):
                if is_recomputing():
                    counts[func.name] += 1
                return func(*args, **(kwargs or {}))

        counts = self.counts = collections.Counter()
        self.mode = Count()


@pytest.fixture
def replayed(steps, tensor):
    """replayed(make, early_stop) -> (loss and gradients, operations of the second step's replay)."""

    from hp_memory.activation import checkpoint_wrapper

    def run(make, early_stop, shape=(3, 4)):
        wrapped = checkpoint_wrapper(make(), name="block", early_stop=early_stop)
        steps.run(wrapped, tensor(*shape))
        seen = Replayed()
        with seen.mode:
            return steps.run(wrapped, tensor(*shape)), seen.counts

    return run


def tail(kind):
    """y, on which backward depends -> something with more operations, none of which saves anything."""
    import mindspore as ms
    from mindspore import ops
    from mindspore.common._grad_function import _Function

    class Doubled(_Function):
        @staticmethod
        def forward(ctx, x):
            return x + x

        @staticmethod
        def backward(ctx, grad):
            return grad + grad

    index = ms.Tensor([2, 0, 1], ms.int32)
    return {
        "adds": lambda y: y + 1.0 + y,
        "views": lambda y: (y.T + 1.0).T,
        "integer index": lambda y: y[0] + y[1],
        "legacy": lambda y: ops.gather(y, index, 0) + 1.0,
        "custom function": lambda y: Doubled.apply(y) + 1.0,
        "in a handler": lambda y: _handled(y),
        "in a context": lambda y: _in_context(y),
    }[kind]


def _handled(y):
    try:
        return y + 1.0
    except Exception:  # what a block does about failing kernels isn't meant for the end of a replay
        return y + 100.0


def _in_context(y):
    with contextlib.suppress(ValueError):
        return y + 1.0 + y


@pytest.mark.parametrize(
    "kind",
    ["adds", "views", "integer index", "legacy", "custom function", "in a handler", "in a context"],
)
def test_what_comes_after_the_last_saved_tensor_isnt_replayed(replayed, steps, tensor, kind):
    from mindspore import ops

    after = tail(kind)

    def make():
        return lambda x: after(ops.silu(x * 1.1))

    whole, all_of_it = replayed(make, early_stop=False)
    short, counts = replayed(make, early_stop=True)
    assert steps.same(whole, short)
    assert steps.same(steps.run(make(), tensor(3, 4)), short)
    assert sum(counts.values()) < sum(all_of_it.values())
    assert counts["AddExt"] == (kind == "custom function")  # which is called like a function, and finished


def test_saved_regions_at_the_tail_and_what_lies_between_them_cost_nothing(replayed, steps, tensor):
    from mindspore import ops

    from hp_memory.activation import checkpoint_exclude_wrapper

    def make():
        first = checkpoint_exclude_wrapper(lambda x: ops.tanh(x), name="first")
        second = checkpoint_exclude_wrapper(lambda x: x * x, name="second")

        def block(x):
            y = first((x * 1.1).reshape(-1))
            return second(y.reshape(4, 3).T.reshape(-1)).reshape(3, 4) + 1.0

        return block

    whole, all_of_it = replayed(make, early_stop=False)
    short, counts = replayed(make, early_stop=True)
    assert steps.same(whole, short)
    # first's own backward reads what it made: nothing needs a replay at all, and none runs.
    assert steps.same(steps.run(make(), tensor(3, 4)), short)
    assert sum(counts.values()) < sum(all_of_it.values()) or not counts


def test_the_inputs_of_the_last_region_end_a_replay(replayed, steps):
    from mindspore import ops

    from hp_memory.activation import checkpoint_exclude_wrapper

    def make():
        last = checkpoint_exclude_wrapper(lambda x: x * x, name="last")
        return lambda x: last(ops.silu(x) + 1.0).reshape(-1) + 1.0

    whole, all_of_it = replayed(make, early_stop=False)
    short, counts = replayed(make, early_stop=True)
    assert steps.same(whole, short)
    assert counts["AddExt"] == 1
    assert all_of_it["AddExt"] == 2


def hooked_cell(calls, hook):
    from mindspore import nn, ops

    class Inner(nn.Cell):
        def construct(self, x):
            return ops.silu(x) + 1.0

    inner = Inner()
    if hook:
        inner.register_forward_pre_hook(lambda cell, args: calls.append("before"))
        inner.register_forward_hook(lambda cell, args, out: calls.append("after"))
    else:
        import mindspore as ms

        inner.to_float(ms.float16)
    return inner


@pytest.mark.parametrize("hook", [True, False], ids=["hooks", "mixed precision"])
def test_a_cell_that_has_something_left_to_do_is_finished(replayed, steps, hook):
    calls = []

    def make():
        inner = hooked_cell(calls, hook)
        return lambda x: inner(x) + 1.0 + x

    whole, all_of_it = replayed(make, early_stop=False)
    calls.clear()
    short, counts = replayed(make, early_stop=True)
    assert steps.same(whole, short)
    assert calls == ["before", "after"] * 4 * hook  # two forwards, two replays
    assert counts["AddExt"] == 1  # inside the Cell
    assert all_of_it["AddExt"] == 3


def test_a_gradient_taken_in_the_block_is_finished(replayed, steps):
    import mindspore as ms
    from mindspore import ops

    def make():
        slope = ms.grad(lambda a: (a + 2.0).sum())
        return lambda x: ops.silu(x) + slope(ops.stop_gradient(x))

    whole, _ = replayed(make, early_stop=False)
    short, _ = replayed(make, early_stop=True)
    assert steps.same(whole, short)


def test_what_another_thread_saves_ends_nothing_there(replayed, steps):
    from mindspore import ops

    def make():
        def block(x):
            box = []
            worker = threading.Thread(target=lambda: box.append(x.asnumpy().sum()))
            y = ops.silu(x)
            worker.start()
            worker.join()
            return y + float(box[0])

        return block

    whole, _ = replayed(make, early_stop=False)
    short, _ = replayed(make, early_stop=True)
    assert steps.same(whole, short)


def test_replays_that_ended_before_a_region_are_counted_as_spared(steps, tensor):
    from mindspore import ops

    from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, observe, region

    add = region(lambda y: y + 1.0, name="add")
    saved = checkpoint_exclude_wrapper(lambda y: region(ops.tanh, name="part")(y), name="saved")
    block = checkpoint_wrapper(lambda x: add(add(ops.silu(saved(x)))), early_stop=True)
    with observe() as seen:
        steps.run(block, tensor(3, 4))
    assert vars(seen.runs["add"]) == {"forward": 2, "body": 2, "replays": 0, "spared": 2}
    assert vars(seen.runs["part"]) == {"forward": 1, "body": 1, "replays": 0, "spared": 0}
