"""``python -m hp_memory.mindformers``, with a stand-in for MindFormers' Trainer."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hp_memory.mindformers import environment
from hp_memory.mindformers.__main__ import main


@pytest.fixture
def seen(monkeypatch):
    """What the Trainer was given."""
    found = {}

    class Trainer:
        def __init__(self, config):
            found["config"] = config

        def train(self, checkpoint_path=None):
            found["checkpoint"] = checkpoint_path

    monkeypatch.setitem(sys.modules, "mindformers.pynative.trainer.trainer", SimpleNamespace(Trainer=Trainer))
    monkeypatch.setattr(environment, "prepare", lambda world_size: [])
    return found


@pytest.fixture
def file(tmp_path):
    (tmp_path / "train.yaml").write_text("training: {steps: 1}\nmodel: {model_type: qwen3}\n")
    return str(tmp_path / "train.yaml")


@pytest.mark.parametrize(("resume", "loaded"), [(None, None), ("", None), ("/run/iteration_1", "/run/iteration_1")])
def test_restart_loads_the_checkpoint_it_is_told(seen, monkeypatch, resume, loaded, file):
    monkeypatch.delenv("HP_MEMORY_RESUME", raising=False)
    if resume is not None:
        monkeypatch.setenv("HP_MEMORY_RESUME", resume)
    assert main([file]) == 0
    assert seen == {"config": file, "checkpoint": loaded}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("parallel_config: {data_parallel: 1}\nmodel: {model_config: {}}\n", "is the graph Trainer's"),
        ("training: {}\nrecompute: {mode: full}\ncallbacks:\n- type: HPMemoryCallback\n", "wrapped twice"),
        ("training: {}\nswap: {enable: true}\nparallelism: {pipeline_parallel: 2}\n", "bad.yaml:2: swap.enable"),
        ("training: {}\nrecompte: {mode: full}\n", "did you mean 'recompute'"),
        ("model: {num_hidden_layer: 4}\n", "did you mean 'num_hidden_layers'"),
        ("training: {}\ncallbacks:\n- type: HPMemoryGraphCallback\n", "bad.yaml:3: callbacks.0.type"),
    ],
)
def test_what_a_file_alone_shows_is_refused_before_a_model_is_built(seen, tmp_path, capsys, text, why):
    (tmp_path / "bad.yaml").write_text(text)
    assert main([str(tmp_path / "bad.yaml")]) == 2
    assert why in capsys.readouterr().err
    assert not seen


def test_keys_for_a_model_of_the_users_own_are_left_alone(seen, tmp_path):
    (tmp_path / "own.yaml").write_text("training: {}\nmodel: {model_type: mine, fancy_router: 3}\n")
    assert main([str(tmp_path / "own.yaml")]) == 0


def test_usage(capsys):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
