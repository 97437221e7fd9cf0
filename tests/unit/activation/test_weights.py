"""Copies of weights aren't held: what a body makes of parameters by moving their numbers is made again in backward."""

from __future__ import annotations

import threading

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, findings, observe
from hp_memory.activation.weights import Trace
from hp_memory.mindspore.private import executor, run_backward

HIDDEN, EXPERTS = 8, 3


class Experts(nn.Cell):
    def __init__(self, body, frozen=False):
        super().__init__()
        random = np.random.RandomState(2)
        values = random.randn(EXPERTS, HIDDEN, HIDDEN).astype(np.float32)
        self.w = ms.Parameter(Tensor(values), name="w", requires_grad=not frozen)
        for e in range(EXPERTS):
            setattr(self, f"w{e}", ms.Parameter(Tensor(values[e] * 0.5), name=f"w{e}"))
        self.body = body

    def construct(self, x, *more):
        return self.body(self, x, *more)


def half(x, weight):
    return ops.cast(mint.matmul(ops.cast(x, ms.float16), weight), ms.float32)


def linear(cell, x):
    """Cast, then transposed: MindFormers' Linear."""
    return half(x, mint.transpose(ops.cast(cell.w0, ms.float16), 1, 0))


BODIES = {
    "itself": lambda cell, x: mint.matmul(x, cell.w0),
    "transposed": lambda cell, x: mint.matmul(x, cell.w0.T),
    "cast": lambda cell, x: half(x, ops.cast(cell.w0, ms.float16)),
    "cast, then transposed": linear,
    "transposed, then cast": lambda cell, x: half(x, ops.cast(cell.w0.T, ms.float16)),
    "cast, reshaped, transposed": lambda cell, x: half(
        x, mint.transpose(ops.cast(cell.w, ms.float16).reshape(-1, HIDDEN)[:HIDDEN], 0, 1)
    ),
    "an expert": lambda cell, x: mint.matmul(x, cell.w[1]),
    "an expert of the cast": lambda cell, x: half(x, ops.cast(cell.w, ms.float16)[2]),
    "a slice": lambda cell, x: mint.matmul(x[:, 2:6], cell.w0[2:6]),
    "narrowed": lambda cell, x: mint.matmul(x[:, :4], mint.narrow(cell.w0, 0, 1, 4)),
    "split": lambda cell, x: mint.matmul(x[:, :4], mint.split(cell.w0, 4, 0)[1]),
    "chunks": lambda cell, x: mint.matmul(x[:, :4], mint.chunk(ops.cast(cell.w0, ms.float32), 2, 0)[1]),
    "concatenated": lambda cell, x: half(x, mint.cat((cell.w0, cell.w1), 1).astype(ms.float16)),
    "gathered rows": lambda cell, x: mint.matmul(x, ops.gather(cell.w0, Tensor(np.arange(HIDDEN)[::-1].copy()), 0)),
    "all experts": lambda cell, x: mint.bmm(x.expand_dims(0).broadcast_to((EXPERTS, *x.shape)), cell.w)[0],
}


def held_weights(seen):
    return [h for h in seen.held if h.region == "gmm" and len(h.shape) > 1 and HIDDEN in h.shape and 5 not in h.shape]


