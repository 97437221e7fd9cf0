from __future__ import annotations

import numpy as np
import pytest

from hp_memory.offload.timeline import baseline, kernel_times, simulate

GAP = {"a": ["x"], "b": ["x"], "c": ["b"], "d": ["c"], "e": ["d"], "f": ["e", "a"]}


@pytest.fixture
def moved(graph, plan):
    """``a`` (1 MB) is copied out at 20 GB/s in 50 us and back at 50 GB/s in 20 us; a kernel takes 10 us."""

    def moved(**settings):
        made = graph(GAP, ["f"], 10**6)
        distances = {"select_distance": 3, "prefetch_distance": 0, "h2d_bandwidth_gbps": 50.0, "kernel_time_us": 10.0}
        found = plan(made, **distances | settings)
        return simulate(found, kernel_times(made, found.settings))

    return moved


def test_compute_waits_for_a_copy_out_at_its_release_and_for_a_reload_at_its_use(moved):
    found = moved()
    assert [(w.label, w.end_us - w.start_us) for w in found.waits] == [("a", 50.0), ("a", 20.0)]
    assert found.exposed_us == 70.0
    assert found.total_us == 130.0


def test_release_and_prefetch_hide_the_copies(moved):
    assert moved(release_distance=2).waits[0].end_us == pytest.approx(60.0)
    hidden = moved(prefetch_distance=2, release_distance=0)
    assert [wait.end_us - wait.start_us for wait in hidden.waits] == [50.0]
    assert [(s.direction, s.nbytes) for s in hidden.transfers] == [("to host", 10**6), ("to device", 10**6)]


def test_memory_over_the_step(graph, plan):
    """Parameter x always; a chain holds two data at a time, and a on top until it is moved."""
    made = graph(GAP, ["f"], 1000)
    settings = {"select_distance": 3, "prefetch_distance": 0}
    found = plan(made, **settings)
    times = kernel_times(made, found.settings)
    before, after = simulate(baseline(made, found.settings), times), simulate(found, times)
    assert before.device.peak == 4000
    assert [int(b) for b in at_kernels(before)] == [2000, 3000, 4000, 4000, 4000, 4000]
    assert [int(b) for b in at_kernels(after)] == [2000, 2000, 3000, 3000, 3000, 4000]
    assert after.host.peak == 1000


def at_kernels(timeline):
    inside = (timeline.kernel_start_us + timeline.kernel_end_us) / 2
    return timeline.device.nbytes[np.searchsorted(timeline.device.times_us, inside, side="right") - 1]


def test_views_and_in_place_results_own_no_memory(graph, plan):
    spec = {"a": ["x"], "v": ["a"], "i": ["v"], "d": ["i"]}
    made = graph(spec, ["d"], 1000, v={"view": True}, i={"inplace": True})
    found = plan(made)
    assert simulate(found, kernel_times(made, found.settings)).device.peak == 3000


def test_remote_parameters_live_on_the_host_and_load_before_the_start(graph, plan):
    made = graph({"a": ["w"], "b": ["a", "w"]}, ["b"], 10**6, w={"remote": True})
    found = plan(made, auto_offload="weight", prefetch_distance=5)
    timeline = simulate(found, kernel_times(made, found.settings))
    assert timeline.waits[0].label == "loads before the first kernel"
    assert timeline.host.nbytes[0] == 10**6


def test_every_kind_of_figure_is_named(moved, graph, plan):
    assert moved().kinds["kernel times"] == "MODELLED"
    made = graph(GAP, ["f"])
    times = kernel_times(made, plan(made).settings, dict.fromkeys(GAP, 1.0))
    assert list(times) == [1.0] * 6
    kinds = simulate(plan(made), times, measured=True).kinds
    assert (kinds["kernel times"], kinds["tensor bytes"]) == ("MEASURED", "TRACED")
    assert set(kinds.values()) == {"MEASURED", "TRACED", "MODELLED"}
