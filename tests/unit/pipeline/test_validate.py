"""Broken schedules, each with the reason they must be refused for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hp_memory.errors import ScheduleError
from hp_memory.pipeline import validate as validate_module
from hp_memory.pipeline.generate import generate
from hp_memory.pipeline.messages import RECEIVES, add_messages, message_after, message_before
from hp_memory.pipeline.schedule import Schedule, Step
from hp_memory.pipeline.validate import _check_message_order, validate


def edit(schedule, rank, change):
    rows = [list(row) for row in schedule.rows]
    change(rows[rank])
    return schedule.with_rows(rows)


def test_a_dropped_dw_is_named():
    broken = edit(generate("zb_h1", 2, 3), 1, lambda row: row.remove(Step("W", 1, 2)))
    with pytest.raises(ScheduleError, match="micro-batch 2 of chunk 1 on rank 1 has no W: its dw would be lost"):
        validate(broken)


def test_a_dropped_forward_is_named():
    with pytest.raises(ScheduleError, match="has no F"):
        validate(edit(generate("1f1b", 2, 2), 0, lambda row: row.remove(Step("F", 0, 1))))


def test_dw_before_dx_is_refused():
    with pytest.raises(ScheduleError, match="runs F W B; the order must be F B W"):
        validate(edit(generate("1f1b", 2, 1, split=True), 1, lambda row: row.reverse() or row.insert(0, row.pop())))


def test_a_whole_and_a_half_backward_are_refused():
    with pytest.raises(ScheduleError, match="whole backward"):
        validate(edit(generate("gpipe", 2, 1), 0, lambda row: row.append(Step("W", 0, 0))))


def test_a_step_that_runs_twice_is_refused():
    with pytest.raises(ScheduleError, match="runs F more than once"):
        validate(edit(generate("gpipe", 2, 1), 0, lambda row: row.insert(0, row[0])))


def test_a_step_of_another_ranks_chunk_is_refused():
    with pytest.raises(ScheduleError, match="doesn't own the chunk"):
        validate(edit(generate("gpipe", 2, 1), 0, lambda row: row.append(Step("F", 1, 0))))


def test_a_micro_batch_that_does_not_exist_is_refused():
    with pytest.raises(ScheduleError, match=r"outside 0\.\.0"):
        validate(edit(generate("gpipe", 2, 1), 0, lambda row: row.append(Step("F", 0, 1))))


def test_more_in_flight_than_allowed_is_refused():
    validate(generate("1f1b", 4, 8), in_flight_limit=4)
    with pytest.raises(ScheduleError, match="rank 0 holds 8 chunk forwards at once, the limit is 4"):
        validate(generate("gpipe", 4, 8), in_flight_limit=4)


def test_computing_before_receiving_is_refused():
    with pytest.raises(ScheduleError, match=r"runs F0\.1 before it received RF0\.1@0"):
        validate(edit(add_messages(generate("1f1b", 2, 1)), 1, lambda row: row.insert(0, row.pop(1))))


def test_sending_before_computing_is_refused():
    with pytest.raises(ScheduleError, match=r"sends SF0\.1@1 before it computed it"):
        validate(edit(add_messages(generate("1f1b", 2, 1)), 0, lambda row: row.insert(0, row.pop(1))))


@given(st.data())
def test_a_schedule_with_one_compute_step_less_is_never_accepted(data):
    name = data.draw(st.sampled_from(["gpipe", "1f1b", "zb_h1", "zb_v"]))
    schedule = generate(name, data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6)))
    rank = data.draw(st.integers(0, schedule.ranks - 1))
    at = data.draw(st.integers(0, len(schedule.rows[rank]) - 1))
    with pytest.raises(ScheduleError):
        validate(edit(schedule, rank, lambda row: row.pop(at)))


def disorder_by_definition(schedule: Schedule) -> str | None:
    """A step is in order if a step *before it in its row* receives what it needs, or computed what it sends."""
    for rank, row in enumerate(schedule.rows):
        for at, step in enumerate(row):
            wanted = message_before(step, schedule.placement)
            if wanted is not None and wanted not in row[:at]:
                return f"{schedule.name}: rank {rank} runs {step} before it received {wanted}"
            if step.op in RECEIVES and all(message_after(s, schedule.placement) != step for s in row[:at]):
                return f"{schedule.name}: rank {rank} sends {step} before it computed it"
    return None


@given(st.data())
def test_the_order_of_messages_is_judged_as_its_definition_judges_it(data):
    name = data.draw(st.sampled_from(["gpipe", "1f1b", "zb_h1", "zb_v"]))
    schedule = add_messages(generate(name, data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))))
    rows = [list(row) for row in schedule.rows]
    for _ in range(data.draw(st.integers(0, 3))):
        row = rows[data.draw(st.integers(0, len(rows) - 1))]
        step = row.pop(data.draw(st.integers(0, len(row) - 1)))
        if data.draw(st.booleans()):
            row.insert(data.draw(st.integers(0, len(row))), step)
        if not row:
            row.append(step)
    schedule = schedule.with_rows(rows)
    found = None
    try:
        _check_message_order(schedule)
    except ScheduleError as error:
        found = str(error)
    assert found == disorder_by_definition(schedule)


def test_what_a_step_sends_is_asked_once_per_step(monkeypatch):
    """Not once per pair of steps: a long schedule took seconds."""
    asked = []
    monkeypatch.setattr(validate_module, "message_after", lambda s, p: asked.append(s) or message_after(s, p))
    schedule = add_messages(generate("gpipe", 2, 100))
    _check_message_order(schedule)
    assert len(asked) <= sum(len(row) for row in schedule.rows)
