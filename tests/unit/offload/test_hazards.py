from __future__ import annotations

import os
from dataclasses import replace

import pytest

from hp_memory.offload import HyperOffloadInput, OffloadSettings, plan_to_dict, run
from hp_memory.offload.graph import Graph, Node, Output, Parameter, ParameterRef
from hp_memory.offload.hazards import find_hazards, is_safe
from hp_memory.offload.safe import with_safe_values
from tests.unit.offload.cases import plan_of
from tests.unit.offload.machine import unsafe
from tests.unit.offload.random_cases import KINDS, random_case

GAP = {"a": ["x"], "b": ["x"], "c": ["b"], "d": ["c"], "e": ["d"], "f": ["e", "a"]}  # a is used 5 kernels later


def only(plan, kind):
    (hazard,) = [found for found in with_safe_values(plan, find_hazards(plan)) if found.kind == kind]
    return hazard


def test_a_reload_before_its_copy_out_with_the_largest_safe_prefetch(graph, plan):
    def planned(prefetch):
        return plan(graph(GAP, ["f"]), select_distance=3, prefetch_distance=prefetch)

    hazard = only(planned(5), "reload before save")
    assert (hazard.data, hazard.severity, hazard.safe) == ("a", "error", {"prefetch_distance": 4})
    assert hazard.numbers == {"producer": 0, "reload": -1}
    assert is_safe(find_hazards(planned(4)))


def test_a_release_that_frees_the_reload_with_the_largest_safe_release(graph, plan):
    def planned(release, spec):
        outputs = [list(spec)[-1]]
        return plan(graph(spec, outputs), select_distance=3, prefetch_distance=0, release_distance=release)

    twice = GAP | {"g": ["f", "a"]}
    hazard = only(planned(5, twice), "use after free")
    assert (hazard.safe, hazard.numbers) == ({"release_distance": 4}, {"freed_after": 5, "reader": 6})
    assert hazard.why == "g reads the copy that was just reloaded after it was freed"
    assert is_safe(find_hazards(planned(4, twice)))
    # Nothing reads the reload after its first reader: the late free does no harm.
    assert is_safe(find_hazards(planned(5, GAP)))


def test_a_reload_that_starts_before_the_release_saves_nothing(graph, plan):
    def planned(prefetch):
        return plan(graph(GAP, ["f"]), select_distance=3, prefetch_distance=prefetch, release_distance=1)

    assert only(planned(3), "saves nothing").safe == {"prefetch_distance": 2}
    assert find_hazards(planned(2)) == []


def test_a_graph_output_that_makes_the_optimizer_raise(graph, plan):
    made = graph(GAP, ["f", "a"])
    hazard = only(plan(made, select_distance=3, prefetch_distance=0), "graph output")
    assert (hazard.data, hazard.severity, hazard.safe) == ("a", "error", {"select_distance": 5})
    assert find_hazards(plan(made, select_distance=5))[0].kind == "selects nothing"


def test_several_long_gaps_with_the_distance_that_selects_the_longest(graph, plan):
    spec = {"a": ["x"], "b": ["x"], "c": ["b"], "d": ["c", "a"], "e": ["d"], "f": ["e"], "g": ["f"], "h": ["g", "a"]}
    hazard = only(plan(graph(spec, ["h"]), select_distance=2, prefetch_distance=0), "skipped")
    assert (hazard.numbers, hazard.safe) == ({"gap_0": 4, "gap_1": 3}, {"select_distance": 3})
    assert len(plan(graph(spec, ["h"]), select_distance=3).offload_infos) == 1


def test_truncation_with_the_number_that_takes_all(step, plan):
    hazard = only(plan(step(), select_distance=10, prefetch_distance=0, select_num=2), "truncated")
    safe = hazard.safe["select_num"]
    assert hazard.numbers["cut_off"] == safe - 2
    assert not plan(step(), select_distance=10, prefetch_distance=0, select_num=safe).truncated


def test_settings_that_select_nothing_with_the_distance_that_does(graph, plan):
    hazard = only(plan(graph(GAP, ["f"])), "selects nothing")
    assert hazard.safe == {"select_distance": 4, "prefetch_distance": 4, "release_distance": 0}
    assert len(plan(graph(GAP, ["f"]), **hazard.safe).offload_infos) == 1


def test_a_tuple_under_the_peak_strategy_is_an_error(graph, plan):
    made = graph(GAP, ["f"], a={"output_bytes": [1000, 1000]})
    assert only(plan(made, strategy="peak", max_device_memory=1, headroom=0), "tuple output").data == "a[0]"


def test_a_peak_that_can_not_be_lowered_far_enough(step, plan):
    hazard = only(plan(step(), strategy="peak", max_device_memory=10, headroom=0), "peak too high")
    assert hazard.safe["max_device_memory"] == hazard.numbers["modelled_peak"] > 10


def test_an_in_place_result_read_after_its_buffer_was_released(graph, plan):
    spec = {"a": ["x"], "b": ["a"], "c": ["x"], "d": ["c", "b"], "e": ["d"], "f": ["e"], "g": ["f", "a"]}
    made = graph(spec, ["g"], b={"inplace": True})
    hazard = only(plan(made, select_distance=3, prefetch_distance=0), "use after free")
    assert (hazard.data, hazard.numbers) == ("a", {"freed_after": 1, "reader": 3})
    assert hazard.why == "d reads its buffer through b after it was freed"


