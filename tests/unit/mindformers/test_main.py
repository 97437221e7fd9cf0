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


@pytest.mark.parametrize(("resume", "loaded"), [(None, None), ("", None), ("/run/iteration_1", "/run/iteration_1")])
def test_restart_loads_the_checkpoint_it_is_told(seen, monkeypatch, resume, loaded):
    monkeypatch.delenv("HP_MEMORY_RESUME", raising=False)
    if resume is not None:
        monkeypatch.setenv("HP_MEMORY_RESUME", resume)
    assert main(["train.yaml"]) == 0
    assert seen == {"config": "train.yaml", "checkpoint": loaded}


def test_usage(capsys):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
