"""MindFormers' real Trainer and models: a plan changes no number, and what ran is what the plan says."""

from __future__ import annotations

import pytest

# One script does all the work, in the first test's time.
pytestmark = pytest.mark.timeout(600)

NAMES = [
    *(
        ("deepseek_v3", plan)
        for plan in ("none", "full", "op_exclude", "region_exclude", "chain_exclude", "others_saved")
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
    assert runs["layers.1/gmm.up"] == {"forward": 2, "body": 2, "replays": 0}
    assert runs["layers.1/router"] == {"forward": 2, "body": 2, "replays": 0}
    assert runs["layers.1/compute.act"] == {"forward": 2, "body": 4, "replays": 2}
    assert runs["layers.1/shared_experts"] == {"forward": 2, "body": 4, "replays": 2}
    one = results["deepseek_v3"]["region_exclude"]["report"]["runs"]["layers.1/gmm.up..gmm.down"]
    assert one == {"forward": 2, "body": 2, "replays": 0}


def test_mtp_layers_take_a_plan_of_their_own(results):
    runs = results["deepseek_v3_mtp"]["by_layer"]["report"]["runs"]
    assert runs["layers.2/gmm.up"]["replays"] == 0
    assert runs["layers.1/gmm.up"]["replays"] == 2


def test_saving_more_holds_more(results):
    held = {
        name: seen["report"]["memory"]["total_bytes"]
        for name, seen in results["deepseek_v3"].items()
        if "report" in seen
    }
    assert held["full"] < held["op_exclude"] <= held["chain_exclude"] < held["none"]


def test_what_cannot_apply_is_in_the_receipt(results):
    receipt = results["deepseek_v3"]["op_exclude"]["report"]["receipts"][0]
    assert "parallel.expert=1" in receipt["not_applied"]["all2all.in"]
