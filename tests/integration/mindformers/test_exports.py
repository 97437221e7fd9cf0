"""Exported recipes, read and validated by the real MindFormers 2.0."""

from __future__ import annotations

import pytest

# One script does all the work, in the first test's time.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def results(script):
    return script("exports.py")


def test_every_recipe_exports_for_the_callback_and_loads(results):
    files = {name: loaded for name, loaded in results["files"].items() if name.endswith("callback")}
    assert len(files) == 7
    for loaded in files.values():
        assert loaded["callbacks"][0]["type"] == "HPMemoryCallback"
        assert loaded["callbacks"][0]["plan"]["default"] == "recompute"
        assert loaded["recompute"]["mode"] == "None"


@pytest.mark.parametrize(
    ("recipe", "layers", "excluded"),
    [
        ("deepseek_v3_671b", ["0-61"], ["topk"]),
        ("qwen3_235b_a22b", ["0-93"], ["topk"]),
        ("qwen3_30b_a3b", ["0-47"], ["topk"]),
        ("tiny_deepseek_v3", ["0-2"], ["groupedmatmul", "topk"]),
        ("tiny_deepseek_v3_mtp", ["0-2"], ["groupedmatmul", "topk"]),
        ("tiny_qwen3_moe", ["0-1"], ["groupedmatmul", "topk"]),
    ],
)
def test_native_settings_survive_mindformers_own_reading(results, recipe, layers, excluded):
    loaded = results["files"][f"{recipe} mindformers-2.0"]
    assert loaded["recompute"]["full_recompute_layer"] == layers
    assert loaded["recompute"]["exclude_op"] == excluded
    assert not loaded["swap"]["enable"]


def test_parallel_sizes_arrive(results):
    parallelism = results["files"]["deepseek_v3_671b mindformers-2.0"]["parallelism"]
    assert parallelism["expert_parallel"] == 64
    assert parallelism["pipeline_parallel_layers_per_stage"][-1] == "60"
    assert len(parallelism["pipeline_parallel_layers_per_stage"]) == 16


def test_what_2_0_cannot_say_is_an_error(results):
    message = results["files"]["glm_4_5 mindformers-2.0"]
    assert message.startswith("error: layout.as_one")
    assert "to=mindformers-callback" in message


def test_mindformers_would_refuse_a_wrong_file(results):
    assert len(results["misspelt"]) == 3
    assert "Unknown configuration keys" in results["misspelt"][0]