def test_a_view_whose_shape_is_lost(graph, plan):
    spec = {"a": ["x"], "v": ["a"], "c": ["x"], "d": ["c"], "e": ["d"], "f": ["e", "v"]}
    found = plan(graph(spec, ["f"], v={"view": True}), select_distance=3, prefetch_distance=0)
    assert only(found, "view bypassed").numbers == {"reader": 5}


def test_a_remote_parameter_loaded_before_the_write_back_of_an_earlier_copy(graph, plan):
    made = graph({"a": ["w"], "b": ["a"], "c": ["b"], "d": ["c", "w"]}, ["d"], w={"remote": True})
    hazard = only(plan(made, auto_offload="weight", prefetch_distance=3), "stale parameter")
    assert (hazard.data, hazard.safe) == ("w", {"prefetch_distance": 2})
    assert find_hazards(plan(made, auto_offload="weight", prefetch_distance=2)) == []


def test_a_graph_output_that_is_a_view_of_a_moved_datum_is_found():
    """The view is no use, so its buffer is released while the caller will still read it."""
    parameter = (ParameterRef("w"),)
    nodes = [Node(name=f"n{i}", op="Op", inputs=parameter, output_bytes=(1,)) for i in range(19)]
    nodes[7] = Node(name="n7", op="Op", inputs=(Output(0, 0),), output_bytes=(1,), view=True)
    nodes[18] = Node(name="n18", op="Op", inputs=(Output(0, 0),), output_bytes=(1,))
    outputs = (Output(7, 0), Output(18, 0))
    settings = OffloadSettings(
        auto_offload="activation", strategy="peak", prefetch_distance=0, max_device_memory=1, headroom=0
    )
    for graph_outputs, kinds in ((outputs, {"use after free"}), (outputs[1:], set())):
        graph = Graph(nodes=nodes, parameters={"w": Parameter("w", 64)}, outputs=graph_outputs)
        found = find_hazards(run(HyperOffloadInput(graph, settings)))
        assert {hazard.kind for hazard in found if hazard.severity == "error"} == kinds


def test_results_that_share_a_buffer_keep_it_in_use(graph, plan):
    spec = {"n0": ["p"], "n1": ["n0"], "n2": ["n1"], "n3": ["n0"]}
    made = graph(spec, ["n3", "n2"], n1={"ref_outputs": {"0": 0}})
    found = plan(made, strategy="peak", max_device_memory=1, headroom=0, prefetch_distance=0)
    assert "use after free" in {hazard.kind for hazard in find_hazards(found)}


def test_a_stage_that_moves_nothing_is_named(graph):
    settings = OffloadSettings(auto_offload="activation", select_distance=3, prefetch_distance=0, stages=[3])
    plan = run(HyperOffloadInput(graph(GAP, ["f"]), settings, stage=1))
    hazard = only(plan, "selects nothing")
    assert (hazard.numbers, hazard.safe) == ({"stage": 1}, {})
    assert "stages [3]" in hazard.why


def test_a_weight_read_through_a_view_after_its_copy_was_freed(graph, plan):
    made = graph({"n0": ["p"], "n1": ["w"], "n2": ["n1", "w"]}, ["n2"], n1={"view": True}, w={"remote": True})
    hazard = only(plan(made, auto_offload="weight", prefetch_distance=0), "use after free")
    assert hazard.data == "w"
    assert hazard.numbers == {"freed_after": 1, "reader": 2}


def test_a_tensor_listed_twice_among_the_outputs_keeps_a_freed_buffer(graph, plan):
    made = graph(GAP, ["f", "a", "a"])
    found = plan(made, select_distance=3, prefetch_distance=6)
    assert [h.why for h in find_hazards(found) if h.kind == "use after free"] == [
        "a graph output reads its buffer after it was freed"
    ]


PLANS = 320 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 25


@pytest.mark.parametrize("name", KINDS)
def test_every_use_after_free_is_found_and_nothing_else(name):
    """Against plans run on tokens; the values called safe are applied and looked at again."""
    for seed in range(PLANS):
        case = random_case(KINDS[name], seed)
        plan = plan_of(case)
        if plan.raises:
            continue
        kinds = {"use after free", "reload before save"}
        hazards = find_hazards(plan)
        assert unsafe(case, plan_to_dict(plan)) == any(hazard.kind in kinds for hazard in hazards), seed


@pytest.mark.parametrize("name", ["distance", "peak", "parameters", "both"])
def test_a_value_called_safe_is(name):
    checked = 0
    for seed in range(PLANS):
        plan = plan_of(random_case(KINDS[name], seed))
        for hazard in with_safe_values(plan, find_hazards(plan)):
            if not hazard.safe:
                continue
            again = find_hazards(run(HyperOffloadInput(plan.graph, replace(plan.settings, **hazard.safe))))
            assert all(found.kind != hazard.kind for found in again), (seed, hazard)
            errors = {h.kind for h in find_hazards(plan) if h.severity == "error"}
            assert {h.kind for h in again if h.severity == "error"} <= errors
            checked += 1
    assert checked > PLANS / 10
