"""The integer programme against brute force, and the timeline against a schedule worked out by hand."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hp_memory.estimate.account.liveness import Peak
from hp_memory.estimate.account.stage import Unit, moments
from hp_memory.estimate.account.terms import Term
from hp_memory.estimate.search.budget import RankProblem
from hp_memory.estimate.search.options import AMOUNTS, Ways, ways
from hp_memory.estimate.search.programme import Programme, Slot, SolverGaveUp, situations
from hp_memory.estimate.tracing.record import BARE
from hp_memory.pipeline.generate import generate
from tests.unit.estimate.programs import A, B, C, traces_with_backward

MIB = 2**20


def unit(held: int, replayed: int = 0, forward: int = 0, backward: int = 0, waiting: int = 0) -> Unit:
    peaks = (Peak(MIB * forward, "forward", "", "op", {}), Peak(MIB * backward, "backward", "", "op", {}))
    return Unit("layer", 0, MIB * held, MIB * max(held, replayed), MIB * waiting, *peaks, {})


def made_of(options: list[tuple[float, Unit]]) -> Ways:
    amounts = {name: np.array([getattr(u, name) for _, u in options]) for name in AMOUNTS}
    return Ways(((),) * len(options), np.array([cost for cost, _ in options]), amounts)


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
        lambda cost, held, more, forward, backward, waiting: (
            float(cost), unit(held, held + more, held + forward, held + more + backward, waiting)
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


def every_plan(schedule, slots, options, budget, together):
    """Peak and cost of every combination, by the timeline."""
    own = schedule.chunks_of(0)
    combos = ((o,) * len(slots) for o in options[0]) if together else itertools.product(*options)
    for combo in combos:
        units = {c: [u for (_, u), s in zip(combo, slots, strict=True) if s.chunk == c] for c in own}
        yield max(m.nbytes for m in moments(schedule, 0, units)), sum(cost for cost, _ in combo)


@given(schedules, st.lists(choices, min_size=1, max_size=3), st.integers(0, 400), st.booleans())
@settings(max_examples=40)
def test_the_programme_finds_what_brute_force_finds(schedule, layers, budget, together):
    own = schedule.chunks_of(0)
    layers = [layers[0]] * len(layers) if together else layers
    slots = [Slot(c, i, made_of(o), "all" if together else None) for c in own for i, o in enumerate(layers)]
    options = [o for _ in own for o in layers]
    programme = Programme(slots, situations(schedule, 0))
    every = list(every_plan(schedule, slots, options, budget, together))
    fits = [cost for peak, cost in every if peak <= budget * MIB]
    found = programme.solve(budget * MIB, seconds=60)
    if not fits:
        assert found is None
    else:
        assert found.gap == 0
        assert found.cost == pytest.approx(min(fits))
        assert found.bound <= min(fits) * (1 + 1e-6)
        assert programme.peak(found.picks) <= budget * MIB
    assert programme.least(60) == pytest.approx(min(peak for peak, _ in every), abs=MIB // 100 + 1)


@given(schedules, st.lists(choices, min_size=1, max_size=3), st.data())
@settings(max_examples=30)
def test_the_programme_and_the_timeline_see_the_same_peak(schedule, layers, data):
    own = schedule.chunks_of(0)
    slots = [Slot(c, i, made_of(o)) for c in own for i, o in enumerate(layers)]
    picks = [data.draw(st.integers(0, len(slot.ways) - 1)) for slot in slots]
    units = {c: [layers[s.layer][p][1] for s, p in zip(slots, picks, strict=True) if s.chunk == c] for c in own}
    timeline = max(m.nbytes for m in moments(schedule, 0, units))
    assert Programme(slots, situations(schedule, 0)).peak(picks) == timeline


def many(layers=24, seed=0):
    """A rank as hard as real ones: alike layers with hundreds of ways, none better than another."""
    rng = np.random.default_rng(seed)
    held, cost = np.sort(rng.integers(1, 2**34, 400)), np.sort(rng.random(400))[::-1]
    forward = held + rng.integers(0, 2**32, 400)
    amounts = {name: np.zeros(400, np.int64) for name in AMOUNTS} | {"held": held, "working_forward": forward}
    amounts |= {"replayed": held, "working_backward": forward + 2**30}
    slots = [Slot(0, i, Ways(((),) * 400, cost, amounts)) for i in range(layers)]
    return Programme(slots, situations(generate("1f1b", 4, 16), 0))


def test_a_rank_that_takes_too_long_gives_its_best_plan_and_an_honest_gap():
    programme = many()
    room = int(programme.least(10) * 3)
    quick = programme.solve(room, seconds=0.5)
    assert quick.bound <= quick.cost
    assert programme.peak(quick.picks) <= room * (1 + 1e-6)
    # The bound holds for whatever a longer run finds.
    assert programme.solve(room, seconds=2, gap=0.01).cost >= quick.bound


def test_no_time_is_no_proof_that_nothing_fits(monkeypatch):
    programme = many(layers=2)
    gave_up = SimpleNamespace(status=1, x=None, mip_dual_bound=None, message="time limit")
    monkeypatch.setattr(Programme, "_integer", lambda *_: gave_up)
    monkeypatch.setattr(Programme, "_greedy", lambda *_: None)
    with pytest.raises(SolverGaveUp, match="no plan within 0 s: time limit"):
        programme.solve(2**40, seconds=0)


@given(traces_with_backward(), traces_with_backward(), schedules, st.integers(0, 30))
@settings(max_examples=30, deadline=None)
def test_dropping_ways_loses_no_optimum(first, second, schedule, budget):
    """Over all ways of all regions, by brute force."""
    costs = {A: 3.0, B: 5.0, C: 9.0, BARE: 1.0}
    own, found = schedule.chunks_of(0), {}
    for prune in (True, False):
        tables = [ways(trace, costs, prune) for trace in (first, second)]
        slots = [Slot(c, i, table) for c in own for i, table in enumerate(tables)][:3]
        programme = Programme(slots, situations(schedule, 0))
        combos = itertools.product(*(range(len(slot.ways)) for slot in slots))
        room = budget * 2000
        found[prune] = min((programme.cost(c) for c in combos if programme.peak(c) <= room), default=None)
    assert found[True] == found[False]


def test_situations_leave_out_what_another_one_covers():
    found = situations(generate("1f1b", 4, 8), 0)
    assert sorted((s.op, s.others) for s in found) == [("BW", ((0, "F", 3),)), ("F", ((0, "F", 3),))]


@given(st.integers(0, 2**36), st.sampled_from([0.0, 0.05, 0.1, 0.33]))
def test_a_plan_fits_the_budget_that_it_needs(activations, fragmentation):
    static = (Term("parameters", 1000, "MODELLED", ""),)
    problem = RankProblem(0, many(layers=1), static, 0)
    needed = 1000 + activations + int(fragmentation * activations)
    assert problem.room(needed, fragmentation) == activations
    assert activations == 0 or problem.room(needed - 1, fragmentation) < activations
