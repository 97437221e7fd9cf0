"""Liveness of a replay: by hand, and on random programs against a closure written down in another way."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hp_memory.estimate.account.held import held_by, held_bytes_of_all
from hp_memory.estimate.account.liveness import backward_peak, forward_peak, saved_bytes
from hp_memory.estimate.account.replay import choice, every_choice, live
from hp_memory.estimate.account.working import working_sets
from hp_memory.estimate.account.worth import not_worth
from hp_memory.estimate.tracing.record import BARE, HOST_READ
from hp_memory.layout import make_layout
from tests.unit.estimate.programs import A, B, C, layer, programs, traces_with_backward


def stays(trace, *replayed):
    return {e.storage: e.reason for e in held_by(trace, replayed)} | {}


def test_a_copy_between_saved_regions_is_dead_and_keeps_nothing():
    # x -A-> 1 -pad-> 2 -C-> 3 -B-> 4: A and C are saved, the pad runs again for nobody.
    trace = layer([(A, [0], [1]), (BARE, [1], [2]), (C, [2], [3]), (B, [3], [4])], [(3, B)])
    assert stays(trace, B) == {0: "block input", 3: "output read by the replay"}


def test_what_a_saved_region_takes_from_the_replay_keeps_the_way_there_alive():
    # C saves its input, which the pad makes again from A's output.
    trace = layer([(A, [0], [1]), (BARE, [1], [2]), (C, [2], [3]), (B, [3], [4])], [(2, C)])
    assert stays(trace, B)[1] == "output read by the replay"


def test_what_the_host_reads_is_live():
    trace = layer([(A, [0], [1]), (BARE, [1], [2]), (BARE, [2], []), (C, [2], [3]), (B, [3], [4])], [(3, B)])
    assert 1 in stays(trace, B)


def test_a_write_into_something_live_is_live():
    # B writes 1 into 2, which B itself made and a later operation of B saves.
    trace = layer([(A, [0], [1]), (B, [0], [2]), (B, [1, 2], [2]), (C, [2], [3])], [(2, B)])
    assert 1 in stays(trace, B)


def test_a_copy_that_nobody_saw_being_made_may_come_from_what_nothing_else_reads():
    # The backend copied a slice of 1, made in B, into 2.
    trace = layer([(A, [0], [1]), (B, [1], [3]), (B, [2], [4]), (C, [4], [5])], [(4, B)])
    trace.copies = {2: None}
    assert 1 in stays(trace, B)


def test_replaying_for_nothing_is_said():
    # Only B's input is saved: replaying B frees nothing.
    trace = layer([(A, [0], [1]), (B, [1], [2]), (C, [2], [3])], [(1, B)])
    found = not_worth(trace, make_layout("act", "save", (), ("compute.act",), ()))
    assert found.regions == (B,)
    assert found.instead == 100 < found.held == 200
    assert "holds 0.0 MiB more" in found.in_words()
    assert not_worth(trace, make_layout("full", "recompute", (), (), ())).regions == (A, B, C)


def closure(trace, replayed):
    """Operations that are live, found by asking of each whether it must be until nothing is added."""
    again = {i for i, op in enumerate(trace.ops) if replayed and (op.region == BARE or op.region in replayed)}
    made = {n: trace.storages[n].region for n in range(len(trace.storages))}
    roots = {s.storage for s in trace.saved if s.region in replayed or (replayed and s.region == BARE)}
    roots |= {s.storage for s in trace.saved if replayed and (made[s.storage] in replayed or made[s.storage] == BARE)}
    found: set[int] = set()
    while True:
        more = {
            i
            for i in again
            if trace.ops[i].name == HOST_READ
            or any(n in roots or any(j > i and n in trace.ops[j].reads for j in found) for n in trace.ops[i].writes)
        }
        if more == found:
            return found
        found = more


@given(programs(), st.sets(st.sampled_from([A, B, C])))
def test_live_operations_are_the_closure_of_the_rules(trace, replayed):
    found = live(trace, choice(replayed)).operations
    assert {i for i, when in enumerate(found) if when[0]} == closure(trace, replayed)


@given(programs())
def test_all_choices_at_once_are_each_by_itself(trace):
    every = every_choice(trace.regions)
    at_once, held = live(trace, every).operations, held_bytes_of_all(trace)
    for mask in range(8):
        replayed = [r for i, r in enumerate(trace.regions) if mask >> i & 1]
        alone = live(trace, choice(replayed)).operations
        assert [bool(w[mask]) for w in at_once] == [bool(w[0]) for w in alone]
        assert held[mask] == trace.nbytes(e.storage for e in held_by(trace, replayed))


@given(traces_with_backward())
def test_working_sets_of_all_choices_at_once_are_each_by_itself(trace):
    every = working_sets(trace, every_choice(trace.regions))
    for mask in range(8):
        replayed = [r for i, r in enumerate(trace.regions) if mask >> i & 1]
        assert every.held[mask] == trace.nbytes(e.storage for e in held_by(trace, replayed))
        assert every.replayed[mask] == saved_bytes(trace, replayed)
        assert every.forward[mask] == forward_peak(trace, replayed).nbytes
        assert every.backward[mask] == backward_peak(trace, replayed).nbytes


@given(programs())
def test_saving_one_more_region_never_makes_more_live(trace):
    operations = np.stack(live(trace, every_choice(trace.regions)).operations)
    for mask, bit in itertools.product(range(8), range(3)):
        if mask >> bit & 1:
            assert (operations[:, mask & ~(1 << bit)] <= operations[:, mask]).all()


@pytest.mark.parametrize("replayed", [(A,), (A, B), (A, B, C)])
def test_a_plain_chain_holds_no_more_than_without_a_checkpoint(replayed):
    trace = layer([(A, [0], [1]), (B, [1], [2]), (C, [2], [3])], [(0, A), (1, B), (2, C)])
    assert set(stays(trace, *replayed)) <= set(stays(trace)) | {0}
