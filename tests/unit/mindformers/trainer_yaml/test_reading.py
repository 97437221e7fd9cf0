"""Files with the keys of MindFormers' published ones; whatever in a file is refused, all at once, by line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hp_memory.errors import ConfigError, ConfigErrors
from hp_memory.layout import GROUPS, build_plan
from hp_memory.mindformers.families import fingerprint
from hp_memory.mindformers.trainer_yaml.reading import Reading, read
from hp_memory.models.settings import ParallelSettings

DATA = Path(__file__).parents[3] / "data" / "mindformers"
PYNATIVE = yaml.safe_load((DATA / "deepseek_1b_pynative.yaml").read_text())
GRAPH = yaml.safe_load((DATA / "qwen3_32b.yaml").read_text())


def write(folder: Path, data: dict, **sections: dict) -> str:
    changed = {**data, **{name: {**data.get(name, {}), **keys} for name, keys in sections.items()}}
    (folder / "theirs.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
    return str(folder / "theirs.yaml")


def model_config(**keys: object) -> dict:
    return {"model_config": {**GRAPH["model"]["model_config"], **keys}}


def replayed(reading: Reading) -> list[int]:
    """The layers that are replayed, in whole or in part."""
    plan = plan_of(reading)
    return [layer.layer for layer in plan.layers if layer.layout.replays(plan.regions(layer.layer))]


def plan_of(reading: Reading):
    return build_plan(reading.layout, fingerprint(reading.model.model, reading.spread.parallel))


def test_671b_takes_its_sizes_from_the_model_class():
    found = read(str(DATA / "deepseek_671b.yaml"))
    model, spread = found.model.model, found.spread
    assert (model.num_heads, model.num_experts, model.q_lora_rank, model.first_dense_layers) == (128, 256, 1536, 3)
    assert spread.parallel == ParallelSettings(data=4, tensor=8, expert=32, pipeline=8, fsdp=4)
    assert spread.pipeline.layers_per_stage == [4] * 15 + [1]
    assert (spread.pipeline.schedule, spread.pipeline.interleave) == ("interleaved_1f1b", 2)
    assert (spread.shard, spread.optimizer_on_host, found.model.parameters_dtype) == ("optim_params", True, "float32")
    assert replayed(found) == list(range(62))
    assert any("n_routed_experts" in note for note in found.document.notes)


def test_12b_over_16_stages():
    found = read(str(DATA / "deepseek_12b_pp16.yaml"))
    assert found.spread.pipeline.layers_per_stage == [1] * 16
    assert (found.model.model.num_experts, found.model.model.v_head_dim) == (64, 192)


def test_1b_asks_for_the_devices_and_takes_the_length_of_the_dataset():
    with pytest.raises(ConfigError, match=r"pynative.yaml:13: parallelism.data_parallel_shard=-1: .* devices=N"):
        read(str(DATA / "deepseek_1b_pynative.yaml"))
    found = read(str(DATA / "deepseek_1b_pynative.yaml"), devices=8)
    assert found.spread.parallel == ParallelSettings(data=8, fsdp=8)
    assert (found.model.model.seq_length, found.model.model.activation) == (4096, "fusedswiglu")
    assert found.model.model.shared_experts == 2  # one MLP of 2048, in experts of 1024
    assert replayed(found) == [0, 1, 2, 3]


def test_qwen3_32b_moves_layers_by_offset_and_replays_by_stage():
    found = read(str(DATA / "qwen3_32b.yaml"))
    assert found.spread.pipeline.layers_per_stage == [15, 15, 17, 17]
    assert replayed(found) == [*range(15), *range(15, 23)]
    assert any("vocab_emb_dp" in note for note in found.document.notes)


def test_qwen3_30b_takes_its_sizes_from_the_config_json_beside_it(tmp_path):
    found = read(str(DATA / "qwen3_30b" / "pretrain.yaml"))
    assert (found.model.model.family, found.model.model.num_layers, found.model.model.head_dim) == (
        "qwen3_moe",
        48,
        128,
    )
    alone = tmp_path / "pretrain.yaml"
    alone.write_text((DATA / "qwen3_30b" / "pretrain.yaml").read_text())
    with pytest.raises(ConfigError, match=r"no config\.json of the model"):
        read(str(alone))


def test_every_finding_comes_at_once_with_its_line(tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_text(
        "training: {local_batch_sise: 2, global_batch_size: 3}\n"
        "parallelism: {data_parallel_shard: 2, pipeline_paralel: 4}\n"
        "recompte: {mode: full}\n"
        "optimizer: {type: SGD}\n"
        "model: {model_type: qwen3, hidden_dropout: 0.0, fancy: 1, num_heads: two}\n"
        "callbacks:\n  - type: HPMemoryCalback\n"
    )
    with pytest.raises(ConfigErrors) as error:
        read(str(file))
    found = str(error.value)
    for line, key, hint in (
        (1, "training.local_batch_sise", "did you mean 'local_batch_size'"),
        (1, "training.global_batch_size", "isn't a multiple"),
        (2, "parallelism.pipeline_paralel", "did you mean 'pipeline_parallel'"),
        (3, "recompte", "did you mean 'recompute'"),
        (4, "optimizer.type", "AdamW"),
        (5, "model.fancy", "ignore=[model.fancy]"),
        (5, "model.num_heads", "whole number"),
        (7, "callbacks.0.type", "did you mean 'HPMemoryCallback'"),
    ):
        assert any(f"bad.yaml:{line}: {key}=" in text and hint in text for text in found.splitlines()), (key, found)
    assert found.endswith("8 settings are refused")


@pytest.mark.parametrize(
    ("sections", "path", "text"),
    [
        ({"parallelism": {"cpu_offload": True}}, "parallelism.cpu_offload", "accepted: False"),
        ({"parallelism": {"data_parallel_shard": 3}}, "parallelism.data_parallel_shard", "doesn't divide"),
        ({"parallelism": {"tensor_parallel": 2}}, "parallelism.enable_loss_parallel", "vocabulary"),
        ({"parallelism": {"pipeline_parallel": 3}}, "parallelism", "isn't a multiple"),
        ({"parallelism": {"expert_parallel": 3}}, "parallelism.expert_parallel", "must divide"),
        ({"training": {"rampup_batch_size": [1, 1, 8]}}, "training.rampup_batch_size", "grows"),
        ({"model": {"moe_shared_expert_intermediate_size": 1500}}, "moe_shared_expert", "multiples"),
        ({"model": {"moe_layer_freq": 2}}, "model.moe_layer_freq", "dense layers first"),
        ({"model": {"chunk_loss_num": 4}}, "model.chunk_loss_num", "pieces"),
        ({"model": {"num_layers": 16}}, "model.num_layers", "MindFormers refuses both"),
        ({"model": {"model_type": "telechat3"}}, "model.model_type", "docs/extending.md"),
        ({"model": {"n_group": 3}}, "model.n_group", "must divide"),
        ({"recompute": {"full_recompute_layer": ["0-99"]}}, "full_recompute_layer", "layers 0-16"),
        ({"recompute": {"full_recompute_layer": ["3", "1"]}}, "full_recompute_layer", "ascending"),
        ({"swap": {"enable": True}}, "swap.enable", "isn't modelled"),
    ],
)
def test_what_is_not_modelled_is_refused(tmp_path, sections, path, text):
    with pytest.raises(ConfigErrors, match=text) as error:
        read(write(tmp_path, PYNATIVE, **sections), devices=8)
    assert path in str(error.value)


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ({"parallel_config": {"use_seq_parallel": False}}, "use_seq_parallel"),
        ({"parallel_config": {"seq_split_num": 2}}, "seq_split_num"),
        ({"parallel": {"pipeline_config": {"pipeline_scheduler": "seqvpp"}}}, "pipeline_scheduler"),
        ({"model": model_config(offset=[0, 0, 0])}, "list of 4 numbers"),
        ({"model": model_config(offset=[1, 1, 1, 1])}, "model's 64"),
        ({"model": model_config(pp_interleave_num=2)}, "pipeline_interleave"),
        ({"recompute_config": {"recompute": [1, 2]}}, "4 numbers"),
        ({"recompute_config": {"select_recompute": True}}, "single operations"),
        ({"moe_config": {"expert_num": 4}}, "legacy"),
    ],
)
def test_what_is_not_modelled_of_the_graph_trainer_is_refused(tmp_path, sections, text):
    with pytest.raises(ConfigErrors, match=text):
        read(write(tmp_path, GRAPH, **sections))


def test_devices_must_agree_with_a_file_that_says_them(tmp_path):
    with pytest.raises(ConfigErrors, match="devices=8, but"):
        read(str(DATA / "qwen3_32b.yaml"), devices=8)
    assert read(str(DATA / "qwen3_32b.yaml"), devices=16).spread.parallel.world_size == 16


def test_a_dense_first_pattern_is_read(tmp_path):
    found = read(write(tmp_path, PYNATIVE, model={"moe_layer_freq": [0] * 5 + [1] * 11}), devices=8)
    assert found.model.model.first_dense_layers == 5


def test_known_harmless_keys_can_be_named(tmp_path):
    file = write(tmp_path, PYNATIVE | {"callbacks": [{"type": "Mine"}]}, model={"fancy": 1})
    with pytest.raises(ConfigErrors, match=r"ignore=\[callbacks.Mine\]"):
        read(file, 8)
    read(file, 8, ["callbacks.Mine", "model.fancy"])


def select(folder, mode="select", **settings):
    recompute = {"mode": mode, "full_recompute_layer": None, **settings}
    found = read(write(folder, PYNATIVE, recompute=recompute), devices=8)
    plan = plan_of(found)
    return [set(layer.layout.replays(plan.regions(layer.layer))) for layer in plan.layers]


ATTENTION = {*GROUPS["attention.qkv"], "attention.core", "attention.out"}


def test_selected_modules_add_up_in_any_order(tmp_path):
    both = {"self_attention": ["0-7"], "mlp.experts": ["1-3"]}
    first = select(tmp_path, select_module=both)
    assert first == select(tmp_path, select_module=dict(reversed(both.items())))
    assert first[0] == ATTENTION == first[5]
    assert first[2] > ATTENTION
    assert "gmm.up" in first[2]
    assert not first[8]


def test_selected_modules_are_regular_expressions(tmp_path):
    found = select(
        tmp_path,
        select_module={r"self_attention\.(core_attention|linear_proj)": ["0-1"], "(input|pre_mlp)_layernorm": ["4"]},
    )
    assert found[0] == {"attention.core", "attention.out"}
    assert found[4] == {"attention.norm", "mlp.norm"}


def test_part_of_a_region_is_refused_unless_the_whole_is_replayed_too(tmp_path):
    with pytest.raises(ConfigErrors, match="less than a region"):
        select(tmp_path, select_module={r"self_attention\.q_layernorm": ["0"]})
    assert select(tmp_path, select_module={"self_attention.*": ["0"]})[0] == ATTENTION


def test_a_matrix_of_attention_is_a_region_and_a_routers_replay_leaves_its_decision(tmp_path):
    found = select(tmp_path, select_module={r"self_attention\.linear_(qb|kvb)": ["0"], r"mlp\.router": ["1"]})
    assert found[0] == {"attention.q_up", "attention.kv_up"}
    assert found[1] == {"router.gate"}


def test_each_selected_module_is_a_boundary_the_outermost_of_nested_ones(tmp_path):
    paths = {"self_attention.*": ["0-1"], r"self_attention\.linear_proj": ["0-1"], "(input|pre_mlp)_layernorm": ["1-2"]}
    recompute = {"mode": "select", "select_module": paths, "full_recompute_layer": ["2"]}
    found = read(write(tmp_path, PYNATIVE, recompute=recompute), devices=8).modules
    assert [set(module) for module in found[0]] == [ATTENTION]
    assert [set(module) for module in found[1]] == [{"attention.norm"}, ATTENTION, {"mlp.norm"}]
    assert set(found) == {0, 1}


def test_excluded_operations_count_in_selected_modules_too(tmp_path):
    found = select(tmp_path, select_module={"mlp.experts": ["1"]}, exclude_op=["GroupedMatmul"])
    assert found[1] == {"dispatch.permute", "compute.act", "combine.unpermute"}


def test_layers_in_full_win_over_selected_modules_and_mode_full_leaves_these_out(tmp_path):
    both = select(tmp_path, select_module={"self_attention": ["0-3"]}, full_recompute_layer=["0-1"])
    assert both[0] > ATTENTION
    assert both[3] == ATTENTION
    full = select(tmp_path, "full", select_module={"self_attention": ["0-3"]}, full_recompute_layer=["0-1"])
    assert not full[3]


def test_mtp_layers_are_the_last_ones_and_hold_a_block(tmp_path):
    found = select(tmp_path, select_module={"transformer_layer.self_attention": ["16"]})
    assert found[16] == ATTENTION
    with pytest.raises(ConfigErrors, match="no region means this path"):
        select(tmp_path, select_module={"self_attention": ["16"]})


def test_a_file_that_is_none_of_theirs_is_refused(tmp_path):
    for text, why in (("- a\n", "no sections"), ("a: [\n", "can't be read"), ("modle: {}\n", "'modle' like")):
        (tmp_path / "x.yaml").write_text(text)
        with pytest.raises(ConfigError, match=why):
            read(str(tmp_path / "x.yaml"))


def test_aliases_that_multiply_are_read_once(tmp_path):
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    (tmp_path / "x.yaml").write_text("\n".join([*lines, "model: {model_type: qwen3}", ""]))
    with pytest.raises(ConfigErrors, match="isn't a key"):
        read(str(tmp_path / "x.yaml"))
