"""What a region does besides computing: it is done again in the replay, or refused in the first forward."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections import deque
from types import SimpleNamespace

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, observe
from hp_memory.activation.probe import block_of, was_freed
from hp_memory.errors import ReplayError


@pytest.fixture
def alike(steps, tensor):
    """alike(block, body): ``block(region)`` under a checkpoint gives the plain bits, as MindSpore's recompute does."""

    def check(block, body, times=2):
        want = steps.run(block(body), tensor(3, 4))
        native = steps.run(lambda x: ms.recompute(block(body), x, use_reentrant=False, early_stop=False), tensor(3, 4))
        assert steps.same(want, native)
        wrapped = checkpoint_wrapper(block(checkpoint_exclude_wrapper(body, name="r")))
        for _ in range(times):
            assert steps.same(want, steps.run(wrapped, tensor(3, 4)))

    return check


@pytest.fixture
def refused(tensor):
    """refused(block, body, match): a ReplayError that says ``match``, raised by the first forward."""

    def check(block, body, match):
        wrapped = checkpoint_wrapper(block(checkpoint_exclude_wrapper(body, name="r")))
        done = []

        def loss(x):
            out = wrapped(x).sum()
            done.append(True)
            return out

        with pytest.raises(ReplayError, match=match):
            ms.grad(loss)(tensor(3, 4))
        assert not done

    return check


def fills(write):
    """A body that writes twice its input into a buffer it is given."""

    def body(x, buffer):
        write(buffer, x * 2.0)
        return x.sum()

    return body


WRITES = {
    "copy_": lambda buffer, value: buffer.copy_(value),
    "copy_ through a view": lambda buffer, value: buffer.view(-1).copy_(value.reshape(-1)),
    "item assignment": lambda buffer, value: buffer.__setitem__(slice(0, 2), value[:2]),
    "assign": lambda buffer, value: ops.assign(buffer, ops.stop_gradient(value)),
    "copy_ through an alias": lambda buffer, value: buffer.data.copy_(value),
}


class TestWritesIntoInputs:
    @pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
    def test_read_by_the_block(self, alike, write):
        def block(region):
            def run(x):
                buffer = x * 1.5
                total = region(ops.tanh(x), buffer)
                return buffer * buffer * total

            return run

        alike(block, fills(write))

    @pytest.mark.parametrize("write", [WRITES["copy_"], WRITES["item assignment"]], ids=["copy_", "item assignment"])
    def test_into_a_buffer_without_a_gradient(self, alike, write):
        """As a collective does with the buffer that it receives into."""

        def block(region):
            def run(x):
                buffer = ops.ones((3, 4), ms.float32)
                total = region(ops.tanh(x), buffer)
                return ops.tanh(buffer) * buffer * total

            return run

        alike(block, fills(write))

    def test_returned(self, alike):
        def body(y):
            y.copy_(ops.tanh(y))
            return y

        alike(lambda region: lambda x: (lambda z: z * z)(region(x * 2.0)), body)

    def test_saved_after_the_write(self, alike):
        def body(x, buffer):
            buffer.copy_(ops.tanh(x))
            return buffer * buffer

        alike(lambda region: lambda x: ops.tanh(region(x * 2.0, x * 0.5)), body)

    def test_read_by_another_region(self, alike):
        other = checkpoint_exclude_wrapper(lambda y: y * y, name="other")

        def block(region):
            def run(x):
                buffer = x * 1.5
                total = region(ops.tanh(x), buffer)
                return other(buffer) * total

            return run

        alike(block, fills(WRITES["copy_"]))

    def test_list_of_buffers_by_keyword(self, alike):
        def body(*, outputs, inputs):
            for buffer, value in zip(outputs, inputs, strict=True):
                buffer.copy_(value * 3.0)
            return

        def block(region):
            def run(x):
                outputs = [ops.zeros((3, 2), ms.float32) for _ in range(2)]
                region(outputs=outputs, inputs=list(mint.chunk(ops.tanh(x), 2, 1)))
                return ops.tanh(mint.cat(outputs, 1))

            return run

        alike(block, body)

    def test_a_returned_buffer_that_is_filled_again_by_the_next_forward(self, steps, tensor):
        """Two micro-batches in flight share the buffer; each replay has its own values."""
        kept = ops.zeros((3, 4), ms.float32)

        def body(x):
            kept.copy_(ops.stop_gradient(x) * 2.0)
            return kept

        def both(block):
            return lambda x, y: block(x) + block(y)

        def block(region):
            return lambda x: ops.tanh(x * region(ops.tanh(x)) * 1.0)

        want = steps.run(both(block(lambda x: ops.stop_gradient(x) * 2.0)), tensor(3, 4), tensor(3, 4, seed=1))
        wrapped = checkpoint_wrapper(block(checkpoint_exclude_wrapper(body, name="r")))
        assert steps.same(want, steps.run(both(wrapped), tensor(3, 4), tensor(3, 4, seed=1)))

    def test_of_what_the_block_has_saved_is_refused(self, refused):
        def block(region):
            def run(x):
                y = ops.tanh(x)
                z = y * y
                region(x, y)
                return z

            return run

        refused(block, fills(WRITES["copy_"]), "region r writes in place into a tensor that .* saves for backward")

    def test_of_what_the_region_itself_has_saved_is_refused(self, refused):
        def body(x):
            y = x * x
            x.copy_(y)
            return y

        refused(
            lambda region: lambda x: region(x * 2.0), body, r"region r writes its input args\[0\] in place and saves"
        )


