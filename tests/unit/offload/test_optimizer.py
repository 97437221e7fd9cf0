from __future__ import annotations

import pytest

from hp_memory.offload import HyperOffloadInput, OffloadSettings, Output, ReloadWithoutUserError, run

A_TO_E = {"A": ["x"], "B": ["x"], "C": ["B"], "D": ["C"], "E": ["D", "A"]}
FORWARD = {"m1": ["x"], "m3": ["m1"], "m4": ["m3"], "m5": ["m3", "m4"], "mul": ["m5"], "sub": ["mul", "m1"]}


def test_the_documents_a_to_e_example(graph, plan, words):
    """The document puts the copies at [A, D2H, B, C, D, E, H2D]; the optimizer reloads before E, not after it."""
    found = plan(graph(A_TO_E, ["E"]), select_distance=2, prefetch_distance=0)
    save = "send(A) recv(A) D2H(A) send(A) recv(A) free(A) assign(A)"
    reload = "H2D(A) send(A) recv(A) free(A) assign(A)"
    assert words(found) == f"A {save} B C D {reload} E"


def test_the_documents_forward_example_moves_nothing_with_default_settings(graph, plan, words):
    assert words(plan(graph(FORWARD, ["sub"]))) == "m1 m3 m4 m5 mul sub"


def test_the_documents_forward_example_with_a_distance_that_selects_m1(graph, plan, words):
    found = plan(graph(FORWARD, ["sub"]), select_distance=3, prefetch_distance=1)
    assert [found.label(info.data_node) for info in found.offload_infos] == ["m1"]
    save, release = "send(m1) recv(m1) D2H(m1) send(m1)", "recv(m1) free(m1) assign(m1)"
    assert words(found) == f"m1 {save} m3 {release} m4 m5 H2D(m1) send(m1) mul {release} sub"


def test_a_gap_must_be_longer_than_the_distance(graph, plan):
    assert len(plan(graph(A_TO_E, ["E"]), select_distance=3).offload_infos) == 1
    assert len(plan(graph(A_TO_E, ["E"]), select_distance=4).offload_infos) == 0


@pytest.mark.parametrize(
    "settings", [{"auto_offload": "none"}, {"auto_offload": "weight"}, {"stages": [1]}, {"select_num": 0}]
)
def test_nothing_is_planned_where_it_is_off(graph, plan, settings):
    assert len(plan(graph(A_TO_E, ["E"]), select_distance=2, **settings).operations) == 0


def test_a_stage_that_is_named_is_planned(graph):
    settings = OffloadSettings(auto_offload="activation", select_distance=2, stages=[1])
    assert len(run(HyperOffloadInput(graph(A_TO_E, ["E"]), settings, stage=1)).operations) > 0


def test_an_empty_graph_is_planned(graph, plan):
    assert len(plan(graph({}, [])).operations) == 0


def test_the_callback_sees_every_operation(graph):
    seen = []
    settings = OffloadSettings(auto_offload="activation", select_distance=2, prefetch_distance=0)
    plan = run(HyperOffloadInput(graph(A_TO_E, ["E"]), settings, callback=lambda *new: seen.append(new)))
    assert [operation for operation, _ in seen] == list(plan.operations)
    assert {position for _, position in seen} == {0, 3}


def test_planning_leaves_the_graph_as_it_was(graph, plan):
    made = graph(A_TO_E, ["E"])
    plan(made, select_distance=2)
    assert made == graph(A_TO_E, ["E"])


def test_a_graph_output_makes_the_optimizer_raise_unless_its_reload_leaves_the_slots(graph, plan):
    made = graph(A_TO_E, ["E", "A"])
    with pytest.raises(ReloadWithoutUserError, match="A: H2D node"):
        plan(made, select_distance=2, prefetch_distance=4).check()
    found = plan(made, select_distance=2, prefetch_distance=5)
    found.check()
    assert found.outputs[1].op == "copy_to_device"


def test_several_long_gaps_are_skipped_whole(graph, plan):
    made = graph({"A": ["x"], "B": ["x"], "C": ["x"], "D": ["A"], "E": ["D"], "F": ["E"], "G": ["A", "F"]}, ["G"])
    found = plan(made, select_distance=2)
    assert [(s.data_node, s.gaps) for s in found.skipped] == [(Output(0), [3, 3])]
    assert found.offload_infos == []


def test_the_number_filter_takes_those_used_first_and_tells_what_it_cut(step, plan):
    found = plan(step(), select_distance=10, select_num=3)
    assert [found.label(info.data_node) for info in found.offload_infos] == ["f0", "f1", "f2"]
    assert found.label(found.truncated[0].data_node) == "f3"


def test_the_percentage_keeps_evenly_spaced_candidates(step, plan):
    found = plan(step(), select_distance=1, select_num=8, filter_percentage=30)
    assert [found.label(info.data_node) for info in found.offload_infos] == ["f0", "f4"]


def test_loads_through_a_load_node_are_not_written_back(graph, plan, words):
    made = graph({"A": ["w"], "B": ["A", "w"]}, ["B"], w={"remote": True})
    assert "WB(w)" in words(plan(made, auto_offload="weight", prefetch_distance=0))
    for node in made.nodes:
        node.inputs = tuple(s._replace(load=True) if hasattr(s, "load") else s for s in node.inputs)
    text = words(plan(made, auto_offload="weight", prefetch_distance=0))
    assert "WB(w)" not in text
    assert text.count("H2D(w)") == 2
