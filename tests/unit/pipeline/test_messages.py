"""Sends and receives: one order per channel, no deadlock with buffered sends, and what a rendezvous would do."""

from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hp_memory.errors import ScheduleError
from hp_memory.pipeline.generate import generate
from hp_memory.pipeline.messages import RECEIVES, add_messages, check_messages
from hp_memory.pipeline.schedule import Step
from hp_memory.pipeline.validate import validate


def any_schedule(data):
    name = data.draw(st.sampled_from(["gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v"]))
    ranks = data.draw(st.integers(1, 6))
    micros = data.draw(st.integers(1, 4)) * (ranks if name == "interleaved_1f1b" else 1)
    split = name.startswith("zb") or data.draw(st.booleans())
    interleave = data.draw(st.integers(2, 3)) if name == "interleaved_1f1b" else 1
    return generate(name, ranks, micros, interleave=interleave, split=split, prefire=data.draw(st.booleans()))


@given(st.data())
def test_any_schedule_runs_with_buffered_sends_and_leaves_nothing(data):
    schedule = add_messages(any_schedule(data))
    validate(schedule)
    assert check_messages(schedule) <= schedule.microbatches * schedule.chunks


@given(st.data())
def test_both_ends_of_a_channel_list_the_same_messages(data):
    schedule = add_messages(any_schedule(data))
    sent, received = defaultdict(list), defaultdict(list)
    for rank, row in enumerate(schedule.rows):
        for s in row:
            if s.op in RECEIVES:
                sent[rank, s.peer].append((RECEIVES[s.op], s.chunk, s.micro))
            elif s.peer is not None:
                received[s.peer, rank].append((s.op, s.chunk, s.micro))
    assert sent == received


def test_chunks_on_one_rank_exchange_no_message():
    schedule = add_messages(generate("zb_v", 2, 3))
    assert not any(s.op == "SF" and s.chunk == 2 for row in schedule.rows for s in row)


def test_1f1b_needs_buffered_sends():
    schedule = add_messages(generate("1f1b", 2, 4))
    check_messages(schedule, buffer=1)
    with pytest.raises(
        ScheduleError, match=r"deadlock with 0 messages per channel: rank 0 at SF1\.1@1, rank 1 at SB0\.0@0"
    ):
        check_messages(schedule, buffer=0)


def test_gpipe_passes_even_a_rendezvous():
    check_messages(add_messages(generate("gpipe", 4, 4)), buffer=0)


def test_swapped_receives_are_refused():
    schedule = add_messages(generate("gpipe", 2, 2))
    row = list(schedule.rows[1])
    first, second = row.index(Step("RF", 1, 0, 0)), row.index(Step("RF", 1, 1, 0))
    row[first], row[second] = row[second], row[first]
    with pytest.raises(ScheduleError, match="the two ranks disagree on the order"):
        check_messages(schedule.with_rows([schedule.rows[0], row]))


def test_a_message_that_nobody_takes_is_refused():
    schedule = add_messages(generate("gpipe", 2, 1))
    with pytest.raises(ScheduleError, match=r"sent and never received: RF0\.1@0 to rank 1"):
        check_messages(schedule.with_rows([schedule.rows[0][:2], schedule.rows[1][1:2]]))


@pytest.mark.parametrize(
    ("name", "interleave", "buffer"),
    [("1f1b", 1, 1), ("zb_h1", 1, 1), ("interleaved_1f1b", 2, 2), ("zb_v", 1, 2)],
)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_how_many_messages_a_channel_must_hold(name, interleave, buffer, ranks):
    check_messages(add_messages(generate(name, ranks, 16, interleave=interleave)), buffer)
