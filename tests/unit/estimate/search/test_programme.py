"""The integer programme against brute force, and the timeline against a schedule worked out by hand."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hp_memory.estimate.account.liveness import Peak
from hp_memory.estimate.account.stage import Unit, moments
from hp_memory.estimate.account.terms import Term
from hp_memory.estimate.search.budget import RankProblem
from hp_memory.estimate.search.options import Option
from hp_memory.estimate.search.programme import Slot, least, peak_of, situations, solve
from hp_memory.pipeline.generate import generate

MIB = 2**20


def unit(held: int, replayed: int = 0, forward: int = 0, backward: int = 0, waiting: int = 0) -> Unit:
    peaks = (Peak(MIB * forward, "forward", "", "op", {}), Peak(MIB * backward, "backward", "", "op", {}))
    return Unit("layer", 0, MIB * held, MIB * max(held, replayed), MIB * waiting, *peaks, {})


def option(cost: float, *amounts: int) -> Option:
    return Option((), unit(*amounts), cost, 0)


def steps(schedule, rank, units):
    return {str(m.step): m.nbytes // MIB for m in moments(schedule, rank, {rank: units})}


def test_one_forward_one_backward_by_hand():
    schedule = generate("1f1b", 2, 3)
    units = [unit(10, 30, 15, 50), unit(20, 40, 25, 60)]
    found = steps(schedule, 0, units)
    # F0: the second layer's forward beside what the first holds. F1: one micro-batch (30) in flight beside it.
    assert found["F0.0"] == 10 + 25
    assert found["F1.0"] == 30 + 10 + 25
    # BW0 with micro-batch 1 in flight: the second layer's backward beside what the first still holds.
    assert found["BW0.0"] == 30 + 10 + 60
    assert found["BW2.0"] == 10 + 60


def test_a_split_backward_keeps_everything_until_dw():
    schedule = generate("zb_h1", 2, 2)
    units = [unit(10, 30, 15, 50, waiting=7)]
    rows = schedule.rows[1]
    assert [str(s) for s in rows][:3] == ["F0.1", "B0.1", "F1.1"]
    found = steps(schedule, 1, units)
    assert found["B0.1"] == 50
    # The second forward runs while the first micro-batch waits for dw: replayed tensors and gradients.
    assert found["F1.1"] == 30 + 7 + 15


def test_a_replay_ahead_of_the_gradient_stays_until_backward():
    schedule = generate("1f1b", 2, 2, prefire=True)
    found = steps(schedule, 0, [unit(10, 30, 15, 50)])
    assert found["R0.0"] == 10 + 30
    assert found["BW0.0"] == 10 + 50


amounts = st.integers(0, 50)
choices = st.lists(
    st.builds(
        lambda cost, held, more, forward, backward, waiting: option(
            float(cost), held, held + more, held + forward, held + more + backward, waiting
        ),
        st.integers(0, 20), amounts, amounts, amounts, amounts, st.integers(0, 9),
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip
schedules = st.sampled_from(
    [
        generate("1f1b", 2, 4),
        generate("gpipe", 2, 3),
        generate("zb_h1", 2, 4),
        generate("1f1b", 2, 4, prefire=True),
        generate("interleaved_1f1b", 2, 4, interleave=2),
        generate("zb_v", 2, 4),
    ]
)


@given(schedules, st.lists(choices, min_size=1, max_size=3), st.integers(0, 400), st.booleans())
@settings(max_examples=40)
def test_the_programme_finds_what_brute_force_finds(schedule, layers, budget, together):
    rank = 0
    own = schedule.chunks_of(rank)
    group = "all" if together else None
    if together:
        layers = [layers[0]] * len(layers)
    slots = [Slot(c, i, options, group) for c in own for i, options in enumerate(layers)]
    where = situations(schedule, rank)
    combos = itertools.product(*(s.options for s in slots))
    if together:
        combos = ((o,) * len(slots) for o in layers[0])
    fitting, peaks = [], []
    for combo in combos:
        units = {c: [o.unit for o, s in zip(combo, slots, strict=True) if s.chunk == c] for c in own}
        timeline = max(m.nbytes for m in moments(schedule, rank, units))
        assert timeline == peak_of(slots, [o.unit for o in combo], where)
        peaks.append(timeline)
        if timeline <= budget * MIB:
            fitting.append(sum(o.cost for o in combo))
    found = solve(slots, where, budget * MIB)
    if not fitting:
        assert found is None
    else:
        assert found.cost == pytest.approx(min(fitting))
        assert peak_of(slots, [o.unit for o in found.options], where) <= budget * MIB
    if not together:
        assert least(slots, where) == pytest.approx(min(peaks), abs=MIB // 100 + 1)


def test_situations_leave_out_what_another_one_covers():
    found = situations(generate("1f1b", 4, 8), 0)
    assert sorted((s.op, s.others) for s in found) == [("BW", ((0, "F", 3),)), ("F", ((0, "F", 3),))]


@given(st.integers(0, 2**36), st.sampled_from([0.0, 0.05, 0.1, 0.33]))
def test_a_plan_fits_the_budget_that_it_needs(activations, fragmentation):
    static = (Term("parameters", 1000, "MODELLED", ""),)
    problem = RankProblem(0, (), (), static, 0)
    needed = 1000 + activations + int(fragmentation * activations)
    assert problem.room(needed, fragmentation) == activations
    assert activations == 0 or problem.room(needed - 1, fragmentation) < activations
