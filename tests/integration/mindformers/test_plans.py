"""MindFormers' real Trainer and models: a plan changes no number, and what ran is what the plan says."""

from __future__ import annotations

import pytest

# One script does all the work, in the first test's time.
pytestmark = pytest.mark.timeout(600)

NAMES = [
    *(
        ("deepseek_v3", plan)
        for plan in (
            *("none", "full", "op_exclude", "region_exclude", "chain_exclude", "offload_experts", "others_saved"),
            *("odd_saved", "odd_replayed"),
        )
    ),
    *(("qwen3_moe", plan) for plan in ("full", "region_exclude", "attention_only")),
    ("qwen3_moe_fused", "op_exclude"),
    *(("qwen3", plan) for plan in ("full", "attention_only")),
    *(("deepseek_v3_mtp", plan) for plan in ("chain_exclude", "by_layer")),
]


@pytest.fixture(scope="module")
def results(script):
    return script("driver.py")


@pytest.mark.parametrize(("model", "plan"), NAMES)
def test_a_plan_changes_no_bit(results, model, plan):
    plain, with_plan = results[model]["plain"], results[model][plan]
    for what in ("losses", "grads", "params", "tokens", "aux"):
        assert with_plan[what] == plain[what], what


@pytest.mark.parametrize(("model", "plan"), NAMES)
def test_names_and_optimizer_stay(results, model, plan):
    seen = results[model][plan]
    assert seen["names_kept"]
    assert seen["optimizer_kept"]
    assert list(seen["params"]) == list(results[model]["plain"]["params"])


def test_the_comparison_compares_something(results):
    plain = results["deepseek_v3"]["plain"]
    assert len(plain["grads"][0]) > 20
    assert plain["grads"][0] != plain["grads"][1]
    assert plain["losses"][0] != plain["losses"][1]
    # Two micro-batches of 16 tokens that choose two experts each.
    assert [sum(counts) for counts in plain["tokens"]] == [64, 64]
    assert any(float.fromhex(value) > 0 for value in plain["aux"][0])


def test_regions_ran_and_replayed_as_the_layout_says(results):
    runs = results["deepseek_v3"]["op_exclude"]["report"]["runs"]
    assert runs["layers.1/gmm.up"] == {"forward": 2, "body": 2, "replays": 0, "spared": 0}
    assert runs["layers.1/router.gate"] == {"forward": 2, "body": 4, "replays": 2, "spared": 0}
    assert runs["layers.1/router.choose"] == {"forward": 2, "body": 2, "replays": 0, "spared": 0}
    assert runs["layers.1/compute.act"] == {"forward": 2, "body": 4, "replays": 2, "spared": 0}
    assert runs["layers.1/shared_experts.act"] == {"forward": 2, "body": 4, "replays": 2, "spared": 0}
    one = results["deepseek_v3"]["region_exclude"]["report"]["runs"]["layers.1/gmm.up..gmm.down"]
    assert one == {"forward": 2, "body": 2, "replays": 0, "spared": 0}


def test_offloaded_regions_moved_and_came_back(results):
    seen = results["deepseek_v3"]["offload_experts"]
    (host,) = seen["report"]["host"]
    assert host["moved"] > 0
    assert host["host_peak"] > 0
    assert not any(held["region"].endswith("gmm.up") for held in seen["report"]["memory"].get("held", ()))
    runs = seen["report"]["runs"]["layers.1/gmm.up"]
    assert runs == {"forward": 2, "body": 2, "replays": 0, "spared": 0}


def test_mtp_layers_take_a_plan_of_their_own(results):
    runs = results["deepseek_v3_mtp"]["by_layer"]["report"]["runs"]
    assert runs["layers.2/gmm.up"]["replays"] == 0
    assert runs["layers.1/gmm.up"]["replays"] == 2


# The additions of attention's and the feed forward part's branches; the token counter's addition, cast and write.
DENSE = {"AddExt": 2}
MOE = {"AddExt": 3, "Cast": 1, "write by InplaceCopy": 1}
MOE_WITH_SHARED_EXPERTS = MOE | {"AddExt": 4}


@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        ("deepseek_v3", [DENSE, MOE_WITH_SHARED_EXPERTS]),
        ("deepseek_v3_mtp", [DENSE, MOE_WITH_SHARED_EXPERTS, MOE_WITH_SHARED_EXPERTS]),
        ("qwen3_moe", [MOE, MOE]),
        ("qwen3_moe_fused", [MOE, MOE]),
        ("qwen3", [DENSE, DENSE]),
    ],
)
def test_regions_tile_each_block(results, model, blocks):
    assert list(results[model]["outside"].values()) == blocks


def test_saving_more_holds_more(results):
    held = {
        name: seen["report"]["memory"]["total_bytes"]
        for name, seen in results["deepseek_v3"].items()
        if "report" in seen
    }
    assert held["full"] < held["op_exclude"] <= held["chain_exclude"] < held["none"]


def test_full_holds_no_more_than_their_own_full_recompute_with_topk_saved(results):
    held = results["recomputes"]["held"]
    assert held["full"] <= held["theirs"] * 1.1  # of a resident set, which the allocator rounds
    assert held["theirs"] < held["none"] / 3


def test_their_linear_and_experts_hold_no_copy_of_a_weight(results):
    for held, weights in results["recomputes"]["weights"].values():
        assert held < weights / 4


def test_replays_of_their_blocks_end_early(results):
    for layout, (whole, early) in results["recomputes"]["operations"].items():
        assert early <= whole - 2 * 2, layout  # the additions of both blocks' residuals at least


def test_what_cannot_apply_is_in_the_receipt(results):
    receipt = results["deepseek_v3"]["op_exclude"]["report"]["receipts"][0]
    assert "parallel.expert=1" in receipt["not_applied"]["all2all.in"]
