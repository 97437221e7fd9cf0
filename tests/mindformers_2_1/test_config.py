"""Exports for MindFormers 2.1, read by its own config classes in an environment of their own: see the Makefile."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from hp_memory.commands import export
from hp_memory.config import app as hydra_app
from hp_memory.config import schema as config

FILES = {
    "full": ("qwen3_30b_a3b", ()),
    "one_body": ("tiny_deepseek_v3", ("layout=region_exclude",)),
    "with_mtp": ("tiny_deepseek_v3_mtp", ("layout=full",)),
    "nothing": ("tiny_qwen3_moe", ("layout=none",)),
}


@pytest.fixture(scope="module")
def found(python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    for name, (recipe, overrides) in FILES.items():
        (folder / f"{name}.yaml").write_text(render(recipe, "mindformers-2.1", *overrides))
    (folder / "of_2_0.yaml").write_text(render("tiny_qwen3_moe", "mindformers-2.0"))
    check = Path(__file__).with_name("check.py")
    files = sorted(folder.glob("*.yaml"))
    done = subprocess.run([str(python), str(check), *map(str, files)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1].removeprefix("RESULT "))


def render(recipe: str, target: str, *overrides: str) -> str:
    cfg = hydra_app.to_object(hydra_app.compose("export", [f"recipe={recipe}", f"to={target}", *overrides]))
    config.validate(cfg)
    return export.render(cfg)


@pytest.mark.parametrize(
    ("name", "excluded"),
    [
        ("full", {"mlp.router.topk": ["0-47"], "mlp.experts.expert_counts.alltoall": ["0-47"]}),
        ("one_body", {"mlp.experts.experts_forward": ["1-2"], "mlp.router.topk": ["1-2"]}),
        ("with_mtp", {"mlp.router.topk": ["1"], "transformer_layer.mlp.router.topk": ["2"]}),
    ],
)
def test_exclude_op_is_a_dict_that_2_1_accepts(found, name, excluded):
    assert found[name]["recompute"]["exclude_op"] == excluded
    assert found[name]["recompute"]["mode"] == "full"


def test_nothing_replayed(found):
    assert found["nothing"]["recompute"]["mode"] == "None"


def test_a_file_for_2_0_is_refused_by_2_1(found):
    assert "exclude_op" in found["of_2_0"]["error"]


def test_training_with_2_1():
    pytest.skip("MindFormers 2.1 trains with MindSpore 2.11, which no package index has yet")