@dataclasses.dataclass
class Routed:
    hidden: Tensor
    sizes: list
    more: dict


@dataclasses.dataclass(frozen=True)
class Frozen:
    hidden: Tensor
    sizes: tuple


class Plain:
    def __init__(self, hidden, sizes):
        self.hidden, self.sizes = hidden, sizes


class Slotted:
    __slots__ = ("hidden", "sizes")

    def __init__(self, hidden, sizes):
        self.hidden, self.sizes = hidden, sizes


def first(sizes):
    while not isinstance(sizes, (int, float, np.floating)):
        sizes = next(iter(sizes.values() if isinstance(sizes, dict) else sizes))
    return float(sizes)


def change(sizes):
    if isinstance(sizes, np.ndarray):
        sizes += 1.0
    elif isinstance(sizes, dict):
        sizes["a"] += 1.0
    elif isinstance(sizes[0], list):
        change(sizes[0])
    else:
        sizes[0] += 1.0


NUMBERS = {
    "array": lambda: np.array([1.0, 3.0]),
    "list": lambda: [1.0, 3.0],
    "nested": lambda: [[1.0], 3.0],
    "dict": lambda: {"a": 1.0},
    "deque": lambda: deque([1.0]),
}
OBJECTS = {
    "dataclass": lambda hidden, sizes: Routed(hidden, sizes, {"again": hidden}),
    "plain object": Plain,
    "slots": Slotted,
    "namespace": lambda hidden, sizes: SimpleNamespace(hidden=hidden, sizes=sizes),
}


class TestReturnedObjects:
    @pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)
    def test_numbers_that_the_block_changes(self, alike, numbers):
        def block(region):
            def run(x):
                hidden, sizes = region(x * 1.1)
                change(sizes)
                return ops.tanh(hidden * first(sizes))

            return run

        alike(block, lambda x: (x * 1.0, numbers()))

    @pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
    def test_objects_that_the_block_changes(self, alike, make):
        def block(region):
            def run(x):
                got = region(x * 1.1)
                change(got.sizes)
                got.hidden = got.hidden * first(got.sizes)
                return ops.tanh(got.hidden) * got.hidden

            return run

        alike(block, lambda x: make(x * x, [1.0, 3.0]))

    def test_a_frozen_dataclass(self, alike):
        def block(region):
            def run(x):
                got = region(x * 1.1)
                return ops.tanh(got.hidden * got.sizes[0])

            return run

        alike(block, lambda x: Frozen(x * x, (2, 3)))

    def test_one_list_in_two_places_is_one_list(self, alike):
        def body(x):
            sizes = [1.0]
            return x * x, sizes, {"same": sizes}

        def block(region):
            def run(x):
                hidden, sizes, more = region(x * 1.1)
                sizes[0] = 5.0
                return ops.tanh(hidden * more["same"][0])

            return run

        alike(block, body)

    def test_attributes_of_a_returned_tensor(self, alike):
        def body(x):
            y = x * x
            y.scale, y.sizes, y.other = 2.0, [1.0], x * 3.0
            return y

        def block(region):
            def run(x):
                y = region(ops.tanh(x))
                y.sizes[0] += 1.0
                return ops.tanh(y * y.scale * y.sizes[0]) * y.other

            return run

        alike(block, body)

    def test_attributes_put_on_an_input(self, alike):
        def body(x):
            x.scale = 2.0
            return x * x

        def block(region):
            def run(x):
                y = ops.tanh(x)
                z = region(y)
                return ops.tanh(z * y.scale)

            return run

        alike(block, body)

    def test_a_subclass_of_tensor(self, alike):
        class Tagged(Tensor):
            pass

        def body(x):
            y = x * x
            y.__class__ = Tagged
            return y

        def block(region):
            def run(x):
                y = region(ops.tanh(x))
                return ops.tanh(y * (2.0 if type(y) is Tagged else 3.0))

            return run

        alike(block, body)

    def test_a_parameter_comes_back_as_itself(self, alike, tensor):
        weight = ms.Parameter(tensor(4, 4, seed=5), name="w")
        alike(lambda region: lambda x: mint.matmul(*region(ops.tanh(x))), lambda x: (x * x, weight))

    def test_inside_an_object_it_is_elided_released_and_observed(self):
        """1 MiB: held once where a replay reads it, and not at all where none does."""
        x = Tensor(np.ones((256, 1024), np.float32))

        def held(after):
            region = checkpoint_exclude_wrapper(lambda a: Routed(a * a, [], {}), name="r")
            run = checkpoint_wrapper(lambda x: after(region(x * 1.3)))
            blocks = []

            def loss(x):
                with observe() as seen:
                    out = run(x).sum()
                    blocks.append([(h.reason, h.shape) for h in seen.held if h.region == "r"])
                return out

            ms.grad(loss)(x)
            return blocks[0]

        assert held(lambda got: ops.tanh(got.hidden)) == [("output kept for replay", (256, 1024))]
        last = checkpoint_exclude_wrapper(lambda got: got.hidden * 2.0, name="last")
        assert held(last) == []

    def test_inside_an_object_it_dies_with_the_graph(self, tensor):
        made = []

        def body(x):
            y = x * x
            made.append(block_of(y))
            return Plain(y, [])

        region = checkpoint_exclude_wrapper(body, name="r")
        run = checkpoint_wrapper(lambda x: ops.tanh(region(x * 1.3).hidden))
        from mindspore.graph.api import _pynative_executor as executor

        executor.set_grad_flag(True)
        x = Tensor(np.ones((2048, 1024), np.float32))
        x.requires_grad_()
        gc.collect()
        gc.disable()
        out = run(x)
        del out
        gc.enable()
        assert was_freed(made[0])


