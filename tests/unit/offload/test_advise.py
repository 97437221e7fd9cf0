from __future__ import annotations

from pathlib import Path

import pytest

from hp_memory.offload import HyperOffloadInput, OffloadSettings, run
from hp_memory.offload.actor_set import read_actor_set
from hp_memory.offload.advise import advise
from hp_memory.offload.hazards import find_hazards, is_safe
from hp_memory.offload.timeline import kernel_times, simulate

DATA = Path(__file__).parents[2] / "data" / "offload"


@pytest.fixture(scope="module")
def moe():
    return read_actor_set(DATA / "attn_moe_train_step.actor_set.ir")


def test_the_advised_settings_are_safe_lower_the_peak_and_expose_nothing(moe):
    settings = OffloadSettings(auto_offload="activation", kernel_time_us=2.0)
    times = kernel_times(moe, settings)
    advice = advise(moe, settings, times, bound_us=0.0, evaluations=60)
    plan = run(HyperOffloadInput(moe, advice.best.settings))
    timeline = simulate(plan, times)
    assert len(advice.trials) <= 60
    assert advice.trials[0].settings == settings
    assert is_safe(find_hazards(plan))
    assert timeline.device.peak == advice.best.peak_bytes < 0.8 * advice.baseline_bytes
    assert timeline.exposed_us == 0.0


def test_nothing_is_advised_where_nothing_helps(graph):
    made = graph({"a": ["x"], "b": ["a"], "c": ["b"]}, ["c"])
    settings = OffloadSettings(auto_offload="activation")
    assert advise(made, settings, kernel_times(made, settings), 0.0, 10).best is None
