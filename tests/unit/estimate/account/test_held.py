"""The rules on a chain written down by hand: all2all -> resort -> gmm, as in the design document."""

from __future__ import annotations

import pytest

from hp_memory.estimate.account.held import held, held_by, held_bytes_of_all
from hp_memory.estimate.account.liveness import backward_peak, curve, forward_peak, saved_bytes
from hp_memory.estimate.tracing.record import LayerTrace, Op, Saved, Storage
from hp_memory.layout import make_layout

A2A, RESORT, GMM, ACT = "all2all.in", "compute.resort", "gmm.up", "compute.act"
ALL = (A2A, RESORT, GMM, ACT)
NONE = make_layout("none", "save", (), (), (), False)


def chain() -> LayerTrace:
    """x -> a (all2all) -> r (resort, saves nothing) -> y (gmm, saves r) -> z (act, saves y); 100 bytes each."""
    trace = LayerTrace("moe", ALL)
    made_in = ["", A2A, RESORT, GMM, ACT]
    for number, region in enumerate(made_in):
        kind = "input" if number == 0 else "activation"
        trace.storages.append(Storage(number, (25,), "float32", 100, kind, region, "forward"))
    trace.storages += [Storage(5 + i, (25,), "float32", 100, "activation", "", "backward") for i in range(2)]
    trace.ops = [
        Op("AllToAll", "forward", A2A, (0,), (1,)),
        Op("Gather", "forward", RESORT, (1,), (2,)),
        Op("GroupedMatmul", "forward", GMM, (2,), (3,), 1000),
        Op("Silu", "forward", ACT, (3,), (4,)),
        Op("Ones", "backward", "", (), (5,)),
        Op("SiluGrad", "backward", ACT, (5, 3), (6,)),
        Op("GroupedMatmul", "backward", GMM, (6, 2), (), 2000),
    ]
    trace.saved = [Saved(2, GMM, (25,)), Saved(3, ACT, (25,))]
    trace.inputs, trace.outputs = (0,), (4,)
    trace.region_outputs = {A2A: (1,), RESORT: (2,), GMM: (3,), ACT: (4,)}
    return trace


def kept(save, keep_outputs=False):
    layout = make_layout("test", "recompute", save, (), (), keep_outputs)
    return {(entry.storage, entry.reason) for entry in held(chain(), layout)}


INPUT = (0, "block input")


def test_without_a_boundary_what_operations_save_is_held():
    assert {e.storage for e in held_by(chain(), ())} == {2, 3}


def test_everything_replayed_holds_the_input_only():
    assert kept([]) == {INPUT}


def test_case_1_keeps_both_outputs_and_makes_the_gmm_input_again():
    assert kept([A2A, GMM]) == {INPUT, (1, "output read by the replay"), (3, "output read by the replay")}


def test_case_3_keeps_the_last_output_and_the_saved_input_of_consecutive_regions():
    assert kept([A2A, RESORT, GMM]) == {INPUT, (2, "saved for backward"), (3, "output read by the replay")}


def test_case_3_without_elision_keeps_every_output():
    assert kept([A2A, RESORT, GMM], keep_outputs=True) == {
        INPUT,
        (1, "output kept by the layout"),
        (2, "saved for backward"),
        (3, "output read by the replay"),
    }


def test_a_tensor_that_a_function_keeps_by_itself_is_held_whatever_the_layout_says():
    trace = chain()
    trace.saved = [Saved(2, GMM, (25,))]
    assert {(e.storage, e.reason) for e in held_by(trace, ALL)} == {
        INPUT,
        (3, "kept outside the hooks"),
    }


def test_so_is_one_that_it_keeps_without_reading_it():
    trace = chain()
    # A reference to r in the backward of act, though nothing saves or reads it; z is the output, which goes on.
    trace.saved, trace.ops[6] = [Saved(3, ACT, (25,))], Op("GroupedMatmul", "backward", GMM, (6,), (), 2000)
    trace.released = {1: 2, 2: 5, 4: 5}
    assert {(e.storage, e.reason) for e in held_by(trace, ALL)} == {INPUT, (2, "kept outside the hooks")}


@pytest.mark.parametrize("mask", range(16))
def test_all_subsets_at_once_agree_with_one_at_a_time(mask):
    trace = chain()
    replayed = [r for i, r in enumerate(ALL) if mask >> i & 1]
    one = trace.nbytes(e.storage for e in held_by(trace, replayed))
    assert held_bytes_of_all(trace)[mask] == one


def test_working_sets_by_hand():
    trace = chain()
    # Forward of `none`: at the last operation x, r, y and z are there (a died after resort).
    assert forward_peak(trace, ()).nbytes == 400
    # Everything replayed: x and the two tensors of the operation that runs.
    assert forward_peak(trace, ALL).nbytes == 300
    # Backward of `none`: r, y and two gradients.
    assert backward_peak(trace, ()).nbytes == 400
    # Replayed: x stays beside r, y and both gradients.
    assert backward_peak(trace, ALL).nbytes == 500
    assert backward_peak(trace, ALL).region == ACT
    assert saved_bytes(trace, ALL) == 300


def test_a_local_variable_lengthens_a_life():
    trace = chain()
    # The caller of resort still has a, and the caller of act's backward its gradient.
    trace.released = {1: 3, 5: 6}
    assert forward_peak(trace, ()).nbytes == 500
    assert forward_peak(trace, ALL).nbytes == 400
    assert backward_peak(trace, ()).nbytes == 400


@pytest.mark.parametrize(("weights", "left"), [((), 200), ((5,), 100)])
def test_a_gradient_of_a_parameter_is_given_away(weights, left):
    trace = chain()
    trace.ops.append(Op("Add", "backward", "", (6,), ()))
    trace.released, trace.weight_gradients = {5: 7, 6: 7}, frozenset(weights)
    assert curve(trace, NONE)[1][-1] == left


def test_what_the_caller_keeps_is_alive_from_when_it_is_made():
    trace = chain()
    ops, alone = curve(trace, NONE)
    _, kept = curve(trace, NONE, {0, 4, 6})
    assert [op.name for op in ops] == [op.name for op in trace.ops]
    more = [int(n) for n in kept - alone]
    # In backward x (0) and z (4) stay; the gradient (6) is the last thing made.
    assert more == [0, 0, 0, 0, 200, 200, 200]


def test_a_copy_that_the_backend_makes_is_there_only_for_its_operation():
    trace = chain()
    trace.storages.append(Storage(7, (25,), "float32", 100, "activation", ACT, "forward"))
    trace.ops[2] = Op("GroupedMatmul", "forward", GMM, (2, 7), (3,))
    alive = [int(n) for n in curve(trace, NONE)[1]]
    assert alive[:4] == [200, 300, 400, 400]
