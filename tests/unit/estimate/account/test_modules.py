"""Modules that are boundaries of their own: on a chain written down by hand, and on random programs."""

from __future__ import annotations

import pytest
from hypothesis import given

from hp_memory.estimate.account.held import held_by
from hp_memory.estimate.account.modules import held_by_modules, no_gain, unit_of_modules
from tests.unit.estimate.account.test_held import A2A, ACT, GMM, RESORT, chain
from tests.unit.estimate.programs import A, B, C, traces_with_backward

ENTERS, SAVED = "input of a module", "saved for backward"


@pytest.mark.parametrize(
    ("modules", "kept"),
    [
        # What the activation saves is what enters it, and the gmm's backward still needs its own input.
        (((ACT,),), {(2, SAVED), (3, ENTERS)}),
        (((GMM, ACT),), {(2, ENTERS)}),
        (((GMM,), (ACT,)), {(2, ENTERS), (3, ENTERS)}),
        # The exchange is replayed for nothing: its input comes on top, its result is held by who saves it.
        (((A2A, RESORT),), {(0, ENTERS), (2, SAVED), (3, SAVED)}),
        (((A2A, RESORT, GMM, ACT),), {(0, ENTERS)}),
    ],
)
def test_a_module_keeps_what_enters_it_and_what_others_save_stays(modules, kept):
    assert {(entry.storage, entry.reason) for entry in held_by_modules(chain(), modules)} == kept


def test_a_replay_adds_what_its_module_makes_while_its_backward_runs():
    unit = unit_of_modules(chain(), "layer", 0, ((GMM, ACT),))
    assert unit.held == 100
    # While the activation's backward runs: the module's input, the gmm's result again, and the gradients in and out.
    assert unit.backward.nbytes == 400


def test_a_module_that_frees_nothing_is_told():
    found = no_gain(chain(), "yaml", ((A2A, RESORT),))
    assert found is not None
    assert (found.held, found.instead) == (300, 200)
    assert no_gain(chain(), "yaml", ((GMM, ACT),)) is None


@given(traces_with_backward())
def test_no_module_holds_what_only_its_own_operations_save(trace):
    for modules in (((A,),), ((A,), (B,), (C,)), ((A, B), (C,)), ((A, B, C),)):
        kept = {entry.storage for entry in held_by_modules(trace, modules)}
        plain = {entry.storage for entry in held_by(trace, ())}
        inside = {region for module in modules for region in module}
        needed = {item.storage for item in trace.saved if item.region not in inside and item.region}
        assert needed <= kept
        entered = {n for op in trace.ops if op.phase == "forward" and op.region in inside for n in op.reads}
        assert kept <= plain | entered | {n for op in trace.ops if not op.region for n in op.reads}
        unit = unit_of_modules(trace, "layer", 0, modules)
        assert unit.backward.nbytes >= unit.held
        assert unit.forward.nbytes >= 0
