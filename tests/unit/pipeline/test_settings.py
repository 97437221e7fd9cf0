"""Every combination of pipeline settings that can't run or has no effect is refused, with its path and reason."""

from __future__ import annotations

import pytest

from hp_memory.errors import ConfigError
from hp_memory.layout import REGIONS_OF_KIND, LayoutSettings, ModelFingerprint, build_plan
from hp_memory.pipeline.settings import PipelineSettings, StageLayout, check_plan, with_stage_layouts

GOOD = {"stages": 2, "microbatches": 4}
ZB = {**GOOD, "schedule": "zb_h1", "split_backward": True}


@pytest.mark.parametrize(
    ("settings", "path", "why"),
    [
        ({"stages": 0}, "pipeline.stages", "at least 1"),
        ({"stages": 2, "microbatches": 0}, "pipeline.microbatches", "at least 1"),
        ({**GOOD, "interleave": 0}, "pipeline.interleave", "at least 1"),
        ({**GOOD, "schedule": "1f1bb"}, "pipeline.schedule", "did you mean '1f1b'"),
        ({**GOOD, "session": "shared"}, "pipeline.session", "did you mean 'share'"),
        ({"split_backward": True}, "pipeline.split_backward", "no effect with pipeline.stages=1"),
        ({"prefire_recompute": True}, "pipeline.prefire_recompute", "no effect"),
        ({"overlap_b_f": True}, "pipeline.overlap_b_f", "no effect"),
        ({"layers_per_stage": [4]}, "pipeline.layers_per_stage", "no effect"),
        ({"layouts": [StageLayout("0")]}, "pipeline.layouts", "no effect"),
        ({**GOOD, "schedule": "interleaved_1f1b"}, "pipeline.interleave", "at least 2 chunks"),
        ({**GOOD, "interleave": 2}, "pipeline.interleave", "only interleaved_1f1b takes an interleave"),
        ({**ZB, "schedule": "zb_v", "interleave": 2}, "pipeline.interleave", "always has two chunks"),
        (
            {"stages": 2, "microbatches": 3, "schedule": "interleaved_1f1b", "interleave": 2},
            "pipeline.microbatches",
            "groups of the 2 stages",
        ),
        ({**GOOD, "schedule": "zb_h1"}, "pipeline.split_backward", "dw alone"),
        ({**ZB, "session": "release"}, "pipeline.session", "dx would release"),
        ({**GOOD, "prefire_recompute": True, "session": "none"}, "pipeline.session", "replay once more"),
        ({**GOOD, "schedule": "gpipe", "overlap_b_f": True}, "pipeline.overlap_b_f", "no forward beside"),
        ({**GOOD, "overlap_b_f": True, "overlap_p2p": True}, "pipeline.overlap_p2p", "isn't adapted"),
    ],
)
def test_refusals(settings, path, why):
    with pytest.raises(ConfigError, match=why) as error:
        PipelineSettings(**settings).validate()
    assert error.value.path == path


@pytest.mark.parametrize(
    "settings",
    [
        {},
        GOOD,
        ZB,
        {**ZB, "session": "none"},
        {**ZB, "session": "keep", "prefire_recompute": True},
        {**GOOD, "session": "release", "prefire_recompute": True},
        {**GOOD, "schedule": "interleaved_1f1b", "interleave": 2},
        {**ZB, "schedule": "zb_v"},
        {**GOOD, "overlap_b_f": True, "split_backward": True},
    ],
)
def test_accepted(settings):
    cfg = PipelineSettings(**settings)
    cfg.validate()
    assert cfg.build_schedule().placement == cfg.placement


def split(spec, layers=8, **settings):
    return PipelineSettings(**{**GOOD, **settings}, layers_per_stage=spec).layers_of_chunks(layers)


def test_layers_even_uneven_and_by_rank():
    assert split("auto", 4) == ((0, 1), (2, 3))
    assert split([1, 3], 4) == ((0,), (1, 2, 3))
    assert split(["0", "1-3"], 4) == ((0,), (1, 2, 3))


def test_layers_of_interleaved_and_v():
    interleaved = {"schedule": "interleaved_1f1b", "interleave": 2}
    assert split("auto", 8, **interleaved) == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert split(["0-1,4-5", "2-3,6-7"], 8, **interleaved) == split("auto", 8, **interleaved)
    assert split(["0-1,6-7", "2-5"], 8, schedule="zb_v") == ((0, 1), (2, 3), (4, 5), (6, 7))


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("even", "not a split"),
        (4, "not a split"),
        ([], "not a split"),
        ([1, "1-7"], "not a split"),
        ([3, 3], "adds up to 6 layers, the model has 8"),
        ([8, 0], "every chunk needs a layer"),
        ([8], "2 chunks"),
        (["0-7"], "2 ranks"),
        (["0-3", "3-7"], "layer 3 is on rank 0 already"),
        (["0-2", "4-7"], "no rank has layer 3"),
        (["0-3", "4-8"], "layers 0-7"),
        (["3-0", "4-7"], "must ascend"),
        (["0-a", "4-7"], "not a list of layers"),
        (["4-7", "0-3"], "visits ranks"),
        (["0-1,4-5", "2-3,6-7"], "comes after the last chunk"),
    ],
)
def test_a_split_that_loses_or_shares_layers_is_refused(spec, why):
    with pytest.raises(ConfigError, match=why):
        split(spec)


