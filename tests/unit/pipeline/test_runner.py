"""The runner on a small dense model: every schedule gives the bits of one stage, and what goes wrong is named."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hp_memory.errors import ScheduleError, SessionError
from hp_memory.pipeline.generate import generate
from hp_memory.pipeline.messages import add_messages
from hp_memory.pipeline.schedule import Step
from hp_memory.pipeline.simulate import peak_in_flight

pytestmark = pytest.mark.usefixtures("mindspore")
MICROS, WIDTH = 4, 4


def make_chunks(count, rule="share", layers=4, rows=3):
    """``layers`` checkpointed layers in ``count`` chunks, with a skip tensor that travels beside the activation."""
    from mindspore import Parameter, Tensor, mint, nn, ops

    from hp_memory.activation import checkpoint_wrapper
    from hp_memory.pipeline.chunk import Chunk

    class Layer(nn.Cell):
        def __init__(self, i):
            super().__init__()
            draw = np.random.default_rng(i)
            self.w = Parameter(Tensor(draw.standard_normal((WIDTH, WIDTH)).astype(np.float32)), name=f"w{i}")

        def construct(self, x):
            return ops.tanh(mint.matmul(x, self.w))

    class Part(nn.Cell):
        def __init__(self, ids):
            super().__init__(auto_prefix=False)
            self.first, self.last = 0 in ids, layers - 1 in ids
            self.blocks = nn.CellList([Layer(i) for i in ids], auto_prefix=False)
            self.calls = [checkpoint_wrapper(c, name=f"layers.{i}") for i, c in zip(ids, self.blocks, strict=True)]

        def construct(self, *args):
            x, skip = (args[0], args[0] * 0.5) if self.first else args[:2]
            for call in self.calls:
                x, skip = call(x), skip * 1.5
            return ((x + skip - args[-1]) ** 2).mean() if self.last else (x, skip)

    each = layers // count
    return [Chunk(c, Part(list(range(c * each, (c + 1) * each))), rule) for c in range(count)]


def feed_for(chunks):
    from mindspore import Tensor

    draw = np.random.default_rng(9)
    data = draw.standard_normal((2, MICROS, 3, WIDTH)).astype(np.float32)

    def feed(chunk, micro):
        first = (Tensor(data[0, micro]),) if chunk == 0 else ()
        return (*first, Tensor(data[1, micro])) if chunk == chunks - 1 else first

    return feed


def run(schedule, rule="share", **options):
    from hp_memory.pipeline.runner import run_local

    chunks = make_chunks(schedule.chunks, rule)
    losses = run_local(schedule, chunks, feed_for(schedule.chunks), **options)
    return losses, {w.name: g.asnumpy() for c in chunks for w, g in zip(c.weights, c.grads, strict=True)}, chunks


def schedule_of(name, ranks=2, **options):
    return add_messages(generate(name, ranks, MICROS, **options))


@pytest.fixture(scope="module")
def expected(mindspore):
    return run(schedule_of("gpipe", 1))[:2]


@pytest.mark.parametrize(
    ("name", "ranks", "options"),
    [
        ("gpipe", 2, {}),
        ("1f1b", 4, {}),
        ("1f1b", 2, {"split": True, "prefire": True}),
        ("interleaved_1f1b", 2, {"interleave": 2}),
        ("zb_h1", 4, {"prefire": True}),
        ("zb_v", 2, {}),
    ],
)
def test_two_tensors_per_border_give_the_bits_of_one_stage(name, ranks, options, expected):
    losses, grads, chunks = run(schedule_of(name, ranks, **options))
    assert losses == expected[0]
    assert all(np.array_equal(grads[k], expected[1][k]) for k in expected[1])
    assert all(not chunk.in_flight for chunk in chunks)


@settings(max_examples=settings().max_examples // 16)
@given(st.data())
def test_any_schedule_and_session_rule_gives_the_bits_of_one_stage(expected, data):
    name = data.draw(st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"]))
    split = name.startswith("zb") or data.draw(st.booleans())
    prefire = data.draw(st.booleans())
    rule = data.draw(st.sampled_from(["share", "keep"] + ["release"] * (not split) + ["none"] * (not prefire)))
    ranks = 2 if name in ("interleaved_1f1b", "zb_v") else data.draw(st.sampled_from([1, 2, 4]))
    interleave = 2 if name == "interleaved_1f1b" else 1
    schedule = schedule_of(name, ranks, interleave=interleave, split=split, prefire=prefire)
    losses, grads, _ = run(schedule, rule)
    assert losses == expected[0]
    assert all(np.array_equal(grads[k], expected[1][k]) for k in expected[1])


def test_backward_on_a_thread_of_its_own_gives_the_same_bits(expected):
    with ThreadPoolExecutor(1) as thread:
        losses, grads, _ = run(schedule_of("zb_h1", 2, prefire=True), backward_thread=thread)
    assert losses == expected[0]
    assert all(np.array_equal(grads[k], expected[1][k]) for k in expected[1])


def test_as_many_micro_batches_fly_as_the_schedule_says():
    schedule, most = schedule_of("1f1b", 4), {}
    chunks = make_chunks(4)

    def after(rank, step):
        most[rank] = max(most.get(rank, 0), len(chunks[rank].in_flight))

    from hp_memory.pipeline.runner import run_local

    run_local(schedule, chunks, feed_for(4), after=after)
    assert most == {rank: peak_in_flight(schedule, rank) for rank in range(4)}


def test_control_a_scaled_gradient_is_seen(expected):
    schedule, chunks = schedule_of("1f1b"), make_chunks(2)
    backward = chunks[1].whole
    chunks[1].whole = lambda micro, grads: backward(micro, tuple(g * (1.001 if micro == 2 else 1) for g in grads))
    from hp_memory.pipeline.runner import run_local

    run_local(schedule, chunks, feed_for(2))
    assert not np.array_equal(chunks[0].grads[0].asnumpy(), expected[1]["w0"])


def drop(schedule, *steps):
    return schedule.with_rows([s for s in row if s not in steps] for row in schedule.rows)


def test_control_a_dropped_dw_is_seen():
    with pytest.raises(SessionError, match="left open, their dw never ran: micro-batch 3 of chunk 1"):
        run(drop(schedule_of("zb_h1"), Step("W", 1, 3)))


def test_a_dropped_receive_is_a_key_that_never_came():
    with pytest.raises((ScheduleError, KeyError, TypeError)):
        run(drop(schedule_of("1f1b"), Step("RB", 0, 3, 1)))
    close_everything()


def test_dw_of_a_micro_batch_that_is_not_in_flight_is_named():
    with pytest.raises(SessionError, match=r"W of micro-batch 0 on chunk 1: no forward of it is in flight"):
        run(schedule_of("zb_h1").with_rows([schedule_of("zb_h1").rows[0], (Step("W", 1, 0),)]))
    close_everything()


def test_a_missing_message_is_a_deadlock_with_names():
    schedule = schedule_of("1f1b")
    rows = (tuple(s for s in schedule.rows[0] if s.op != "SF"), schedule.rows[1])
    with pytest.raises(ScheduleError, match=r"deadlock: rank 0 at RB0\.0@1, rank 1 at RF0\.1@0"):
        run(schedule.with_rows(rows))
    close_everything()


def close_everything():
    from hp_memory.pipeline.session import check_all_closed

    with pytest.raises(SessionError):
        check_all_closed()
