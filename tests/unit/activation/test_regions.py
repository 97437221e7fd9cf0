"""Rules of an excluded region: what it runs, what it keeps, what it makes again, what it refuses."""

from __future__ import annotations

from collections import namedtuple

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, nn, ops
from mindspore.common._grad_function import _Function

from hp_memory.activation import (
    checkpoint,
    checkpoint_exclude_wrapper,
    checkpoint_wrapper,
    findings,
    is_recomputing,
    observe,
)
from hp_memory.activation.probe import block_of, was_freed
from hp_memory.activation.recipes import Slot, unpack
from hp_memory.errors import ReplayError

MIB = 1 << 20


class SavesExactly(_Function):
    """x * x, whose backward reads ``view(x)``, saved exactly as given."""

    @staticmethod
    def forward(ctx, x, view):
        ctx.save_for_backward(view(x))
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (saved,) = ctx.saved_tensors
        return grad * 2.0 * saved.sum(), None


def sees_mark(tensor):
    return tensor._get_user_data("hp_memory_input") is not None


class TestSlot:
    def test_take_before_a_replay_reproduced_it_raises(self, chain_model, steps, tensor):
        class Empty:
            held_by_session = False

            def fill_on_demand(self, slot, session):
                raise ReplayError("not reproduced")

        with pytest.raises(RuntimeError, match="not reproduced"):
            Slot(Empty(), 1).take()

    def test_value_is_dropped_after_as_many_reads_as_saves(self, tensor):
        class Never:
            held_by_session = False

        slot = Slot(Never(), 2)
        slot.fill(tensor(2, 2))
        assert unpack(slot) is not None
        assert unpack(slot) is not None
        assert slot.value is None

    def test_refilled_by_a_later_replay(self, tensor):
        class Never:
            held_by_session = False

        slot, later = Slot(Never(), 1), tensor(2, 2, seed=2)
        slot.fill(tensor(2, 2))
        slot.fill(later)
        assert unpack(slot) is later


class TestInputs:
    def test_marks_only_while_the_body_runs_and_never_on_parameters(self, tensor):
        weight = ms.Parameter(tensor(4, 4), name="w")
        seen = []

        def body(x, weight):
            seen.append((sees_mark(x), sees_mark(weight)))
            return mint.matmul(x, weight)

        inner = []
        region = checkpoint_exclude_wrapper(body)

        def block(x):
            y = ops.tanh(x)
            inner.append(y)
            return region(y, weight)

        ms.value_and_grad(lambda x: checkpoint(block, x).sum(), 0, [weight])(tensor(3, 4))
        assert seen == [(True, False)]
        assert not any(sees_mark(y) for y in inner)

    def test_same_tensor_in_several_places_gets_one_slot(self, steps, tensor):
        def body(a, pair, *, named):
            return a * pair[0] * named["x"][0]

        region = checkpoint_exclude_wrapper(body, name="cube")

        def block(x):
            y = ops.tanh(x)
            return region(y, (y, 3), named={"x": [y]})

        wrapped = checkpoint_wrapper(block)
        want = steps.run(block, tensor(3, 4))
        assert steps.same(want, steps.run(wrapped, tensor(3, 4)))
        assert {f.how for f in findings(wrapped) if f.what.startswith("saved")} >= {"made again by the replay"}

    @pytest.mark.parametrize(
        "call",
        [
            lambda region, x: region(x),
            lambda region, x: region((1, x)),
            lambda region, x: region([None, [x]]),
            lambda region, x: region({"a": x, "b": "text"}),
            lambda region, x: region(namedtuple("Box", "x")(x)),
            lambda region, x: region(x=x),
            lambda region, x: region(x={"deep": ({"er": x},)}),
        ],
    )
    def test_found_by_path(self, steps, tensor, call):
        def first(tree):
            if isinstance(tree, ms.Tensor):
                return tree
            values = tree.values() if isinstance(tree, dict) else tree
            return next((t for t in map(first, values) if t is not None), None) if hasattr(values, "__iter__") else None

        def body(*args, **kwargs):
            y = first((args, kwargs))
            return y * y

        def block(region):
            return lambda x: call(region, ops.tanh(x))

        with observe() as observation:
            got = steps.run(checkpoint_wrapper(block(checkpoint_exclude_wrapper(body, name="r"))), tensor(3, 4))
        assert steps.same(steps.run(block(body), tensor(3, 4)), got)
        assert not [h for h in observation.held if h.region == "r"]

    def test_input_of_another_kind_in_the_replay_is_refused(self, tensor):
        region = checkpoint_exclude_wrapper(lambda x: x["y"] * x["y"], name="odd")

        def block(x):
            y = ops.tanh(x)
            return region({"z" if is_recomputing() else "y": y})

        with pytest.raises(ReplayError, match=r"did not reproduce input args\[0\]\['y'\] of excluded region odd"):
            ms.grad(lambda x: checkpoint(block, x).sum())(tensor(3, 4))