class TestCopiesOfWeights:
    @pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
    def test_are_not_held(self, steps, tensor, body):
        plain, cell = Experts(body), Experts(body)
        wrapped = checkpoint_wrapper(self.block(checkpoint_exclude_wrapper(cell, name="gmm")))
        x = tensor(5, HIDDEN)
        want = steps.run(self.block(plain), x, weights=plain.trainable_params())
        native = ms.recompute
        assert steps.same(
            want,
            steps.run(
                lambda x: native(self.block(plain), x, use_reentrant=False, early_stop=False),
                x,
                weights=plain.trainable_params(),
            ),
        )
        for _ in range(3):
            with observe() as seen:
                got = steps.run(wrapped, x, weights=cell.trainable_params())
            assert steps.same(want, got)
            assert not held_weights(seen)

    @staticmethod
    def block(part):
        return lambda x: ops.tanh(part(ops.tanh(x)))

    def test_of_a_frozen_weight(self, steps, tensor):
        def body(cell, x):
            return half(x, ops.cast(cell.w, ms.float16)[1])

        plain, cell = Experts(body, frozen=True), Experts(body, frozen=True)
        wrapped = checkpoint_wrapper(self.block(checkpoint_exclude_wrapper(cell, name="gmm")))
        with observe() as seen:
            got = steps.run(wrapped, tensor(5, HIDDEN))
        assert steps.same(steps.run(self.block(plain), tensor(5, HIDDEN)), got)
        # A limit: the copy that a kernel is given of a frozen weight's view has no graph node that leads to it.
        assert len(held_weights(seen)) == 1

    def test_of_every_call_of_a_shared_region(self, steps, tensor):
        """Different weights, one region; also experts that only a later step calls."""

        class Shared(nn.Cell):
            def __init__(self, saved):
                super().__init__()
                for e in range(EXPERTS):
                    value = np.random.RandomState(e).randn(HIDDEN, HIDDEN).astype(np.float32)
                    setattr(self, f"w{e}", ms.Parameter(Tensor(value), name=f"w{e}"))
                self.called = [0, 1]
                if saved:
                    self.expert = checkpoint_exclude_wrapper(self.expert, name="gmm")

            def expert(self, x, e):
                return half(x, ops.cast(getattr(self, f"w{e}"), ms.float16))

            def construct(self, x):
                x = ops.tanh(x)
                return ops.tanh(mint.cat([self.expert(x, e) for e in self.called], 0))

        plain, shared = Shared(False), Shared(True)
        wrapped = checkpoint_wrapper(shared)
        for called in ([0, 1], [0, 1, 2], [2], [1, 0]):
            plain.called = shared.called = called
            want = steps.run(plain, tensor(5, HIDDEN), weights=[plain.w0, plain.w1, plain.w2][: max(called) + 1])
            with observe() as seen:
                got = steps.run(
                    wrapped, tensor(5, HIDDEN), weights=[shared.w0, shared.w1, shared.w2][: max(called) + 1]
                )
            assert steps.same(want, got)
            assert not held_weights(seen)

    def test_of_a_weight_given_as_an_argument(self, steps, tensor):
        weight = ms.Parameter(tensor(HIDDEN, HIDDEN, seed=5), name="w")

        def body(x, w):
            return half(x, mint.transpose(ops.cast(w, ms.float16), 1, 0))

        def block(part):
            return lambda x: ops.tanh(part(ops.tanh(x), weight))

        wrapped = checkpoint_wrapper(block(checkpoint_exclude_wrapper(body, name="gmm")))
        want = steps.run(block(body), tensor(5, HIDDEN), weights=[weight])
        for _ in range(2):
            with observe() as seen:
                got = steps.run(wrapped, tensor(5, HIDDEN), weights=[weight])
            assert steps.same(want, got)
            assert not held_weights(seen)

    def test_gathered_before_the_forward_and_transposed_in_it(self, steps, tensor):
        """As sharded weights are: whole during forward and backward, a shard in between."""
        cell = Experts(lambda cell, x: mint.matmul(x, cell.w0.T))
        full = cell.w0.asnumpy().copy()
        wrapped = checkpoint_wrapper(self.block(checkpoint_exclude_wrapper(cell, name="gmm")))

        def loss(x):
            out = wrapped(x).sum()
            cell.w0.set_data(Tensor(full[:2]), slice_shape=True)
            cell.w0.set_data(Tensor(full), slice_shape=True)
            return out

        plain = Experts(lambda cell, x: mint.matmul(x, cell.w0.T))
        want = steps.run(self.block(plain), tensor(5, HIDDEN), weights=[plain.w0])
        with observe() as seen:
            got = steps.run(loss, tensor(5, HIDDEN), weights=[cell.w0])
        assert steps.same(want, got)
        assert not held_weights(seen)

    def test_still_sharded_in_backward_is_named(self, tensor):
        cell = Experts(lambda cell, x: mint.matmul(x, cell.w0.T))
        full = cell.w0.asnumpy().copy()
        wrapped = checkpoint_wrapper(self.block(checkpoint_exclude_wrapper(cell, name="gmm")))

        def loss(x):
            out = wrapped(x).sum()
            cell.w0.set_data(Tensor(full[:2]), slice_shape=True)
            return out

        with pytest.raises(RuntimeError, match="parameter w0 has shape"):
            ms.grad(loss)(tensor(5, HIDDEN))

    def test_findings_name_them(self, steps, tensor):
        wrapped = checkpoint_wrapper(self.block(checkpoint_exclude_wrapper(Experts(linear), name="gmm")))
        steps.run(wrapped, tensor(5, HIDDEN))
        assert "made again from the parameter" in {f.how for f in findings(wrapped)}

    def test_second_order(self, tensor):
        plain, cell = Experts(BODIES["transposed"]), Experts(BODIES["transposed"])

        def twice(run):
            return ms.grad(lambda x: (ms.grad(lambda y: run(y).sum())(x) * x).sum(), 0, [])(tensor(5, HIDDEN))

        want = twice(self.block(plain))
        got = twice(checkpoint_wrapper(self.block(checkpoint_exclude_wrapper(cell, name="gmm"))))
        assert steps_equal(want, got)


