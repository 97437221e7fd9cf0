"""One table of sizes, both ways: what is written for MindFormers is what is read from a model it built."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from hp_memory.config.app import compose, to_object
from hp_memory.mindformers.families import FAMILIES, SIZES, fingerprint, model_section, settings_of
from hp_memory.models.settings import ModelSettings, ParallelSettings

RECIPES = {"deepseek_v3": "deepseek_v3_671b", "qwen3_moe": "qwen3_30b_a3b", "glm4_moe": "glm_4_5"}
DENSE = ModelSettings(
    family="qwen3", num_layers=4, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, ffn_size=128,
    first_dense_layers=4, num_experts=0, top_k=0, expert_ffn_size=0, vocab_size=128, seq_length=32,
)  # fmt: skip


def model_of(name: str) -> ModelSettings:
    if name in RECIPES:
        return to_object(compose("train", [f"recipe={RECIPES[name]}"])).model
    return replace(DENSE, family=name)


@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_come_back_from_a_built_model(name):
    model, family = model_of(name), FAMILIES[name]
    section = model_section(model)
    built = {size.built: section[family.name_of(size)] for size in SIZES if family.name_of(size) in section}
    config = SimpleNamespace(**built, multi_latent_attention="mla" in family.parts, hidden_act=section["hidden_act"])
    assert fingerprint(settings_of(config, name), ParallelSettings()) == fingerprint(model, ParallelSettings())


def test_no_size_has_two_rows_and_no_name_two_meanings():
    names = [name for size in SIZES for name in size.names]
    assert len(names) == len(set(names))
    assert {size.ours for size in SIZES} <= set(ModelSettings.__dataclass_fields__)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_writes_and_defaults_sizes_that_exist(name):
    family = FAMILIES[name]
    known = {size.ours for size in SIZES}
    assert set(family.sizes) <= known
    assert set(family.names) <= known
    assert set(family.defaults) <= known
