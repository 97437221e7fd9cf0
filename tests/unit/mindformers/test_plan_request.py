"""What a callback's ``plan`` may say."""

from __future__ import annotations

import json

import pytest

from hp_memory.errors import ConfigError
from hp_memory.layout import LayoutSettings, build_plan
from hp_memory.mindformers.families import fingerprint
from hp_memory.mindformers.plan_request import resolve
from hp_memory.models.settings import ModelSettings, ParallelSettings

SIZES = {
    "family": "qwen3_moe",
    "num_layers": 2,
    "hidden_size": 8,
    "num_heads": 2,
    "num_kv_heads": 1,
    "head_dim": 4,
    "ffn_size": 8,
    "num_experts": 4,
    "top_k": 2,
    "expert_ffn_size": 8,
    "vocab_size": 8,
    "seq_length": 8,
}
MARK = fingerprint(ModelSettings(**SIZES), ParallelSettings())
LAYOUT = {"name": "mine", "default": "recompute", "save": ["gmm"]}
PLAN = build_plan(LayoutSettings(**LAYOUT), MARK)


def test_inline_by_name_and_by_path_are_one_plan(tmp_path):
    as_yaml, as_json = tmp_path / "layout.yaml", tmp_path / "plan.json"
    as_yaml.write_text("name: mine\ndefault: recompute\nsave: [gmm]\n")
    as_json.write_text(json.dumps(PLAN.to_dict()))
    for request in (LAYOUT, PLAN.to_dict(), str(as_yaml), str(as_json)):
        assert resolve(request, MARK).hash() == PLAN.hash()
    assert resolve("op_exclude", MARK).layers[0].layout.name == "op_exclude"


def test_a_recipe_gives_its_layout():
    assert resolve("tiny_qwen3_moe", MARK).hash() == resolve("op_exclude", MARK).hash()


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ("op_exclud", "did you mean 'op_exclude'"),
        ("no/such.yaml", "no such file"),
        ({"name": "x", "default": "recompute", "saves": ["gmm"]}, "saves"),
        ({"name": "x"}, "default"),
        ({"name": "x", "default": "recompute", "save": ["all2all"]}, "exchanges no tokens"),
    ],
)
def test_a_bad_request_is_named(request_, text):
    with pytest.raises(ConfigError, match=text):
        resolve(request_, MARK)


def test_a_plan_of_another_model_is_refused():
    other = fingerprint(ModelSettings(**SIZES | {"hidden_size": 16}), ParallelSettings())
    with pytest.raises(ConfigError, match="another model"):
        resolve(PLAN.to_dict(), other)


def test_a_plan_of_other_parallel_sizes_is_refused():
    spread = fingerprint(ModelSettings(**SIZES), ParallelSettings(data=2, expert=2))
    with pytest.raises(ConfigError, match=r"fingerprint\.regions"):
        resolve(PLAN.to_dict(), spread)