def test_an_uneven_model_needs_a_spelled_split():
    with pytest.raises(ConfigError, match=r"e\.g\. \[3, 2\]"):
        split("auto", 5)


def test_a_model_with_fewer_layers_than_chunks_is_refused():
    with pytest.raises(ConfigError, match="too few for 4 chunks"):
        split("auto", 3, schedule="zb_v")


def test_stage_layouts_become_layer_overrides():
    cfg = PipelineSettings(
        **ZB | {"schedule": "zb_v"}, layouts=[StageLayout("0", default="save"), StageLayout("1-", save=[])]
    )
    layout = with_stage_layouts(LayoutSettings(name="full", default="recompute"), cfg, 8)
    assert [(o.layers, o.default, o.save) for o in layout.layers] == [
        ("0-1", "save", None),
        ("6-7", "save", None),
        ("2-5", None, []),
    ]


def test_what_a_stage_layout_says_wrong_is_named_where_it_is_said():
    stages = [StageLayout("0", save=["gmm"]), StageLayout("1", save=["gmm", "gm"])]
    layout = with_stage_layouts(LayoutSettings("full", "recompute"), PipelineSettings(**GOOD, layouts=stages), 8)
    with pytest.raises(ConfigError, match=r"^pipeline\.layouts\[1\]\.save\[1\]='gm'"):
        build_plan(layout, MARK)


def test_a_stage_layout_that_a_later_one_covers_is_refused():
    stages = [StageLayout("0", save=["gmm"]), StageLayout("0-", save=["all2all"])]
    layout = with_stage_layouts(LayoutSettings("full", "recompute"), PipelineSettings(**GOOD, layouts=stages), 8)
    with pytest.raises(ConfigError, match=r"^pipeline\.layouts\[0\]='0-3': has no effect"):
        build_plan(layout, MARK)


def test_a_stage_of_several_chunks_has_an_effect_with_one_of_them():
    cfg = PipelineSettings(**ZB | {"schedule": "zb_v"}, layouts=[StageLayout("0", save=["gmm"])])
    own = LayoutSettings("full", "recompute", layers=[])
    assert build_plan(with_stage_layouts(own, cfg, 8), MARK).layers[7].layout.action("gmm.up") == "save"


MARK = ModelFingerprint("reference", ("moe",) * 8, REGIONS_OF_KIND, "0")


def plan(layout="recompute", dense=0, layers=8):
    kinds = ("dense",) * dense + ("moe",) * (layers - dense)
    mark = ModelFingerprint("reference", kinds, {k: REGIONS_OF_KIND[k] for k in set(kinds)}, "0")
    return build_plan(LayoutSettings(name="x", default=layout), mark)


@pytest.mark.parametrize(
    ("settings", "made", "path", "why"),
    [
        ({**GOOD, "stages": 3}, plan(), "pipeline.layers_per_stage", "don't divide"),
        ({**GOOD, "prefire_recompute": True}, plan("save"), "pipeline.prefire_recompute", "replays nothing"),
        ({**GOOD, "overlap_b_f": True}, plan(dense=8), "pipeline.overlap_b_f", "no experts"),
        (
            {**GOOD, "schedule": "interleaved_1f1b", "interleave": 2, "overlap_b_f": True},
            plan(dense=1),
            "pipeline.overlap_b_f",
            r"rank 0 have \[1, 2\] MoE layers",
        ),
    ],
)
def test_what_a_model_or_its_plan_does_not_allow(settings, made, path, why):
    with pytest.raises(ConfigError, match=why) as error:
        check_plan(PipelineSettings(**settings), made, 8)
    assert error.value.path == path


def test_uneven_stages_may_overlap_where_each_rank_has_one_chunk():
    check_plan(PipelineSettings(**GOOD, overlap_b_f=True, layers_per_stage=[3, 5]), plan(dense=1), 8)
    check_plan(PipelineSettings(), plan(), 7)


def test_a_stage_that_does_not_exist_is_refused():
    cfg = PipelineSettings(**GOOD, layouts=[StageLayout("2")])
    with pytest.raises(ConfigError, match="stages 0-1"):
        with_stage_layouts(LayoutSettings(name="full", default="recompute"), cfg, 4)