VIEWS = {
    "flat": lambda x: x.view(-1),
    "transposed": lambda x: x.T,
    "rows": lambda x: mint.narrow(x, 0, 1, 2),
    "columns": lambda x: mint.chunk(x, 2, 1)[1],
    "reshaped": lambda x: x.reshape(-1, 2, 2),
    "view of a view": lambda x: mint.narrow(x.T, 1, 0, 2),
    "itself": lambda x: x,
}


class TestViews:
    @pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
    def test_saved_by_a_custom_function_is_rebuilt(self, steps, tensor, view):
        def block(region):
            return lambda x: region(ops.tanh(x))

        def body(x):
            return SavesExactly.apply(x, view)

        wrapped = checkpoint_wrapper(block(checkpoint_exclude_wrapper(body, name="r")))
        with observe() as observation:
            got = steps.run(wrapped, tensor(4, 4))
        assert steps.same(steps.run(block(body), tensor(4, 4)), got)
        assert not [h for h in observation.held if h.region == "r"]

    @pytest.mark.parametrize(
        ("view", "how"),
        [
            (lambda x: x.reshape(-1), "made again as a copy of an input"),
            (lambda x: mint.unsqueeze(x, 0), "made again as a copy of an input"),
            (lambda x: x.T, "kept: backend copied it"),
            (lambda x: mint.narrow(x, 0, 1, 2), "kept: backend copied it"),
        ],
    )
    def test_saved_by_a_built_in_kernel(self, steps, tensor, view, how):
        def body(x):
            y = view(x)
            return y * y

        region = checkpoint_exclude_wrapper(body, name="r")
        wrapped = checkpoint_wrapper(lambda x: region(ops.tanh(x)))
        got = steps.run(wrapped, tensor(4, 4))
        assert steps.same(steps.run(lambda x: body(ops.tanh(x)), tensor(4, 4)), got)
        found = [f for f in findings(wrapped) if f.what.startswith("saved")]
        assert how in {f.how for f in found}
        assert all((f.nbytes > 0) == f.how.startswith("kept") for f in found)

    @pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x.reshape(8, 2), lambda x: mint.narrow(x, 0, 1, 2)])
    def test_input_that_is_itself_a_view(self, steps, tensor, view):
        def body(x):
            return x * x

        region = checkpoint_exclude_wrapper(body, name="r")
        wrapped = checkpoint_wrapper(lambda x: region(view(ops.tanh(x))))
        with observe() as observation:
            got = steps.run(wrapped, tensor(4, 4))
        assert steps.same(steps.run(lambda x: body(view(ops.tanh(x))), tensor(4, 4)), got)
        assert not [h for h in observation.held if h.region == "r"]

    def test_no_storage_of_the_input_survives_the_forward(self):
        """The independent measure: 16 MiB of storage are handed out again between forward and backward."""
        blocks, verdicts = [], []

        def block(region):
            def run(x):
                y = x * 1.5
                blocks.append(block_of(y))
                return region(y)

            return run

        def measure(region, freed):
            run = checkpoint_wrapper(block(region))

            def loss(x):
                out = run(x).sum()
                verdicts.append(was_freed(blocks[-1]) == freed)
                return out

            ms.value_and_grad(loss, 0)(ops.zeros((2048, 2048), ms.float32))

        def transposed(x):
            return SavesExactly.apply(x, VIEWS["transposed"])

        measure(checkpoint_exclude_wrapper(transposed), True)
        measure(checkpoint_exclude_wrapper(lambda x: x * x), True)
        measure(checkpoint_exclude_wrapper(lambda x: x * x, remake_inputs=False), False)
        assert verdicts == [True, True, True]