class TestRefusedResults:
    @pytest.mark.parametrize(
        ("give", "match"),
        [
            (lambda y: (y, iter([1])), "list_iterator, which can be read only once"),
            (lambda y: (y, (i for i in [1])), "generator, which can be read only once"),
            (lambda y: (y, lambda: y), "function with a tensor inside"),
            (lambda y: (y, functools.partial(ops.tanh, y)), "partial with a tensor inside"),
            (lambda y: (y, {y}), "set with a tensor inside"),
        ],
    )
    def test_what_a_replay_cannot_be_given(self, refused, give, match):
        refused(lambda region: lambda x: region(ops.tanh(x))[0], lambda x: give(x * x), f"region r returns a {match}")

    def test_a_shared_object_that_the_block_changes(self, refused):
        class Sizes:
            def __init__(self):
                self.first = 1.0

        def block(region):
            def run(x):
                y, sizes = region(ops.tanh(x))
                sizes.first += 1.0
                return ops.tanh(y * sizes.first)

            return run

        refused(block, lambda x: (x * x, Sizes()), "the Sizes that excluded region r returns is changed by the block")

    def test_a_shared_object_that_stays_is_the_same_in_the_replay(self, alike):
        class Mesh:
            def __init__(self):
                self.names = ["dp"]

        mesh = Mesh()
        alike(
            lambda region: lambda x: (lambda y, m: ops.tanh(y * (2.0 if m is mesh else 3.0)))(*region(ops.tanh(x))),
            lambda x: (x * x, mesh),
        )

    @pytest.mark.parametrize(
        ("argument", "act"),
        [
            (lambda: [1.0], lambda sizes: sizes.append(2.0)),
            (lambda: {"a": [1.0]}, lambda sizes: sizes["a"].clear()),
            (lambda: np.ones(2), lambda sizes: sizes.fill(0.0)),
            (lambda: SimpleNamespace(n=1), lambda sizes: setattr(sizes, "n", 2)),
        ],
    )
    def test_an_argument_that_the_body_changes(self, refused, argument, act):
        def body(x, sizes):
            act(sizes)
            return x * x

        refused(
            lambda region: lambda x: region(ops.tanh(x), argument()), body, r"region r changes its argument args\[1\]"
        )


class TestInputsInObjects:
    def test_are_made_again_by_the_replay(self, steps, tensor):
        region = checkpoint_exclude_wrapper(lambda got: got.hidden * got.hidden, name="r")

        def block(call):
            return lambda x: ops.tanh(call(Plain(ops.tanh(x), [1])))

        with observe() as seen:
            got = steps.run(checkpoint_wrapper(block(region)), tensor(3, 4))
        assert steps.same(steps.run(block(lambda got: got.hidden * got.hidden), tensor(3, 4)), got)
        assert [h.reason for h in seen.held if h.region == "r"] == ["output kept for replay"]


def test_a_cell_among_the_arguments_is_left_alone(alike):
    cell = nn.Tanh()
    alike(lambda region: lambda x: region(x * 2.0, cell), lambda x, cell: cell(x) * x)


def test_the_place_in_which_one_call_writes_is_saved_in_another(alike):
    """In a later step a write without a trace isn't told apart by the place alone."""

    def body(x, last, writes):
        if writes:
            ops.assign(last, ops.stop_gradient(x) * 0.5)
            return x * 3.0
        return x * last

    def block(region):
        def run(x):
            y = ops.tanh(x)
            buffer = ops.ones((3, 4))
            return region(y, y * 2.0, False) + region(y, buffer, True) * buffer

        return run

    alike(block, body, times=3)
