from __future__ import annotations

from pathlib import Path

import pytest

from hp_memory.offload import HyperOffloadInput, OffloadSettings, run
from hp_memory.offload.actor_set import read_actor_set
from hp_memory.offload.advise import advise
from hp_memory.offload.files import mark_remote
from hp_memory.offload.hazards import find_hazards, is_safe
from hp_memory.offload.timeline import kernel_times, simulate

DATA = Path(__file__).parents[2] / "data" / "offload"


@pytest.fixture(scope="module")
def moe():
    return read_actor_set(DATA / "attn_moe_train_step.actor_set.ir")


def test_the_advised_settings_are_safe_lower_the_peak_and_expose_nothing(moe):
    settings = OffloadSettings(auto_offload="activation", kernel_time_us=2.0)
    times = kernel_times(moe, settings)
    told = []
    advice = advise(moe, settings, times, 0.0, 60, 0, lambda done, most: told.append((done, most)))
    plan = run(HyperOffloadInput(moe, advice.best.settings))
    timeline = simulate(plan, times)
    assert len(advice.trials) <= 60
    assert advice.trials[0].settings == settings
    assert is_safe(find_hazards(plan))
    assert timeline.device.peak == advice.best.peak_bytes < 0.8 * advice.baseline_bytes
    assert timeline.exposed_us == 0.0
    assert told == [(k + 1, 60) for k in range(len(advice.trials))]
    assert len({repr(trial.settings) for trial in advice.trials}) == len(advice.trials)
    OffloadSettings(**advice.best.values()).validate("offload")


def test_nothing_is_advised_where_nothing_helps(graph):
    made = graph({"a": ["x"], "b": ["a"], "c": ["b"]}, ["c"])
    settings = OffloadSettings(auto_offload="activation")
    assert advise(made, settings, kernel_times(made, settings), 0.0, 10, 0, lambda *_: None).best is None


def test_weights_alone_are_advised_distances_and_no_equal_trials():
    graph = read_actor_set(DATA / "mlp_train_step.actor_set.ir")
    mark_remote(graph, ["*weight"])
    settings = OffloadSettings(auto_offload="weight", kernel_time_us=2.0)
    advice = advise(graph, settings, kernel_times(graph, settings), 100.0, 200, 0, lambda *_: None)
    assert advice.best.values().keys() == {"auto_offload", "prefetch_distance", "release_distance"}
    assert advice.best.peak_bytes < advice.baseline_bytes
    tried = [(trial.settings.prefetch_distance, trial.settings.release_distance) for trial in advice.trials]
    assert len(set(tried)) == len(tried)