def steps_equal(left, right):
    flat = [item if isinstance(item, Tensor) else item[0] for item in (left, right)]
    return flat[0].asnumpy().tobytes() == flat[1].asnumpy().tobytes()


class TestWhatIsNotACopyOfAWeight:
    @pytest.mark.parametrize(
        "body",
        [
            lambda cell, x: mint.matmul(x, cell.w0 * 2.0),
            lambda cell, x: mint.matmul(x, cell.w0 + x.sum()),
            lambda cell, x: mint.matmul(x, mint.cat((cell.w0[:4], x[:4]), 0)),
            lambda cell, x: x * ops.gather(cell.w0, ops.argmax(x, 1) % 2, 0),
        ],
        ids=["scaled", "added to", "concatenated with an activation", "rows by an activation"],
    )
    def test_gives_the_same_numbers(self, steps, tensor, body):
        plain, cell = Experts(body), Experts(body)
        wrapped = checkpoint_wrapper(lambda x: ops.tanh(checkpointed(ops.tanh(x))))
        checkpointed = checkpoint_exclude_wrapper(cell, name="gmm")
        want = steps.run(lambda x: ops.tanh(plain(ops.tanh(x))), tensor(5, HIDDEN), weights=[plain.w0])
        for _ in range(2):
            assert steps.same(want, steps.run(wrapped, tensor(5, HIDDEN), weights=[cell.w0]))

    def test_a_copy_written_in_place_is_kept_as_it_is(self, steps, tensor):
        def body(cell, x):
            weight = ops.cast(cell.w0, ms.float16).astype(ms.float32)
            weight.copy_(weight * 0.5)
            return mint.matmul(x, weight)

        plain, cell = Experts(body), Experts(body)
        part = checkpoint_exclude_wrapper(cell, name="gmm")
        wrapped = checkpoint_wrapper(lambda x: ops.tanh(part(ops.tanh(x))))
        want = steps.run(lambda x: ops.tanh(plain(ops.tanh(x))), tensor(5, HIDDEN), weights=[plain.w0])
        for _ in range(2):
            assert steps.same(want, steps.run(wrapped, tensor(5, HIDDEN), weights=[cell.w0]))


class TestTrace:
    def test_runs_on_only_where_copies_are_saved(self, steps, tensor, monkeypatch):
        started = []
        original = Trace.__enter__
        monkeypatch.setattr(Trace, "__enter__", lambda self: (started.append(1), original(self))[1])
        for body, later in ((BODIES["itself"], 0), (linear, 1)):
            part = checkpoint_exclude_wrapper(Experts(body), name="gmm")
            wrapped = checkpoint_wrapper(lambda x, part=part: ops.tanh(part(ops.tanh(x))))
            steps.run(wrapped, tensor(5, HIDDEN))
            assert len(started) == 1
            steps.run(wrapped, tensor(5, HIDDEN))
            assert len(started) == 1 + later
            started.clear()

    def test_leaves_no_mark_on_parameters(self, steps, tensor):
        cell = Experts(linear)
        part = checkpoint_exclude_wrapper(cell, name="gmm")
        steps.run(checkpoint_wrapper(lambda x: ops.tanh(part(ops.tanh(x)))), tensor(5, HIDDEN))
        assert all(p._get_user_data("hp_memory_origin") is None for p in cell.get_parameters())

    def test_two_threads_at_once(self, steps, tensor):
        """Both bodies run at the same time on the same weights."""
        inside = threading.Barrier(2, timeout=20)

        def body(cell, x):
            inside.wait()
            out = linear(cell, x)
            inside.wait()
            return out

        cell, plain, x = Experts(body), Experts(linear), tensor(5, HIDDEN)
        x.requires_grad_()
        outs: list = [None, None]

        def work(i):
            executor.set_grad_flag(True)
            part = checkpoint_exclude_wrapper(cell, name="gmm")
            outs[i] = checkpoint_wrapper(lambda x: ops.tanh(part(ops.tanh(x))))(x)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        inside.abort()
        executor.set_grad_flag(True)
        want = gradient(ops.tanh(plain(ops.tanh(x))), x)
        assert [gradient(out, x) for out in outs] == [want, want]


def gradient(out, x):
    return (
        run_backward((out,), (ops.ones_like(out),), False, False, (x,), allow_unreachable=True, accumulate_grad=False)[
            0
        ]
        .asnumpy()
        .tobytes()
    )
