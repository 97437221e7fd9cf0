"""What a block holds is what is live: by the rule itself on plain data, and by what real blocks keep."""

from __future__ import annotations

import mindspore as ms
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import mint, ops

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, observe
from hp_memory.activation.liveness import Trace

# What lies between the regions of a real model's expert path: it saves nothing, and only regions take what it makes.
BARE = {
    "nothing": lambda x: x,
    "views": lambda x: x.reshape(-1).reshape(-1, 4),
    "transposed": lambda x: x.T.T,
    "a cast": lambda x: x.astype(ms.float16).astype(ms.float32),
    "a pad and a slice": lambda x: mint.cat((ops.zeros((2, 4)), x), 0)[2:],
    "arithmetic": lambda x: (x + 1.0) * 2.0 - x,
    "chunks": lambda x: mint.cat(mint.chunk(x, 2, 1), 1),
    "a sum over parts": lambda x: sum(mint.split(x, 2, 1)) @ ops.ones((2, 4)),
}


def chain(first, second, third, bare):
    def block(x):
        y = bare(third(bare(second(bare(first(bare(ops.tanh(x))))))))
        return ops.tanh(y)

    return block


PARTS = (lambda x: x + 1.0, lambda x: x * 2.0, lambda x: x - 3.0)


class TestBareOperationsBetweenSavedRegions:
    @pytest.mark.parametrize("bare", BARE.values(), ids=BARE)
    def test_keep_nothing(self, steps, tensor, bare):
        regions = [checkpoint_exclude_wrapper(part, name=f"r{i}") for i, part in enumerate(PARTS)]
        run, plain = checkpoint_wrapper(chain(*regions, bare)), chain(*PARTS, bare)
        for step in range(3):
            # Another number of rows in each step, as experts get: shapes aren't learned.
            x = tensor(4 + 2 * step, 4, seed=step)
            with observe() as observation:
                got = steps.run(run, x)
            assert steps.same(got, steps.run(plain, x))
            assert [held.region for held in observation.held if held.region.startswith("r")] == ["r2"]

    def test_are_live_if_a_saved_region_has_what_they_make_brought_again(self, steps, tensor):
        first = checkpoint_exclude_wrapper(lambda x: x + 1.0, name="first")
        square = checkpoint_exclude_wrapper(lambda x: x * x, name="square")
        run = checkpoint_wrapper(lambda x: square(first(ops.tanh(x)) * 2.0))
        with observe() as observation:
            got = steps.run(run, tensor(3, 4))
        assert steps.same(got, steps.run(lambda x: ops.square((ops.tanh(x) + 1.0) * 2.0), tensor(3, 4)))
        held = [(held.region, held.reason) for held in observation.held if held.region in ("first", "square")]
        assert held == [("first", "output kept for replay")]

    @pytest.mark.parametrize("kind", [ms.int32, ms.bool_])
    def test_indices_made_of_an_output_keep_it(self, steps, tensor, kind):
        """An index of no value could point anywhere, so what makes one always has its values."""

        def block(first, last):
            def run(x):
                y = first(ops.tanh(x))
                places = (y > 0).astype(kind).astype(ms.int32)
                return ops.tanh(last(y * 1.0, ops.gather(y, places[:, 0] * 0, 0)))

            return run

        parts = (lambda x: x + 1.0, lambda x, y: x + y)
        run = checkpoint_wrapper(block(*(checkpoint_exclude_wrapper(p, name=f"r{i}") for i, p in enumerate(parts))))
        for _ in range(2):
            with observe() as observation:
                got = steps.run(run, tensor(3, 4))
            assert steps.same(got, steps.run(block(*parts), tensor(3, 4)))
            assert "r0" in {held.region for held in observation.held}


class TestRule:
    def trace(self):
        """Two calls; their outputs go through a view to a third, which saves nothing of them."""
        trace = Trace()
        a = trace.add("View", [(0, 0)], calls=1)
        b = trace.add("Add", [a, (0, 1)], calls=2)
        trace.taken.append((2, b))
        return trace

    def test_nothing_live_keeps_nothing(self):
        needs = self.trace().settle([(0, 0), (0, 1)])
        assert needs.readers == {}
        assert needs.until == {(0, 0): 2, (0, 1): 2}
        assert needs.released == {(0, 0): 3, (0, 1): 3}
        assert needs.dead == {"View", "Add"}

    def test_what_is_needed_is_followed_to_the_outputs(self):
        trace = self.trace()
        trace.need(1, "Tanh")
        needs = trace.settle([(0, 0), (0, 1)])
        assert needs.readers == {(0, 0): "View", (0, 1): "Add"}
        assert (needs.until, needs.dead) == ({}, frozenset())

    def test_of_two_readers_the_dead_one_runs_on_the_real_value(self):
        trace = self.trace()
        trace.need(0, "Tanh")
        needs = trace.settle([(0, 0), (0, 1)])
        assert set(needs.readers) == {(0, 0)}
        assert needs.dead == {"Add"}

    @given(data=st.data())
    def test_no_live_operation_reads_what_is_not_kept(self, data):
        outputs = [(call, leaf) for call in range(3) for leaf in range(2)]
        trace = Trace()
        for number in range(data.draw(st.integers(0, 12))):
            readable = st.sampled_from([*outputs, *range(number)])
            reads = data.draw(st.lists(readable, max_size=3))
            trace.add(f"op{number}", reads, calls=3, live=data.draw(st.booleans()) and number % 3 == 0)
        for value in data.draw(st.lists(st.sampled_from([*outputs, *range(len(trace.operations))]), max_size=3)):
            trace.need(value, "backward")
        needs = trace.settle(outputs)
        worthless = {output for output in outputs if output not in needs.readers}
        for number, operation in enumerate(trace.operations):
            touched = bool(worthless & set(operation.reads))
            assert not (touched and (operation.live or number in trace.needed))
            if touched:
                assert operation.name in needs.dead
                worthless.add(number)
        assert not worthless & set(trace.needed)