class TestParameters:
    def cell(self, tensor, body):
        class Experts(nn.Cell):
            def __init__(self):
                super().__init__()
                self.w = ms.Parameter(tensor(4, 4, seed=5), name="w")

            def construct(self, x):
                return body(self, x)

        return Experts()

    @pytest.mark.parametrize(
        "body",
        [
            lambda cell, x: mint.matmul(x, cell.w),
            lambda cell, x: mint.matmul(x.astype(ms.float16), cell.w.astype(ms.float16)).astype(ms.float32),
            lambda cell, x: mint.matmul(x, cell.w.reshape(2, 8).reshape(4, 4)),
        ],
        ids=["itself", "half precision", "reshaped"],
    )
    def test_saving_a_gmm_keeps_no_copy_of_the_weights(self, steps, tensor, body):
        plain, experts = self.cell(tensor, body), self.cell(tensor, body)
        region = checkpoint_exclude_wrapper(experts, name="gmm")
        wrapped = checkpoint_wrapper(lambda x: ops.tanh(region(ops.tanh(x))))
        want = steps.run(lambda x: ops.tanh(plain(ops.tanh(x))), tensor(3, 4), weights=[plain.w])
        for _ in range(2):
            with observe() as observation:
                got = steps.run(wrapped, tensor(3, 4), weights=[experts.w])
            assert steps.same(want, got)
            assert not [h for h in observation.held if h.region == "gmm" and h.shape == (4, 4)]

    def test_a_cast_of_a_frozen_weight_in_the_body_is_kept(self, steps, tensor):
        """A limit: without a graph node nobody knows what it was made of."""

        def body(cell, x):
            return mint.matmul(x.astype(ms.float16), cell.w.astype(ms.float16)).astype(ms.float32)

        experts = self.cell(tensor, body)
        experts.w.requires_grad = False
        region = checkpoint_exclude_wrapper(experts, name="gmm")
        with observe() as observation:
            steps.run(checkpoint_wrapper(lambda x: ops.tanh(region(ops.tanh(x)))), tensor(3, 4))
        assert [h.reason for h in observation.held if h.shape == (4, 4)] == ["saved for backward"]

    def test_local_shard_as_an_argument_is_left_to_the_replay(self, steps, tensor):
        """What ``DTensor.to_local()`` gives: a tensor over the parameter's own storage, made in the replayed part."""
        weight = ms.Parameter(tensor(4, 4, seed=5), name="w")
        region = checkpoint_exclude_wrapper(lambda x, w: mint.matmul(x, w), name="gmm")

        def block(gmm):
            return lambda x: gmm(ops.tanh(x), weight.reshape(4, 4))

        with observe() as observation:
            got = steps.run(checkpoint_wrapper(block(region)), tensor(3, 4), weights=[weight])
        assert steps.same(steps.run(block(mint.matmul), tensor(3, 4), weights=[weight]), got)
        assert not [h for h in observation.held if h.region == "gmm" and h.shape == (4, 4)]

    def test_distributed_tensors_are_followed_to_their_shard(self, steps, tensor):
        class Sharded(ms.Tensor):
            def to_local(self):
                return self.shard

        def sharded(local):
            made = Sharded(np.zeros(1, np.float32))
            made.shard = local
            return made

        region = checkpoint_exclude_wrapper(lambda x: x.to_local() * x.to_local(), name="r")

        def block(call):
            return lambda x: ops.tanh(call(sharded(ops.tanh(x))))

        with observe() as observation:
            got = steps.run(checkpoint_wrapper(block(region)), tensor(3, 4))
        assert steps.same(steps.run(block(lambda x: x.to_local() * x.to_local()), tensor(3, 4)), got)
        assert [h.reason for h in observation.held if h.region == "r"] == ["output kept for replay"]
        gives = checkpoint_exclude_wrapper(sharded, name="gives")
        with pytest.raises(ReplayError, match="gives returns a distributed tensor of Sharded"):
            ms.grad(lambda x: checkpoint(gives, x).to_local().sum())(tensor(3, 4))

    def test_gathered_weight_is_not_held_and_is_found_again(self, steps, tensor):
        """A sharded parameter has its gathered values (4 MiB here) during forward and backward only."""
        full, shard = tensor(1024, 1024, seed=6).asnumpy() / 32, tensor(2, 4)
        experts = self.cell(tensor, lambda cell, x: mint.matmul(x, cell.w))
        region = checkpoint_exclude_wrapper(experts, name="gmm")
        wrapped = checkpoint_wrapper(lambda x: ops.tanh(region(ops.tanh(x))))
        freed = []

        def gather():
            experts.w.set_data(ms.Tensor(full) * 1.0, slice_shape=True)

        def loss(x):
            gather()
            out = wrapped(x).sum()
            gathered = block_of(experts.w)
            experts.w.set_data(shard, slice_shape=True)
            freed.append(was_freed(gathered))
            gather()
            return out

        x = tensor(16, 1024)
        want = steps.run(lambda x: ops.tanh(mint.matmul(ops.tanh(x), ms.Tensor(full))), x)
        for _ in range(2):
            got = steps.run(loss, x)
            assert steps.same(want, got)
        assert freed == [True, True]

    def test_a_weight_that_is_still_sharded_in_backward_is_named(self, tensor):
        experts = self.cell(tensor, lambda cell, x: mint.matmul(x, cell.w))
        full = experts.w.asnumpy().copy()
        region = checkpoint_exclude_wrapper(experts)
        wrapped = checkpoint_wrapper(lambda x: ops.tanh(region(ops.tanh(x))))

        def loss(x):
            out = wrapped(x).sum()
            experts.w.set_data(ms.Tensor(full[:2]), slice_shape=True)
            return out

        with pytest.raises(RuntimeError, match="parameter w has shape"):
            ms.grad(loss)(tensor(3, 4))


