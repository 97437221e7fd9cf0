"""MindFormers' own code on the meta device; one process finds everything."""

from __future__ import annotations

import pytest
import yaml


def test_the_parameters_are_the_published_671_billion(found):
    # DeepSeek-V3's technical report: 671B; its config.json gives 671,026,404,352 without the MTP layer.
    assert found["full"]["parameters"] == 671_026_404_352


@pytest.mark.parametrize("layout", ["none", "full", "op_exclude", "region_exclude", "chain_exclude"])
def test_what_the_installed_wrappers_keep_and_replay_is_what_the_rules_say(found, layout):
    assert found["full"]["checks"][layout] == {"dense": True, "moe": True, "mtp": True}


def test_the_order_of_the_layouts(found):
    peaks = {name: entry["peak"] for name, entry in found["full"]["peaks"].items()}
    assert peaks["full"] < peaks["op_exclude"] < peaks["region_exclude"] <= peaks["chain_exclude"] < peaks["none"]
    replayed = {name: entry["replayed"] for name, entry in found["full"]["peaks"].items()}
    assert replayed["none"] == 0 < replayed["op_exclude"] < replayed["full"] <= 1


def test_regions_tile_each_block_at_full_size_with_its_experts_spread(found):
    # Attention's branch, the experts' and the shared experts'; the token counter. No cast: weights are in bfloat16.
    moe = {"AddExt": 3, "InplaceAddExt": 1}
    assert found["full"]["outside"] == {"dense": {"AddExt": 2}, "moe": moe, "mtp": moe}


def test_flops_of_a_layer_are_those_of_its_products(found):
    tokens, hidden, ffn = 8192, 7168, 18432
    latent = hidden * (1536 + 512 + 64) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * hidden
    attention = 2 * 128 * 4096 * 4096 * (192 + 128)
    assert found["full"]["flops"]["dense"] == 2 * tokens * (latent + 3 * hidden * ffn) + attention


def test_no_gradient_gets_lost_on_the_meta_device(found):
    # A product's backward is two products; attention's is two and a half.
    assert all(1.95 < ratio < 2.3 for ratio in found["backward"].values()), found["backward"]


def test_it_takes_little_memory_and_a_new_layout_less_than_a_second(found):
    assert found["full"]["resident_mib"] < 1536
    # The median: this machine may be busy with something else for a moment.
    assert found["full"]["seconds"]["replan"][2] < 1


def test_local_shapes_follow_the_sizes_of_a_rank(found):
    shapes = found["shapes"]
    base = shapes["base"]
    assert shapes["half the sequences"]["held"] == pytest.approx(base["held"] / 2, rel=0.02)
    assert shapes["fewer experts' ranks"]["expert_parameters"] == 2 * base["expert_parameters"]
    for region in ("gmm.up", "compute.act", "gmm.down"):
        assert shapes["imbalance"]["regions"][region] == pytest.approx(2 * base["regions"][region], rel=1e-3)
    assert shapes["imbalance"]["regions"]["attention.core"] == base["regions"]["attention.core"]
    # Heads, sequence and rows are halved; the gathered rows before the projections aren't.
    assert shapes["tensor"]["regions"]["attention.core"] == pytest.approx(
        base["regions"]["attention.core"] / 2, rel=0.01
    )
    assert shapes["tensor"]["regions"]["gmm.up"] == pytest.approx(base["regions"]["gmm.up"] / 2, rel=0.05)
    assert shapes["tensor"]["held"] > base["held"] / 2


def test_context_parallel_ranks_share_the_sequence_and_what_attention_does(found):
    shapes = found["shapes"]
    base, colossal, ulysses = (shapes[name] for name in ("base", "colossal", "ulysses"))
    # 2 x 4096 tokens, 128 heads, bfloat16; queries and keys are 192 wide, values 128; 8 float32 statistics, twice.
    whole = {name: 2 * 4096 * 128 * width * 2 for name, width in {"q": 192, "k": 192, "v": 128, "out": 128}.items()}
    statistics = 2 * 4096 * 128 * 8 * 4 * 2
    assert base["regions"]["attention.core"] == sum(whole.values()) + statistics + 2
    for case in (colossal, ulysses):
        for region in ("attention.norm", "attention.out", "shared_experts.up"):
            assert case["regions"][region] == pytest.approx(base["regions"][region] / 4, rel=0.01)
        # One row of padding per expert isn't shared.
        assert case["regions"]["gmm.up"] == pytest.approx(base["regions"]["gmm.up"] / 4, rel=0.1)
        assert case["attention_flops"] == base["attention_flops"] / 4
    # Beside these the kernel keeps an empty result of one element.
    assert ulysses["regions"]["attention.core"] == (sum(whole.values()) + statistics) // 4 + 2
    own = whole["q"] + whole["out"] + statistics
    assert colossal["regions"]["attention.core"] == own // 4 + whole["k"] + whole["v"] + 2


def test_the_commands_end_as_they_should(found):
    assert found["commands"]["codes"] == {"dryrun": 0, "yaml": 0, "compare-run": 0, "search": 0, "nothing fits": 1}


def test_a_yaml_of_mindformers_gives_what_the_recipe_gives(found):
    mine, theirs = found["commands"]["stage"], found["commands"]["yaml_stage"]
    assert theirs["terms"] == mine["terms"]


def test_the_plan_that_was_found_fits_and_can_be_given_back(found):
    commands = found["commands"]
    assert commands["search"]["peak"] <= commands["search"]["budget"]
    assert commands["search"]["overrides"].startswith("layout=full")
    assert commands["plan"]["name"] == "search"
    assert {"search.html", "report.html", "timeline.png", "curve.png", "layout.yaml"} <= set(commands["files"])


def test_the_plan_that_was_found_is_put_into_the_users_own_file(found):
    before, after = found["commands"]["theirs"]
    written = yaml.safe_load(after)
    assert written["callbacks"][0]["plan"]["name"] == "search"
    assert written["recompute"] == {"mode": "None"}
    replaced = before[before.index("recompute:") : before.index("recompute_comm:")]
    assert set(before.splitlines()) - set(after.splitlines()) <= set(replaced.splitlines())


def test_what_is_not_modelled_is_refused_by_its_path(found):
    for path, words in found["refusals"].items():
        assert path.partition(",")[0] in words, (path, words)
