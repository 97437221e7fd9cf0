"""Finding regions in objects shaped like MindFormers' expert parallelism; the integration tests have the real ones."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hp_memory.errors import ConfigError, InstallError
from hp_memory.layout import REGIONS
from hp_memory.mindformers import names
from hp_memory.mindformers import region_map as mindformers_map
from hp_memory.mindformers.experts_map import ExpertsPath
from hp_memory.mindformers.families import fingerprint, model_section, settings_of
from hp_memory.mindformers.seams import part_of
from hp_memory.models.settings import ModelSettings, ParallelSettings


def exchange(version: str, without: str = "", **attributes: object) -> object:
    """An ``ExpertParallel`` with the methods of a version."""
    places = (*names.EXCHANGE[version], *names.EXCHANGE_BACK)
    methods = {name: lambda *_: None for _, name in places if name != without}
    return type("ExpertParallel", (), methods | attributes)()


@pytest.mark.parametrize("version", ["2.0", "2.1"])
def test_a_version_is_told_by_its_methods(version):
    before, after = mindformers_map._exchange_sites(exchange(version), "experts.ExpertParallel")
    assert [site.attr for site in before] == [name for _, name in names.EXCHANGE[version]]
    regions = {site.regions[0] for site in (*before, *after)}
    assert regions == {
        *("dispatch.permute", "dispatch.counts", "all2all.in", "compute.resort"),
        *("combine.unsort", "all2all.out", "combine.unpermute"),
    }
    assert regions <= set(REGIONS)


def test_a_renamed_method_is_named_with_its_path():
    with pytest.raises(InstallError, match=r"layers\.3\.mlp\.experts\._resort_after_dispatch: this MindFormers has no"):
        mindformers_map._exchange_sites(exchange("2.0", without="_resort_after_dispatch"), "layers.3.mlp.experts")


def test_split_sizes_read_on_a_second_stream_are_refused():
    with pytest.raises(InstallError, match="expert_parallel_async_d2h"):
        mindformers_map._exchange_sites(exchange("2.1", enable_async_d2h=True), "experts")


def test_a_dispatcher_without_regions_is_refused_by_name():
    derived = type("DeredundancyExpertParallel", (type(exchange("2.0")),), {})()
    with pytest.raises(InstallError, match="DeredundancyExpertParallel"):
        mindformers_map._exchange_sites(derived, "experts")


class Experts:
    """Shaped like ``GroupedMLP``."""

    def experts_forward(self, tokens, ends):
        return self.activation_func(self.cast(tokens, self.compute_dtype))


class OtherExperts:
    def experts_forward(self, tokens, ends):
        return self.fused_everything(tokens, ends)


def test_the_experts_forward_is_replaced_once():
    experts = Experts()
    path = part_of(experts, ExpertsPath, "mlp.experts")
    assert isinstance(path, ExpertsPath)
    assert part_of(experts, ExpertsPath, "mlp.experts") is path
    assert experts.experts_forward == path.forward


def test_experts_that_compute_in_another_way_are_refused():
    with pytest.raises(InstallError, match=r"mlp\.experts\.experts_forward: .*uses fused_everything"):
        part_of(OtherExperts(), ExpertsPath, "mlp.experts")


def test_a_method_that_something_else_has_replaced_is_refused():
    experts = Experts()
    experts.experts_forward = print
    with pytest.raises(InstallError, match=r"mlp\.experts\.experts_forward is replaced by <built-in function print>"):
        part_of(experts, ExpertsPath, "mlp.experts")


class Derived(Experts):
    def experts_forward(self, tokens, ends):
        return super().experts_forward(tokens, ends)


def test_what_a_derived_class_adds_is_seen():
    with pytest.raises(InstallError, match=r"it uses .*super"):
        part_of(Derived(), ExpertsPath, "mlp.experts")


SETTINGS = ModelSettings(
    family="qwen3_moe",
    num_layers=2,
    hidden_size=8,
    num_heads=2,
    num_kv_heads=1,
    head_dim=4,
    ffn_size=8,
    num_experts=4,
    top_k=2,
    expert_ffn_size=8,
    vocab_size=8,
    seq_length=8,
)


def test_regions_depend_on_expert_parallelism():
    alone, spread = (fingerprint(SETTINGS, ParallelSettings(data=n, expert=n)) for n in (1, 2))
    assert "all2all.in" in alone.absent
    assert "all2all.in" not in alone.regions["moe"]
    assert "all2all.in" in spread.regions["moe"]
    assert not spread.absent
    assert "shared_experts.up" not in spread.regions["moe"]
    assert alone.digest == spread.digest


def test_an_unknown_family_is_refused():
    with pytest.raises(ConfigError, match="did you mean 'qwen3_moe'"):
        fingerprint(ModelSettings(family="qwen3moe"), ParallelSettings())


def test_sizes_are_read_back_from_a_transformer_config():
    config = SimpleNamespace(
        num_layers=2,
        hidden_size=8,
        num_attention_heads=2,
        num_query_groups=1,
        kv_channels=4,
        ffn_hidden_size=8,
        first_k_dense_replace=0,
        num_moe_experts=4,
        moe_router_topk=2,
        moe_ffn_hidden_size=8,
        shared_expert_num=0,
        vocab_size=8,
        seq_length=8,
        mtp_num_layers=None,
        rotary_base=10000.0,
        layernorm_epsilon=1e-6,
        moe_router_score_function="softmax",
        moe_router_num_groups=None,
        moe_router_group_topk=None,
        moe_router_topk_scaling_factor=None,
    )
    marks = [fingerprint(settings, ParallelSettings()) for settings in (SETTINGS, settings_of(config, "qwen3_moe"))]
    assert marks[0] == marks[1]


def test_the_model_section_says_who_builds_qwen3_moe():
    assert model_section(SETTINGS)["architectures"] == "HPMemoryQwen3MoeForCausalLM"