class TestRefusals:
    def test_nested_exclusion_names_both(self, tensor):
        inner = checkpoint_exclude_wrapper(lambda x: x * x, name="inner")
        outer = checkpoint_exclude_wrapper(lambda x: inner(x), name="outer")
        with pytest.raises(ReplayError, match=r"region inner is called inside excluded region outer.*only the outer"):
            ms.grad(lambda x: checkpoint(outer, x).sum())(tensor(3, 4))

    def test_nested_boundary_names_both(self, tensor):
        inner = checkpoint_wrapper(lambda x: x * x, name="inner")
        outer = checkpoint_wrapper(lambda x: inner(x), name="outer")
        with pytest.raises(ReplayError, match="checkpoint inner is called inside checkpoint outer"):
            ms.grad(lambda x: outer(x).sum())(tensor(3, 4))

    def test_a_wrapper_made_in_each_run_is_named(self, tensor):
        def block(x):
            return ops.tanh(checkpoint_exclude_wrapper(lambda y: y * y, name="fresh")(ops.tanh(x)))

        with pytest.raises(ReplayError, match=r"region fresh .* the wrapper is made anew in each run"):
            ms.grad(lambda x: checkpoint(block, x).sum())(tensor(3, 4))

    def test_not_a_callable(self):
        with pytest.raises(TypeError, match="expected a Cell or a callable, got int"):
            checkpoint_exclude_wrapper(3)

    @pytest.mark.parametrize("value", [0, "yes", 1])
    def test_save_output_takes_a_bool_or_none(self, value):
        with pytest.raises(TypeError, match="save_output must be None, True or False"):
            checkpoint_exclude_wrapper(lambda x: x, save_output=value)


