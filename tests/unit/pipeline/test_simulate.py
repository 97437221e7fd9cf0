"""Bubble and peaks against the published formulas, each in its own convention."""

from __future__ import annotations

import pytest

from hp_memory.errors import ScheduleError
from hp_memory.pipeline.formulas import published
from hp_memory.pipeline.generate import generate
from hp_memory.pipeline.schedule import Schedule, Step
from hp_memory.pipeline.simulate import Costs, Held, levels, peak_held_for_dw, peak_in_flight, run

SIZES = [
    (name, p, m, v)
    for p in (2, 3, 4, 8)
    for m in (2, 4, 8, 16, 24)
    for name, v in (
        ("gpipe", 1),
        ("1f1b", 1),
        ("interleaved_1f1b", 2),
        ("interleaved_1f1b", 3),
        ("zb_h1", 1),
        ("zb_v", 1),
    )
]


def holds(name, p, m):
    """Where the papers' formulas apply: enough micro-batches to fill the pattern."""
    return {"interleaved_1f1b": m % p == 0, "zb_h1": m >= p, "zb_v": m >= 2 * p - 1}.get(name, True)


def idle(name, p, m, v, costs):
    parts = {"interleaved_1f1b": v, "zb_v": 2}.get(name, 1)
    per_chunk = Costs(costs.forward / parts, costs.dx / parts, costs.dw / parts)
    timeline = run(generate(name, p, m, interleave=v), per_chunk)
    view = published(name, p, m, costs, v).view
    return max(timeline.idle(r) if view == "iteration" else timeline.own_idle(r) for r in range(p))


@pytest.mark.parametrize(("name", "p", "m", "v"), [s for s in SIZES if holds(*s[:3])])
def test_bubble_and_peak_are_the_published_ones(name, p, m, v):
    claim = published(name, p, m, Costs(), v)
    assert idle(name, p, m, v, Costs()) == pytest.approx(claim.bubble)
    schedule = generate(name, p, m, interleave=v)
    assert tuple(peak_in_flight(schedule, r) for r in range(p)) == claim.in_flight


@pytest.mark.parametrize("costs", [Costs(2, 2, 1), Costs(3, 4, 2), Costs(1, 1.5, 1)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb_h1"])
def test_formulas_hold_for_unequal_costs_too(name, costs):
    assert idle(name, 4, 12, 1, costs) == pytest.approx(published(name, 4, 12, costs).bubble)


def test_bubble_as_share_of_work_and_of_total():
    timeline = run(generate("1f1b", 4, 8))
    assert timeline.bubble_of_work == pytest.approx(3 / 8)
    assert timeline.bubble_of_total == pytest.approx(3 / 11)


def test_zero_bubble_loses_a_third_of_1f1b_in_the_papers_table():
    assert run(generate("zb_h1", 4, 8)).bubble_of_work == pytest.approx(3 / 24)


def test_split_1f1b_alone_does_not_fill_the_bubble_but_shortens_it():
    whole, halves = run(generate("1f1b", 4, 8)), run(generate("1f1b", 4, 8, split=True))
    assert run(generate("zb_h1", 4, 8)).makespan < halves.makespan < whole.makespan


def test_fewer_micro_batches_than_the_v_needs_leave_a_bubble():
    assert idle("zb_v", 4, 6, 1, Costs()) > 0


def test_transfers_delay_only_the_other_rank():
    still, slow = run(generate("1f1b", 2, 1)), run(generate("1f1b", 2, 1), Costs(transfer=0.5))
    assert slow.makespan == still.makespan + 1.0


def test_levels_add_up_the_parts_of_each_micro_batch():
    schedule = generate("zb_h1", 2, 2, prefire=True)
    assert levels(schedule, 1, lambda *_: Held(1, 10, 4)) == (1, 10, 4, 5, 14, 8, 4, 0)
    assert peak_held_for_dw(schedule, 1) == 2
    assert peak_held_for_dw(schedule, 0) == 1


def test_a_deadlock_says_who_waits_for_whom():
    rows = ((Step("F", 0, 0), Step("BW", 0, 0)), (Step("BW", 1, 0), Step("F", 1, 0)))
    with pytest.raises(
        ScheduleError, match=r"rank 0 at BW0\.0 waits for BW0\.1 of rank 1; rank 1 at BW0\.1 waits for F0\.1"
    ):
        run(Schedule("twisted", 1, (0, 1), rows))
