"""Copies to the host and back over a step, worked out by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hp_memory.estimate.times.host import Moving, copies_of
from hp_memory.estimate.times.layer import LayerTime, Work
from hp_memory.pipeline.schedule import Step
from hp_memory.pipeline.simulate import Span


def layer(nbytes, forward=1.0, dx=1.0, dw=1.0, replay=0.0):
    return Moving(nbytes, LayerTime(Work(forward), Work(dx), Work(dw), Work(replay)))


def row(*ops, chunk=0):
    """Steps without gaps or waits: their starts don't matter then."""
    return [Span(0, Step(op, chunk, micro), 0.0, 0.0) for op, micro in ops]


def lanes(found, lane):
    return [(copy.begin, copy.end) for copy in found.copies if copy.lane == lane]


def test_one_micro_batch_keeps_its_last_layer_and_brings_the_others_back_in_time():
    found = copies_of(row(("F", 0), ("BW", 0)), {0: [layer(10), layer(10), layer(10)]}, bandwidth=10.0)
    assert lanes(found, "out") == [(1, 2), (2, 3)]
    # The last layer's backward runs from 3 to 5, and the next one's tensors come back meanwhile.
    assert lanes(found, "in") == [(3, 4), (5, 6)]
    assert found.waits == 0
    assert (found.moved, found.peak) == (20, 20)
    assert found.levels[-1][1] == 0


def test_a_slow_link_makes_both_passes_wait():
    found = copies_of(row(("F", 0), ("BW", 0)), {0: [layer(10), layer(10), layer(10)]}, bandwidth=2.5)
    # Out: 1-5, and the second layer (done at 2) waits until 5 before it leaves: 5-9. The third, done at 6, waits to 9.
    assert lanes(found, "out") == [(1, 5), (5, 9)]
    assert lanes(found, "in") == [(9, 13), (13, 17)]
    assert found.waits == pytest.approx(3 + 3 + 2 + 2)


def test_micro_batches_in_flight_come_back_one_step_early():
    steps = row(("F", 0), ("F", 1), ("BW", 0), ("BW", 1))
    found = copies_of(steps, {0: [layer(10)]}, bandwidth=10.0)
    assert lanes(found, "out") == [(1, 2), (2, 3)]
    # Asked for when F1 begins, at 1: but it must have left before. The second one when the backward before it begins.
    assert lanes(found, "in") == [(2, 3), (3, 4)]
    assert found.waits == pytest.approx(1.0)
    assert found.peak == 20


def test_a_bubble_takes_up_a_wait():
    spans = [
        Span(0, Step("F", 0, 0), 0.0, 1.0),
        Span(0, Step("F", 0, 1), 1.0, 2.0),
        Span(0, Step("BW", 0, 0), 10.0, 12.0),
        Span(0, Step("BW", 0, 1), 12.0, 14.0),
    ]
    assert copies_of(spans, {0: [layer(10)]}, bandwidth=5.0).waits == 0


def test_a_split_backward_frees_the_host_after_dw():
    found = copies_of(row(("F", 0), ("F", 1), ("B", 0), ("B", 1), ("W", 0), ("W", 1)), {0: [layer(4)]}, 4.0)
    assert [nbytes for _, nbytes in found.levels] == [4, 8, 4, 0]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=4), st.integers(1, 4), st.floats(0.5, 100))
def test_copies_keep_their_lane_and_come_back_after_they_left(sizes, micros, bandwidth):
    steps = row(*(("F", m) for m in range(micros)), *(("BW", m) for m in range(micros)))
    found = copies_of(steps, {0: [layer(n) for n in sizes]}, bandwidth)
    for lane in ("out", "in"):
        shown = lanes(found, lane)
        assert all(a[1] <= b[0] + 1e-9 for a, b in itertools.pairwise(shown))
    assert sum(c.nbytes for c in found.copies if c.lane == "in") == found.moved
    assert found.levels[-1][1] == 0 if found.moved else not found.levels
    assert found.waits >= 0
