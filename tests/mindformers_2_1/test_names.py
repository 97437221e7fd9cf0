"""The region map against MindFormers 2.1's source: it can't be run without MindSpore 2.11, but it can be read."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from hp_memory.mindformers import experts_map as mindformers_experts
from hp_memory.mindformers import region_map as mindformers_map

SOURCES = {
    "layer": ("transformers/transformer_layer.py", "TransformerLayer"),
    "latent attention": ("transformers/multi_latent_attention.py", "MultiLatentAttention", "MLASelfAttention"),
    "attention": ("transformers/attention.py", "Attention", "SelfAttention"),
    "dense": ("transformers/mlp.py", "MLP"),
    "moe": ("transformers/moe/moe_layer.py", "MoELayer"),
    "experts": ("transformers/moe/experts.py", "GroupedMLP"),
    "exchange": ("distributed/expert_parallel.py", "ExpertParallel"),
}


def classes(pynative: Path, what: str) -> list[ast.ClassDef]:
    file, *names = SOURCES[what]
    nodes = ast.parse((pynative / file).read_text()).body
    return [node for node in nodes if isinstance(node, ast.ClassDef) and node.name in names]


def names_in(found: list[ast.ClassDef]) -> set[str]:
    """Methods and attributes that are set on ``self``."""
    nodes = [node for cls in found for node in ast.walk(cls)]
    methods = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    stores = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)]
    return methods | {node.attr for node in stores}


@pytest.fixture(scope="module")
def pynative(python):
    found = list(python.parent.parent.glob("lib/python*/site-packages/mindformers/pynative"))
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("what", "places"),
    [
        ("layer", ("input_layernorm", "self_attention", "pre_mlp_layernorm", "mlp")),
        ("latent attention", ("get_query_key_value_tensors", "core_attention", "linear_proj")),
        ("attention", ("get_query_key_value_tensors", "core_attention", "linear_proj")),
        ("dense", ("linear_fc1", "activation_func", "linear_fc2")),
        ("moe", ("router", "experts", "shared_experts")),
        ("experts", ("permute", "unpermute", "experts_forward")),
        ("exchange", tuple(name for _, name in mindformers_map._EXPERT_PARALLEL["2.1"])),
        ("exchange", tuple(name for _, name in mindformers_map._EXPERT_PARALLEL_BACK)),
    ],
)
def test_every_place_of_the_map_exists(pynative, what, places):
    assert set(places) <= names_in(classes(pynative, what))


def test_the_experts_forward_uses_the_names_we_know(pynative):
    (experts,) = classes(pynative, "experts")
    forward = next(node for node in experts.body if getattr(node, "name", "") == "experts_forward")
    code = compile(ast.Module([forward], []), "experts.py", "exec").co_consts
    names = next(c for c in code if hasattr(c, "co_names")).co_names
    assert set(names) <= mindformers_experts._KNOWN_NAMES
