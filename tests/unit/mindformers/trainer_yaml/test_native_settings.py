"""Plans in MindFormers' own words, per version; and what a version can't say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hp_memory.errors import ConfigError
from hp_memory.layout import LayerOverride, LayoutSettings, ModelFingerprint, build_plan
from hp_memory.mindformers.families import fingerprint
from hp_memory.mindformers.trainer_yaml.native_settings import sections
from hp_memory.models.settings import ModelSettings, ParallelSettings

MODEL = ModelSettings(
    family="deepseek_v3",
    num_layers=4,
    hidden_size=8,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    ffn_size=8,
    first_dense_layers=1,
    num_experts=4,
    top_k=2,
    expert_ffn_size=8,
    shared_experts=1,
    vocab_size=8,
    seq_length=8,
    mtp_layers=1,
)
ALONE = fingerprint(MODEL, ParallelSettings())
SPREAD = fingerprint(MODEL, ParallelSettings(data=2, expert=2))


def recompute(version: str, mark: ModelFingerprint = SPREAD, **layout: object) -> dict:
    return sections(build_plan(LayoutSettings(name="x", **layout), mark), version)["recompute"]


def test_nothing_is_replayed():
    assert recompute("2.0", default="save") == {"mode": "None"}
    assert recompute("2.1", default="save") == {"mode": "None"}


def test_full_keeps_the_routing_decision_in_both_versions():
    for version in ("2.0", "2.1"):
        settings = recompute(version, default="recompute")
        assert settings["mode"] == "full"
        assert settings["full_recompute_layer"] == ["0-4"]  # the MTP layer is layer 4
    assert recompute("2.0", default="recompute")["exclude_op"] == ["topk"]
    assert recompute("2.1", default="recompute")["exclude_op"] == {
        "mlp.router.topk": ["1-3"],
        "mlp.experts.expert_counts.alltoall": ["1-3"],
        "transformer_layer.mlp.router.topk": ["4"],
        "transformer_layer.mlp.experts.expert_counts.alltoall": ["4"],
    }


def test_2_0_names_operations():
    settings = recompute("2.0", default="recompute", save=["all2all", "gmm"])
    assert settings["exclude_op"] == ["alltoall", "groupedmatmul", "topk"]


def test_2_1_names_paths():
    settings = recompute("2.1", default="recompute", save=["all2all", "shared_experts"])
    assert settings["exclude_op"]["mlp.experts.input.alltoallsingle"] == ["1-3"]
    assert settings["exclude_op"]["transformer_layer.mlp.shared_experts"] == ["4"]


def test_2_1_saves_the_router_as_one_where_its_scores_are_saved_too():
    settings = recompute("2.1", default="recompute", save=["router"])
    assert settings["exclude_op"]["mlp.router"] == ["1-3"]
    assert "mlp.router.topk" not in settings["exclude_op"]


def test_2_1_saves_what_latent_attention_projects_as_one():
    latent = fingerprint(replace(MODEL, kv_lora_rank=4), ParallelSettings())
    one = recompute("2.1", latent, default="recompute", save=["attention.qkv"])["exclude_op"]
    assert one["self_attention.get_query_key_value_tensors"] == ["0-3"]
    up = recompute("2.1", latent, default="recompute", save=["attention.q_up", "attention.kv_up"])["exclude_op"]
    assert {"self_attention.linear_qb", "self_attention.linear_kvb"} < set(up)
    with pytest.raises(ConfigError, match=r"attention\.rope"):
        recompute("2.1", default="recompute", save=["attention.qkv"])


def test_2_0_replays_up_projections_by_their_matrices():
    latent = fingerprint(replace(MODEL, kv_lora_rank=4), ParallelSettings())
    settings = recompute("2.0", latent, default="save", recompute=["attention.q_up", "attention.kv_up"])
    assert settings["select_module"]["self_attention.linear_qb"] == ["0-3"]


def test_2_1_saves_the_grouped_matmuls_with_the_activation_as_one():
    layout = {"default": "recompute", "save": ["gmm", "compute.act"]}
    assert recompute("2.1", ALONE, **layout)["exclude_op"]["mlp.experts.experts_forward"] == ["1-3"]


def test_parts_of_a_saved_block():
    settings = recompute("2.0", default="save", recompute=["attention.qkv", "attention.core", "attention.out"])
    assert settings == {
        "mode": "select",
        "select_module": {"self_attention": ["0-3"], "transformer_layer.self_attention": ["4"]},
    }


def test_replayed_experts_take_their_exchanges_with_them():
    """The experts' cell dispatches and combines in its hooks: it can't be replayed without the exchanges."""
    experts = ["dispatch.permute", "gmm", "compute.act", "combine.unpermute"]
    alone = recompute("2.0", ALONE, default="save", recompute=experts)
    assert alone["select_module"]["mlp.experts"] == ["1-3"]
    with pytest.raises(ConfigError, match="no path to replay dispatch"):
        recompute("2.0", default="save", recompute=experts)
    whole = recompute("2.0", default="save", recompute=["dispatch.permute", "all2all", "compute", "gmm", "combine"])
    assert whole["select_module"]["mlp.experts"] == ["1-3"]


def test_layers_with_layouts_of_their_own():
    layout = {"default": "save", "layers": [LayerOverride(layers="0-1", default="recompute")]}
    settings = recompute("2.1", **layout)
    assert settings["full_recompute_layer"] == ["0-1"]
    assert settings["exclude_op"]["mlp.router.topk"] == ["1"]


@pytest.mark.parametrize(
    ("version", "layout", "region"),
    [
        ("2.0", {"save": ["gmm.up"]}, "gmm.up"),
        ("2.0", {"save": ["all2all.in"]}, "all2all.in"),
        ("2.0", {"save": ["compute"]}, "compute.resort"),
        ("2.0", {"save": ["attention.qkv"]}, "attention.qkv_proj"),
        ("2.0", {"save": ["router"]}, "router.gate"),
        ("2.1", {"save": ["attention.rope"]}, "attention.rope"),
        ("2.1", {"save": ["gmm"]}, "gmm.up"),
        ("2.1", {"save": ["dispatch.permute"]}, "dispatch.permute"),
        ("2.1", {"save": ["all2all", "compute", "gmm"]}, "compute.resort"),
    ],
)
def test_what_a_version_cannot_say_suggests_the_callback(version, layout, region):
    with pytest.raises(ConfigError, match="to=mindformers-callback") as error:
        recompute(version, default="recompute", **layout)
    assert region in str(error.value)


def test_2_0_has_one_list_for_all_layers():
    override = LayerOverride(layers="2", save=["gmm"])
    with pytest.raises(ConfigError, match="same operations in every replayed layer"):
        recompute("2.0", default="recompute", layers=[override])


def test_2_0_would_exclude_attention_in_dense_layers_too():
    override = LayerOverride(layers="dense", save=[])
    with pytest.raises(ConfigError, match="same operations in every replayed layer"):
        recompute("2.0", default="recompute", save=["attention.core"], layers=[override])


def test_a_layer_on_the_host_is_a_swapped_layer():
    layout = LayoutSettings("x", "save", layers=[LayerOverride("0-1", default="offload")])
    found = sections(build_plan(layout, ALONE), "2.0")
    assert found["swap"] == {"enable": True, "default_prefetch": 1, "layer_swap": [{"layers": ["0-1"]}]}
    assert found["recompute"] == {"mode": "None"}


def test_parts_of_a_layer_on_the_host_are_swapped_by_their_paths():
    layout = LayoutSettings("x", "save", layers=[LayerOverride("0-2", offload=["attention.core"])])
    for version in ("2.0", "2.1"):
        swap = sections(build_plan(layout, ALONE), version)["swap"]
        assert swap["op_swap"] == [{"op_name": "self_attention.core_attention", "layers": ["0-2"]}]


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ({"default": "recompute", "offload": ["gmm"]}, r"layout\.offload='gmm.up': .*layer 1, which is replayed"),
        ({"default": "save", "layers": [LayerOverride("mtp", offload=["gmm"])]}, "no MTP layer"),
        ({"default": "save", "layers": [LayerOverride("3", offload=["gmm"])]}, "the last layer can't"),
        ({"default": "save", "layers": [LayerOverride("1", offload=["compute.act"])]}, "alone, the callback"),
    ],
)
def test_what_cannot_be_swapped_suggests_the_callback(layout, why):
    with pytest.raises(ConfigError, match=why):
        sections(build_plan(LayoutSettings("x", **layout), ALONE), "2.0")
