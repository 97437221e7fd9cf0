"""Wrapped Cells and callables look and behave like what they wrap."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import pickle
from typing import ClassVar

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, nn, ops

from hp_memory.activation import (
    checkpoint,
    checkpoint_exclude_wrapper,
    checkpoint_wrapper,
    observe,
    region,
    report,
)

WRAPPERS = {
    "checkpoint": checkpoint_wrapper,
    "exclude": checkpoint_exclude_wrapper,
    "region": lambda target: region(target, name="r"),
}
each_wrapper = pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)


class Layer(nn.Cell):
    def __init__(self, seed):
        super().__init__()
        value = np.random.RandomState(seed).randn(4, 4).astype(np.float32)
        self.w = ms.Parameter(ms.Tensor(value), name="w")
        self.inner = nn.Dense(4, 4)

    def construct(self, x):
        return self.inner(ops.tanh(mint.matmul(x, self.w)))

    def helper(self):
        return "helped"


class Model(nn.Cell):
    def __init__(self, wrap=None):
        super().__init__()
        self.layers = nn.CellList([Layer(i) for i in range(3)])
        self.head = Layer(9)
        if wrap:
            for i in range(3):
                self.layers[i] = wrap(self.layers[i])
            self.head = wrap(self.head)

    def construct(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Small(nn.Cell):
    """Without the primitives that MindSpore's own layers hold, which can't be pickled."""

    made: ClassVar[list[str]] = []

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Small.made.append(cls.__name__)

    def __init__(self):
        super().__init__()
        self.w = ms.Parameter(ms.Tensor(np.eye(4, dtype=np.float32) * 2.0), name="w")

    def construct(self, x):
        return mint.matmul(ops.tanh(x), self.w)


class Registered(Small):
    pass


def small_function(x):
    return x * x


WRAPPERS_THAT_PICKLE = {
    "checkpoint": checkpoint_wrapper,
    "exclude": checkpoint_exclude_wrapper,
    "region": functools.partial(region, name="r"),
}


@pytest.mark.parametrize("wrap", WRAPPERS_THAT_PICKLE.values(), ids=WRAPPERS_THAT_PICKLE)
class TestCopies:
    def test_a_pickle_wraps_anew(self, wrap, steps, tensor):
        cell = wrap(Small())
        twin = pickle.loads(pickle.dumps({"first": cell, "again": cell}))
        assert twin["first"] is twin["again"]
        twin = twin["first"]
        assert isinstance(twin, Small)
        assert type(twin) is type(cell)
        assert twin.w is not cell.w
        assert twin.w.name == "w"
        want = steps.run(cell, tensor(3, 4), weights=[cell.w])
        assert steps.same(want, steps.run(twin, tensor(3, 4), weights=[twin.w]))
        function = pickle.loads(pickle.dumps(wrap(small_function)))
        assert steps.same(steps.run(small_function, tensor(3, 4)), steps.run(function, tensor(3, 4)))

    def test_a_shallow_copy_shares_the_parameters(self, wrap, steps, tensor):
        cell = wrap(Small())
        twin = copy.copy(cell)
        assert type(twin) is type(cell)
        assert twin is not cell
        assert twin.w is cell.w
        want = steps.run(cell, tensor(3, 4), weights=[cell.w])
        assert steps.same(want, steps.run(twin, tensor(3, 4), weights=[twin.w]))
        function = copy.copy(wrap(small_function))
        assert steps.same(steps.run(small_function, tensor(3, 4)), steps.run(function, tensor(3, 4)))

    def test_wrapping_registers_no_second_model(self, wrap):
        before = list(Small.made)
        wrap(Registered())
        assert Small.made == before
        assert "Registered" in before


@dataclasses.dataclass
class Unhashable:
    scale: float

    def run(self, x):
        return ops.tanh(x * self.scale)


class SlottedMethods:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale

    def run(self, x):
        return ops.tanh(x * self.scale)


class TestMethodsUnderCheckpoint:
    @pytest.mark.parametrize("make", [Unhashable, SlottedMethods])
    def test_of_classes_without_a_hash_or_a_weak_reference(self, make, steps, tensor):
        one, other = make(2.0), make(3.0)
        for _ in range(2):
            for item in (one, other):
                want = steps.run(item.run, tensor(3, 4))
                assert steps.same(want, steps.run(lambda x, run=item.run: checkpoint(run, x), tensor(3, 4)))

    def test_equal_objects_learn_for_themselves(self, steps, tensor):
        class Equal:
            def __init__(self, saved):
                self.part = checkpoint_exclude_wrapper(small_function) if saved else small_function

            def __eq__(self, other):
                return True

            def __hash__(self):
                return 1

            def run(self, x):
                return ops.tanh(self.part(ops.tanh(x)))

        for item in (Equal(False), Equal(True), Equal(False)):
            want = steps.run(lambda x: ops.tanh(small_function(ops.tanh(x))), tensor(3, 4))
            assert steps.same(want, steps.run(lambda x, run=item.run: checkpoint(run, x), tensor(3, 4)))

    def test_what_was_learned_dies_with_the_object(self, steps, tensor):
        from hp_memory.activation.wrappers import _plans

        gc.collect()
        before, item = len(_plans._found), Unhashable(2.0)
        steps.run(functools.partial(checkpoint, item.run), tensor(3, 4))
        assert len(_plans._found) > before
        del item
        gc.collect()
        assert len(_plans._found) == before


@each_wrapper
class TestCells:
    def test_names_and_keys_stay(self, wrap):
        plain, wrapped = Model(), Model(wrap)
        assert [p.name for p in wrapped.get_parameters()] == [p.name for p in plain.get_parameters()]
        assert list(wrapped.parameters_dict()) == list(plain.parameters_dict())
        assert [n for n, _ in wrapped.cells_and_names()] == [n for n, _ in plain.cells_and_names()]
        assert [n for n, _ in wrapped.parameters_and_names()] == [n for n, _ in plain.parameters_and_names()]

    def test_checkpoints_go_both_ways(self, wrap, tmp_path):
        plain, wrapped = Model(), Model(wrap)
        for source, target in ((plain, wrapped), (wrapped, plain)):
            ms.save_checkpoint(source, str(tmp_path / "m.ckpt"))
            missing, unexpected = ms.load_param_into_net(target, ms.load_checkpoint(str(tmp_path / "m.ckpt")))
            assert not missing
            assert not unexpected

    def test_is_of_the_same_class_and_shares_all_state(self, wrap):
        layer = Layer(1)
        wrapped = wrap(layer)
        assert isinstance(wrapped, Layer)
        assert wrapped.w is layer.w
        assert wrapped.helper() == "helped"
        wrapped.note = "seen"
        wrapped.set_train(True)
        assert layer.note == "seen"
        assert layer.inner.training
        assert type(layer) is Layer  # what was wrapped isn't changed

    def test_an_optimizer_made_before_still_moves_the_weights(self, wrap):
        model = Model()
        optimizer = nn.SGD(model.trainable_params(), 0.1)
        model.head = wrap(model.head)
        before = model.head.w.asnumpy().copy()
        grad = ms.value_and_grad(lambda x: model(x).sum(), None, optimizer.parameters)
        optimizer(grad(ms.Tensor(np.ones((2, 4), np.float32)))[1])
        assert not np.array_equal(before, model.head.w.asnumpy())

    def test_hooks_run_once_per_forward(self, wrap, steps, tensor):
        layer, seen = Layer(1), []
        wrapped = wrap(layer)
        wrapped.register_forward_pre_hook(lambda cell, args: seen.append("pre"))
        wrapped.register_forward_hook(lambda cell, args, out: seen.append("post"))
        steps.run(wrapped, tensor(3, 4))
        assert seen == ["pre", "post"]

    def test_a_deep_copy_is_independent(self, wrap, steps, tensor):
        model = Model(wrap)
        twin = copy.deepcopy(model)
        x = tensor(3, 4)
        want = steps.run(model, x, weights=model.trainable_params())
        assert steps.same(want, steps.run(twin, x, weights=twin.trainable_params()))
        assert not {id(p) for p in model.get_parameters()} & {id(p) for p in twin.get_parameters()}
        assert type(twin.head) is type(model.head)

    def test_mixed_precision_applied_afterwards(self, wrap, tensor):
        x = tensor(3, 4)
        plain, wrapped = Model(), Model(wrap)
        ms.load_param_into_net(wrapped, plain.parameters_dict())
        for model in (plain, wrapped):
            ms.amp.auto_mixed_precision(model, "O2")
        assert np.array_equal(plain(x).asnumpy(), wrapped(x).asnumpy())

    def test_gradient_of_the_cell_itself(self, wrap, tensor, steps):
        layer = Layer(1)
        want = ms.value_and_grad(layer, 0, layer.trainable_params())(tensor(3, 4))
        got = ms.value_and_grad(wrap(layer), 0, layer.trainable_params())(tensor(3, 4))
        assert np.array_equal(want[1][0].asnumpy(), got[1][0].asnumpy())


def test_wrappers_stack(steps, tensor):
    layer = Layer(1)
    stacked = checkpoint_wrapper(checkpoint_exclude_wrapper(region(layer, name="inner")), name="outer")
    want = steps.run(layer, tensor(3, 4), weights=layer.trainable_params())
    with observe() as observation:
        got = steps.run(stacked, tensor(3, 4), weights=layer.trainable_params())
    assert steps.same(want, got)
    assert isinstance(stacked, Layer)
    assert observation.runs["inner"].body == 1


@each_wrapper
class TestCallables:
    def test_bound_method_as_an_instance_attribute(self, wrap, steps, tensor):
        class Block(nn.Cell):
            def __init__(self):
                super().__init__()
                self.w = ms.Parameter(ms.Tensor(np.eye(4, dtype=np.float32)), name="w")

            def part(self, x):
                return mint.matmul(x, self.w) * x

            def construct(self, x):
                return self.part(ops.tanh(x))

        plain, block = Block(), Block()
        block.part = wrap(block.part)
        want = steps.run(plain, tensor(3, 4), weights=plain.trainable_params())
        run = block if wrap is checkpoint_wrapper else checkpoint_wrapper(block)
        assert steps.same(want, steps.run(run, tensor(3, 4), weights=block.trainable_params()))
        assert block.part.__name__.endswith("part")
        twin = copy.deepcopy(block)
        twin.w.set_data(ms.Tensor(np.zeros((4, 4), np.float32)))
        assert not twin(tensor(3, 4)).asnumpy().any()

    def test_method_on_a_class(self, wrap, tensor):
        class Plain:
            scale = 2.0

            def part(self, x):
                return x * self.scale

        Plain.part = wrap(Plain.part)
        assert np.array_equal(Plain().part(tensor(3, 4)).asnumpy(), tensor(3, 4).asnumpy() * 2)


class TestSharing:
    def test_one_wrapper_in_two_blocks_twice_each(self, steps, tensor):
        calls = []

        def body(x):
            calls.append(1)
            return x * x

        shared = checkpoint_exclude_wrapper(body)

        def block(call):
            return lambda x: ops.tanh(call(ops.tanh(call(ops.tanh(x)))))

        first, second = checkpoint_wrapper(block(shared)), checkpoint_wrapper(block(shared))
        want = steps.run(lambda x: block(body)(block(body)(x)), tensor(3, 4))
        for _ in range(3):
            calls.clear()
            assert steps.same(want, steps.run(lambda x: second(first(x)), tensor(3, 4)))
            assert len(calls) == 4

    def test_one_wrapper_in_a_loop_of_changing_length(self, steps, tensor):
        shared = checkpoint_exclude_wrapper(lambda x: x * x * 0.5)

        def block(call, times):
            def run(x):
                for _ in range(times[0]):
                    x = ops.tanh(call(x))
                return x

            return run

        times = [1]
        wrapped = checkpoint_wrapper(block(shared, times))
        for n in (1, 3, 2, 0):
            times[0] = n
            want = steps.run(block(lambda x: x * x * 0.5, times), tensor(3, 4))
            assert steps.same(want, steps.run(wrapped, tensor(3, 4)))

    def test_tied_weight(self, steps, tensor):
        weight = ms.Parameter(tensor(4, 4, seed=3), name="w")

        def project(x):
            return mint.matmul(x, weight)

        region = checkpoint_exclude_wrapper(project)

        def block(call):
            return lambda x: mint.matmul(ops.tanh(call(ops.tanh(x))), weight.T)

        want = steps.run(block(project), tensor(3, 4), weights=[weight])
        assert steps.same(want, steps.run(checkpoint_wrapper(block(region)), tensor(3, 4), weights=[weight]))

    def test_a_branch_taken_in_forward_and_replay_alike(self, steps, tensor):
        region = checkpoint_exclude_wrapper(lambda x: x * x)
        way = [True]

        def block(call):
            return lambda x: ops.tanh(call(x)) if way[0] else call(ops.silu(call(x)))

        wrapped = checkpoint_wrapper(block(region))
        for choice in (True, False, True):
            way[0] = choice
            want = steps.run(block(lambda x: x * x), tensor(3, 4))
            assert steps.same(want, steps.run(wrapped, tensor(3, 4)))


class TestPlansOfPlainFunctions:
    def test_learned_once_and_forgotten_with_the_function(self, tensor, steps):
        from hp_memory.activation import wrappers

        blocks = [lambda x: ops.tanh(x)]
        for _ in range(2):
            steps.run(lambda x: checkpoint(blocks[0], x), tensor(3, 4))
        assert wrappers._plans.of(blocks[0])[None] is not None
        count = len(wrappers._plans._found)
        blocks.clear()
        assert len(wrappers._plans._found) < count


class TestObservation:
    def test_counts_runs_and_holds_with_and_without_a_boundary(self, chain_model, steps, tensor):
        parts = {"A": lambda self, x: x * x, "B": lambda self, x: mint.matmul(x, self.w)}
        for boundary, replays in ((False, 0), (True, 1)):
            model = chain_model(parts, boundary=boundary)
            for name in parts:
                setattr(model.block, name, region(getattr(model.block, name), name=name))
            with observe() as observation:
                steps.run(model.run, tensor(3, 4), weights=model.block.trainable_params())
            runs = observation.runs["A"]
            assert (runs.forward, runs.body, runs.replays) == (1, 1 + replays, replays)
            held = report(observation).to_dict()
            # x for A, and A's output for B: the weight is a parameter and doesn't count.
            assert held["total_bytes"] == (48 if boundary else 96)
            assert held["regions"]["block" if boundary else "A"]["bytes"] == 48

    def test_fixed_when_backward_begins(self, tensor):
        with observe() as observation:
            ms.grad(lambda x: ops.tanh(x).sum())(tensor(3, 4))
        assert [h.reason for h in observation.held] == ["saved for backward"]

    def test_one_at_a_time(self):
        with observe(), pytest.raises(RuntimeError, match="already running"), observe():
            pass

    def test_table_names_region_bytes_and_reason(self, chain_model, steps, tensor):
        import io

        import rich.console

        model = chain_model({"A": lambda self, x: ops.tanh(x), "B": lambda self, x: ops.silu(x)}, saved="A")
        with observe() as observation:
            steps.run(model.run, tensor(3, 4))
        text = io.StringIO()
        rich.console.Console(file=text, width=120).print(report(observation))
        for word in ("A", "3x4", "float32", "48", "block input", "saved for backward"):
            assert word in text.getvalue()

    def test_what_lives_now_is_read_at_any_time(self, tensor):
        with observe() as observation:
            ms.grad(lambda x: ops.tanh(x).sum())(tensor(3, 4))
            assert observation.held
            assert not list(observation.living())


@pytest.mark.parametrize(
    ("wrap", "says"),
    [
        (lambda: checkpoint_wrapper(Layer(1), early_stop="false"), "early_stop must be True or False, got 'false'"),
        (lambda: checkpoint_wrapper(Layer(1), name=7), "name must be a string"),
        (lambda: checkpoint_wrapper(Layer(1), name=""), "name must be a string"),
        (lambda: checkpoint_wrapper(Layer(1), context_fn=3), "context_fn must be a callable"),
        (lambda: checkpoint_exclude_wrapper(Layer(1), name=7), "name must be a string"),
        (lambda: checkpoint_exclude_wrapper(Layer(1), save_output="yes"), "save_output must be None, True or False"),
        (lambda: checkpoint_exclude_wrapper(Layer(1), remake_inputs=0), "remake_inputs must be True or False"),
        (lambda: region(Layer(1), name=None), "needs a name"),
        (lambda: checkpoint(lambda x: x, 1, early_stop=None), "early_stop must be True or False"),
        (lambda: checkpoint_wrapper("layer"), "expected a Cell or a callable, got str"),
        (lambda: checkpoint(None, 1), "expected a Cell or a callable, got NoneType"),
    ],
)
def test_an_option_of_another_type_is_refused_at_once(wrap, says):
    with pytest.raises(TypeError, match=says):
        wrap()