class TestTransparency:
    def test_outside_a_checkpoint_nothing_changes(self, steps, tensor):
        region = checkpoint_exclude_wrapper(lambda x: x * x)
        assert steps.same(steps.run(lambda x: x * x, tensor(3, 4)), steps.run(region, tensor(3, 4)))
        assert not is_recomputing()

    def test_without_gradients_the_bodies_run_plainly(self, chain_model, tensor):
        model = chain_model({"A": lambda self, x: x * x}, saved="A")
        model.run(tensor(3, 4))
        assert model.calls == {"A": 1}
        assert findings(model.run) == []

    def test_forward_and_replay_are_told_apart(self, tensor):
        seen = []
        ms.grad(lambda x: checkpoint(lambda y: seen.append(is_recomputing()) or ops.tanh(y), x).sum())(tensor(3, 4))
        assert seen == [False, True]
        assert not is_recomputing()

    def test_numbers_in_and_out_are_left_alone(self, steps, tensor):
        region = checkpoint_exclude_wrapper(lambda x, n, *, flag: (x * n, [n, flag], None))

        def block(x):
            y, (n, flag), nothing = region(ops.tanh(x), 3, flag="on")
            assert (n, flag, nothing) == (3, "on", None)
            return ops.tanh(y)

        assert steps.same(
            steps.run(lambda x: ops.tanh(ops.tanh(x) * 3), tensor(3, 4)),
            steps.run(checkpoint_wrapper(block), tensor(3, 4)),
        )

    def test_an_input_passed_through_is_the_replays_own(self, steps, tensor):
        region = checkpoint_exclude_wrapper(lambda x: (x, x * x), name="r")

        def block(call):
            def run(x):
                same, square = call(ops.tanh(x))
                return ops.tanh(same) * square

            return run

        with observe() as observation:
            got = steps.run(checkpoint_wrapper(block(region)), tensor(3, 4))
        assert steps.same(steps.run(block(lambda x: (x, x * x)), tensor(3, 4)), got)
        assert len([h for h in observation.held if h.reason == "output kept for replay"]) == 1


def test_integer_outputs_need_no_gradient(steps, tensor):
    def route(x):
        values, places = ops.topk(x, 2)
        return values, places

    region = checkpoint_exclude_wrapper(route, name="router")

    def block(call):
        def run(x):
            values, places = call(ops.tanh(x))
            return values * places.astype(ms.float32)

        return run

    want = steps.run(block(route), tensor(3, 4))
    assert steps.same(want, steps.run(checkpoint_wrapper(block(region)), tensor(3, 4)))


def test_observing_the_meta_device_is_refused_instead_of_reporting_nothing():
    square = checkpoint_exclude_wrapper(lambda y: y * y)
    run = checkpoint_wrapper(lambda x: ops.tanh(square(ops.tanh(x))))
    with ms.DeviceCtx("meta"):
        assert ms.grad(lambda x: run(x).sum())(mint.ones((3, 4))).shape == (3, 4)
        with pytest.raises(RuntimeError, match="no storage to observe"), observe():
            ms.grad(lambda x: run(x).sum())(mint.ones((3, 4)))


def test_zero_rows(steps):
    empty = ms.Tensor(np.zeros((0, 4), np.float32))
    region = checkpoint_exclude_wrapper(lambda x: x * x)
    wrapped = checkpoint_wrapper(lambda x: ops.tanh(region(ops.tanh(x))))
    assert steps.same(steps.run(lambda x: ops.tanh(ops.square(ops.tanh(x))), empty)[1:], steps.run(wrapped, empty)[1:])


def test_a_view_that_only_a_custom_function_reads_is_kept_for_the_replay(steps, tensor):
    """Inside a custom function's forward nothing is recorded, so the copy made of a view leads back to nothing."""

    class Squares(_Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 2.0 * x

    def block(region):
        return lambda x: Squares.apply(region(ops.tanh(x)))

    def body(x):
        return (x * 1.5).T

    wrapped = checkpoint_wrapper(block(checkpoint_exclude_wrapper(body, name="r")))
    assert steps.same(steps.run(block(body), tensor(4, 4)), steps.run(wrapped, tensor(4, 4)))
