"""What moves and when, with a transport that completes its copies as the test says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("mindspore")

from mindspore import Parameter, Tensor, mint

from hp_memory.host.window import Window
from tests.unit.host.by_hand import ByHand


@pytest.fixture(autouse=True)
def _quiet(mindspore):
    """Every test here needs the session's MindSpore."""


@pytest.fixture
def transport():
    return ByHand()


@pytest.fixture
def window(transport):
    return Window(transport, memory=1 << 20, min_bytes=16, prefetch=1, pending=100)


def values(*shape, seed=0):
    return Tensor(np.random.RandomState(seed).randn(*shape).astype(np.float32))


def left(window, *tensors):
    """Tickets of one region whose forward has run."""
    tickets = [window.offer(t) for t in tensors]
    window.launch(tickets)
    return tickets


def test_what_is_copied_out_leaves_the_device_and_comes_back_the_same(window, transport):
    x = values(8, 4)
    (ticket,) = left(window, x)
    assert ticket.on_device
    transport.finish_out()
    window.settle()
    assert not ticket.on_device
    assert np.array_equal(ticket.read(keep=False).asnumpy(), x.asnumpy())
    assert transport.log == ["out", "in"]
    assert not ticket.on_device  # its only reader has read it
    assert window.moves.returned_bytes == window.moves.moved_bytes == 128
    del ticket
    transport.outs.clear(), transport.ins.clear()
    assert window.pool.used == 0


def test_what_is_wanted_before_it_has_left_stays(window, transport):
    x = values(8, 4)
    (ticket,) = left(window, x)
    assert np.array_equal(ticket.read(keep=False).asnumpy(), x.asnumpy())
    assert window.moves.recalled == 1
    assert transport.outs[0].cancelled
    window.settle()
    assert ticket.on_device
    assert np.array_equal(ticket.read(keep=False).asnumpy(), x.asnumpy())
    assert not transport.ins


def test_the_regions_before_the_one_that_is_read_start_to_come_back(window, transport):
    groups = [left(window, values(4, 4, seed=i), values(2, 4, seed=9 + i)) for i in range(4)]
    transport.finish_out()
    window.settle()
    groups[3][0].read(keep=False)
    assert [t.on_device for group in groups for t in group] == [False] * 4 + [True, True] + [False] * 2
    groups[3][1].read(keep=False)
    groups[2][0].read(keep=False)
    assert groups[1][0].on_device
    assert not groups[0][0].on_device


def test_forwards_in_flight_come_back_by_themselves(window, transport):
    tickets = {}
    for micro in range(3):
        with window.stretch(micro):
            tickets[micro] = [left(window, values(4, 4, seed=10 * micro + i))[0] for i in range(2)]
    transport.finish_out()
    window.settle()
    window.ahead(0)
    assert [t.on_device for t in tickets[0]] == [False, True]
    tickets[0][1].read(keep=False)
    assert tickets[0][0].on_device
    assert not any(t.on_device for micro in (1, 2) for t in tickets[micro])


def test_a_forward_waits_for_copies_when_too_many_are_under_way(transport):
    window = Window(transport, 1 << 20, 16, prefetch=1, pending=2)
    tickets = [left(window, values(4, 4, seed=i))[0] for i in range(5)]
    assert [t.on_device for t in tickets] == [False, False, False, True, True]


def test_a_tensor_with_two_readers_moves_once(window, transport):
    import mindspore as ms

    w = Parameter(values(4, 4))

    def forward(x):
        y = w * x
        tickets = [window.offer(y), window.offer(y), window.offer(y.data)]
        assert tickets[0] is tickets[1]
        assert tickets[2] is not tickets[0]  # without a graph nobody knows whether it was written since
        window.launch(tickets)
        y[0] = 1.0
        assert window.offer(y) is not tickets[0]
        return y.sum()

    ms.value_and_grad(forward, None, [w])(values(4, 4))
    assert len(transport.outs) == 2
    assert window.moves.shared == 1


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (lambda: Parameter(values(8, 8)), "a parameter"),
        (lambda: Tensor(np.arange(64, dtype=np.int32)), "not floating point"),
        (lambda: values(1, 2), "smaller than host.min_bytes"),
        (lambda: values(1024, 1024), "the host's memory is used up"),
    ],
)
def test_what_stays_is_counted_with_its_reason(window, tensor, reason):
    kept = [tensor() for _ in range(2)]
    assert [window.offer(t) for t in kept][-1] is None
    assert window.moves.kept[reason] >= 1
    assert reason in window.moves.in_words()


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x.transpose(1, 0),
        lambda x: x.reshape(2, 4, 6).transpose(2, 0, 1),
        lambda x: x[:, 2:5],
        lambda x: x[3:],
        lambda x: x.reshape(-1)[5:29],
        lambda x: mint.chunk(x, 2, dim=1)[1],
    ],
)
def test_a_view_comes_back_with_its_values_and_without_its_neighbours(window, transport, view):
    x = view(values(8, 6))
    expected, stride = x.asnumpy().copy(), x.stride()
    dense = x.size == 48
    (ticket,) = left(window, x)
    assert transport.outs[0].buffer.nbytes == expected.nbytes
    transport.finish_out()
    window.settle()
    back = ticket.read(keep=False)
    assert np.array_equal(back.asnumpy(), expected)
    if dense:
        assert back.stride() == stride


def test_bfloat16_comes_back_bit_by_bit(window, transport):
    import mindspore as ms

    x = values(8, 8).astype(ms.bfloat16)
    (ticket,) = left(window, x)
    transport.finish_out()
    window.settle()
    back = ticket.read(keep=False)
    assert back.dtype == ms.bfloat16
    assert back.asnumpy().tobytes() == x.asnumpy().tobytes()


def test_a_forward_without_backward_leaves_nothing(window, transport):
    tickets = left(window, values(8, 8), values(4, 8))
    tickets.clear()
    assert all(out.cancelled for out in transport.outs)
    window.settle()
    transport.outs.clear()
    left(window, values(2, 4))
    transport.finish_out()
    transport.outs.clear()
    window.settle()
    assert window.pool.used == 0


ACTIONS = st.lists(st.tuples(st.sampled_from(["out", "in", "read", "again", "ahead"]), st.integers(0, 11)), max_size=60)


@settings(max_examples=80, deadline=None)
@given(groups=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3)), min_size=1, max_size=5), actions=ACTIONS,
       prefetch=st.integers(0, 3), pending=st.integers(1, 4))  # fmt: skip
def test_every_order_of_completion_gives_the_same_values(groups, actions, prefetch, pending):
    transport = ByHand()
    window = Window(transport, 1 << 20, 1, prefetch, pending)
    tickets, expected = [], []
    for number, (key, count) in enumerate(groups):
        tensors = [values(3, 5, seed=10 * number + i) for i in range(count)]
        with window.stretch(key):
            tickets += left(window, *tensors)
        expected += [t.asnumpy().copy() for t in tensors]
        del tensors
    for action, which in actions:
        at = which % len(tickets)
        if action == "out":
            transport.outs[which % len(transport.outs)].finish()
        elif action == "in":
            transport.finish_in(which)
        elif action == "ahead":
            window.ahead(which % 3)
        elif action in ("read", "again"):
            assert np.array_equal(tickets[at].read(keep=action == "again").asnumpy(), expected[at])
    for ticket, want in zip(tickets, expected, strict=True):
        assert np.array_equal(ticket.read(keep=False).asnumpy(), want)
    del ticket
    tickets.clear(), transport.ins.clear(), transport.outs.clear()
    window.settle()
    assert window.pool.used == 0
