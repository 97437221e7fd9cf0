"""Layouts and plans: what a config may say, what is refused, and what the plan then says."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hp_memory.errors import ConfigError
from hp_memory.layout import (
    ALWAYS_SAVED,
    REGIONS,
    REGIONS_OF_KIND,
    LayerOverride,
    LayoutSettings,
    ModelFingerprint,
    build_plan,
    expand,
    from_dict,
    make_layout,
    refuse_offload,
)
from hp_memory.layout.layers import format_layers, select_layers
from hp_memory.layout.regions import EXPERT_PATH, GROUPS

KINDS = ("dense", "moe", "moe", "moe", "mtp")
MODEL = ModelFingerprint("reference", KINDS, REGIONS_OF_KIND, "d1")


def settings(**kw):
    return LayoutSettings(**{"name": "mine", "default": "recompute", **kw})


def test_a_group_means_all_of_its_parts():
    assert expand("all2all", "p") == ("all2all.in", "all2all.out")
    assert expand("gmm.up", "p") == ("gmm.up",)
    assert expand("router", "p") == ("router.gate", "router.choose")
    assert set(expand("attention.qkv", "p")) < set(expand("attention", "p"))


def test_groups_and_regions_are_the_parts_of_one_list():
    assert {region for parts in GROUPS.values() for region in parts} == set(REGIONS)
    assert not set(GROUPS) & set(REGIONS)


@pytest.mark.parametrize(("name", "near"), [("all2al", "all2all"), ("gmm.upp", "gmm.up"), ("combin", "combine")])
def test_an_unknown_region_names_the_nearest_one(name, near):
    with pytest.raises(ConfigError) as error:
        expand(name, "layout.save[0]")
    assert error.value.near == near
    assert "layout.save[0]" in str(error.value)
    assert len(str(error.value).splitlines()) <= 2


def test_routing_and_split_sizes_are_saved_whatever_the_default():
    layout = make_layout("full", "recompute", [], [], [])
    assert all(layout.action(r) == "save" for r in ALWAYS_SAVED)


@pytest.mark.parametrize("region", ["router", "router.choose", "dispatch", "dispatch.counts"])
def test_routing_and_split_sizes_are_never_replayed(region):
    with pytest.raises(ConfigError, match="always saved"):
        make_layout("x", "save", [], [region], [])


def test_the_scores_that_routing_compares_may_be_replayed():
    with pytest.raises(ConfigError, match=r"router\.choose is always saved.*\n.*router\.gate"):
        make_layout("x", "save", [], ["router"], [])
    assert make_layout("x", "save", [], ["router.gate"], []).replays(REGIONS) == ("router.gate",)
    assert make_layout("full", "recompute", [], [], []).action("router.gate") == "recompute"


def test_a_group_of_which_a_model_has_some_parts_means_those():
    regions = {k: tuple(r for r in v if r not in ("attention.q_up", "mlp.up")) for k, v in REGIONS_OF_KIND.items()}
    model = ModelFingerprint("reference", KINDS, regions, "d")
    plan = build_plan(settings(save=["attention.qkv"], as_one=[["attention.qkv", "attention.qkv"]]), model)
    (span,) = plan.layers[1].layout.spans
    assert span == ("attention.qkv_proj", "attention.qk_norm", "attention.kv_up", "attention.rope")
    with pytest.raises(ConfigError, match=r"save\[1\]='attention\.q_up': .*no such region"):
        build_plan(settings(save=["gmm", "attention.q_up"]), model)


def test_a_span_may_be_told_by_groups():
    layout = make_layout("x", "recompute", ["router", "dispatch"], [], [["router", "dispatch"]])
    assert layout.spans == (("router.gate", "router.choose", "dispatch.counts", "dispatch.permute"),)
    with pytest.raises(ConfigError, match=r"as_one\[0\]\[1\]='dispach'.*\n.*'dispatch'"):
        make_layout("x", "recompute", ["router", "dispatch"], [], [["router", "dispach"]])


@pytest.mark.parametrize(
    ("kw", "why"),
    [
        ({"default": "swap"}, "not an action"),
        ({"save": ["gmm"], "offload": ["gmm.up"]}, r"offload\[0\]='gmm.up': names gmm.up a second time"),
        ({"offload": ["router"]}, r"offload\[0\]='router': router.choose is always saved"),
        ({"default": "offload", "offload": ["gmm"]}, "no effect"),
        ({"offload": ["gmm"], "as_one": [["gmm.up", "gmm.down"]]}, "lies inside the span but is"),
        ({"layers": [LayerOverride("dense", offload=["gmm"])]}, "no such region"),
        ({"save": ["gmm", "gmm.up"]}, "a second time"),
        ({"recompute": ["gmm"]}, "no effect"),
        ({"save": ["gmm"], "as_one": [["all2all.in", "gmm.up"]]}, "is replayed"),
        ({"save": ["gmm"], "as_one": [["gmm.up"]]}, r"\[first, last\]"),
        ({"save": ["gmm"], "as_one": [["gmm.down", "gmm.up"]]}, "order of the forward"),
        (
            {
                "save": list(EXPERT_PATH),
                "as_one": [["all2all.in", "gmm.up"], ["gmm.up", "all2all.out"]],
            },
            "overlaps",
        ),
        ({"layers": [LayerOverride("9")]}, "layers 0-4"),
        ({"layers": [LayerOverride("moe")]}, "changes nothing"),
        ({"default": "save", "keep_outputs": True}, "no effect"),
        ({"layers": [LayerOverride("٢")]}, "not a layer selector"),
        ({"layers": [LayerOverride("3-1")]}, "backwards"),
        ({"layers": [LayerOverride("")]}, "not a layer selector"),
        ({"layers": [LayerOverride("moee")]}, "not a layer selector"),
        ({"layers": [LayerOverride("dense", save=["gmm"])]}, "no such region"),
        (
            {"layers": [LayerOverride("1", save=["gmm"]), LayerOverride("0-3", save=[])]},
            r"layers\[0\]='1': has no effect",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(kw, why):
    with pytest.raises(ConfigError, match=why):
        build_plan(settings(**kw), MODEL)


def test_a_selector_of_a_kind_the_model_lacks_is_refused():
    dense_only = ModelFingerprint("reference", ("dense",), REGIONS_OF_KIND, "d")
    with pytest.raises(ConfigError, match="selects no layer"):
        build_plan(settings(layers=[LayerOverride("moe")]), dense_only)


def test_an_empty_list_is_not_unset():
    plan = build_plan(
        settings(save=["gmm"], layers=[LayerOverride("1", save=[]), LayerOverride("2", recompute=[])]), MODEL
    )
    assert plan.layers[1].layout.action("gmm.up") == "recompute"
    assert plan.layers[2].layout.action("gmm.up") == "save"


def test_a_new_default_starts_from_its_own_exceptions():
    plan = build_plan(settings(save=["gmm"], layers=[LayerOverride("1", default="save")]), MODEL)
    assert plan.layers[1].layout.replays(plan.regions(1)) == ()


def test_regions_move_to_the_host_by_layer_and_group():
    plan = build_plan(
        settings(save=["all2all"], offload=["gmm", "attention.core"], layers=[LayerOverride("3", offload=[])]), MODEL
    )
    assert plan.offloads(1) == ("attention.core", "gmm.up", "gmm.down")
    assert plan.offloads(0) == ("attention.core",)
    assert plan.offloads(3) == ()
    assert "offload attention.core, gmm.up, gmm.down" in plan.in_words()
    assert from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    with pytest.raises(ConfigError, match=r"layout\.offload='attention\.core': layer 0: can't") as error:
        refuse_offload(plan, "can't")
    assert error.value.accepted == ["save", "recompute"]


def test_an_offload_of_everything_still_saves_the_choice_of_experts():
    plan = build_plan(settings(default="offload", recompute=["mlp.act"]), MODEL)
    assert plan.layers[0].layout.replays(plan.regions(0)) == ("mlp.act",)
    assert set(plan.regions(1)) - set(plan.offloads(1)) == set(ALWAYS_SAVED)


def test_a_plan_from_before_offload_is_read():
    plan = build_plan(settings(save=["gmm"]), MODEL)
    assert from_dict({**plan.to_dict(), "schema": 2}) == plan


def test_absent_regions_are_said_and_a_layout_of_only_those_is_refused():
    regions = {k: tuple(r for r in v if not r.startswith("all2all")) for k, v in REGIONS_OF_KIND.items()}
    reason = dict.fromkeys(GROUPS["all2all"], "expert parallel size is 1")
    one_card = ModelFingerprint("reference", KINDS, regions, "d", reason)
    plan = build_plan(settings(save=["all2all", "gmm"]), one_card)
    assert "no all2all.in: expert parallel size is 1" in plan.in_words()
    with pytest.raises(ConfigError, match="no effect"):
        build_plan(settings(save=["all2all"]), one_card)


def test_the_plan_says_every_layer_in_words():
    words = build_plan(settings(save=["gmm"], layers=[LayerOverride("dense", default="save")]), MODEL).in_words()
    assert "layer 0 (dense): mine+dense: nothing is replayed" in words
    assert "layer 1-3 (moe)" in words
    assert "layer 4 (mtp)" in words


def test_a_plan_survives_json_and_its_hash_tells_plans_apart():
    plan = build_plan(settings(save=["gmm"]), MODEL)
    again = from_dict(json.loads(json.dumps(plan.to_dict())))
    assert again == plan
    assert again.hash() == plan.hash() != build_plan(settings(), MODEL).hash()
    with pytest.raises(ConfigError, match="schema"):
        from_dict({**plan.to_dict(), "schema": 99})


def test_a_plan_from_before_the_regions_were_split_is_refused_by_name():
    with pytest.raises(ConfigError, match=r"plan\.schema=1: its regions router, attention\.qkv .*from its layout"):
        from_dict({**build_plan(settings(), MODEL).to_dict(), "schema": 1})


@given(st.sets(st.sampled_from(REGIONS)), st.sampled_from(["save", "recompute"]))
def test_every_region_of_every_layer_has_exactly_the_action_asked_for(named, default):
    other = "recompute" if default == "save" else "save"
    exceptions = sorted(named - set(ALWAYS_SAVED) if other == "recompute" else named)
    plan = build_plan(settings(default=default, **{other: exceptions}), MODEL)
    for layer in plan.layers:
        for region in plan.regions(layer.layer):
            want = "save" if region in ALWAYS_SAVED else other if region in exceptions else default
            assert layer.layout.action(region) == want


@given(st.sets(st.integers(0, 30), min_size=1))
def test_layer_words_mean_the_layers_they_came_from(ids):
    text = format_layers(sorted(ids))
    parts = [select_layers(part, ["moe"] * 31, "p") for part in text.split(", ")]
    assert sorted(i for part in parts for i in part) == sorted(ids)


@pytest.mark.parametrize(
    ("selector", "ids"),
    [("all", (0, 1, 2, 3, 4)), ("2", (2,)), (2, (2,)), ("1-2", (1, 2)), ("3-", (3, 4)), ("dense", (0,)), ("mtp", (4,))],
)
def test_layer_selectors(selector, ids):
    assert select_layers(selector, KINDS, "p") == ids
