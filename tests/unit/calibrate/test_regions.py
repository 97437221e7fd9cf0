"""Regions of the reference model timed by themselves, on the calls that the model makes."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from hp_memory.config.app import compose, to_object


@pytest.fixture(scope="module")
def caught(mindspore):
    from hp_memory.calibrate.regions import catch_calls
    from hp_memory.layout import LayoutSettings, build_plan
    from hp_memory.models.fingerprint import fingerprint
    from hp_memory.models.reference import build, region_map
    from hp_memory.models.settings import ParallelSettings

    sizes = to_object(compose("train", ["recipe=tiny_moe"])).model
    sizes = replace(sizes, num_layers=2, hidden_size=32, head_dim=8, ffn_size=32, expert_ffn_size=16, seq_length=16)
    model = build(sizes, ParallelSettings())
    names = [p.name for p in model.get_parameters()]
    plan = build_plan(LayoutSettings(name="none", default="save"), fingerprint(sizes))
    calls = catch_calls(model, plan, region_map(model))
    before = model(mindspore.Tensor(np.zeros((1, 16)), mindspore.int32))
    assert [p.name for p in model.get_parameters()] == names
    return plan, calls, before


def test_every_region_is_called(caught):
    plan, calls, _ = caught
    assert set(calls) == {f"layers.{i}/{region}" for i in (0, 1) for region in plan.regions(i)}


def test_forward_and_backward_take_time(caught):
    from hp_memory.calibrate.regions import measure

    found = measure(caught[1]["layers.1/gmm.up"], 3, lambda: None)
    assert found.forward > 0
    assert found.backward > 0
    counts = measure(caught[1]["layers.1/dispatch.counts"], 3, lambda: None)
    assert counts.backward == 0  # nothing of it is differentiated


def test_seconds_are_those_until_the_device_is_done(mindspore):
    """A region whose work only the device's end shows: 5 ms of it are found."""
    from hp_memory.calibrate.regions import Call, measure

    found = measure(Call(lambda x: (x,), (1,), {}, ()), 3, lambda: time.sleep(0.005))
    assert found.forward >= 0.005


def test_only_parameters_that_a_call_reads_are_differentiated(caught):
    from hp_memory.calibrate.regions import _read

    call = caught[1]["layers.1/gmm.up"]
    assert len(call.parameters) > 1
    found = _read(lambda x: (call.target(x, call.args[1]),), [call.args[0]], call.parameters)
    assert len(found) == 1
