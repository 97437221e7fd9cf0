"""Every recipe composes, validates, and gives a plan that says something about every layer."""

from __future__ import annotations

from pathlib import Path

import pytest

from hp_memory.config import app as hydra_app
from hp_memory.config.schema import validate
from hp_memory.experiment.experiment import Experiment
from hp_memory.runs.paths import config_dir

RECIPES = config_dir() / "recipe"
NAMES = sorted(str(path.relative_to(RECIPES).with_suffix("")) for path in Path(RECIPES).rglob("*.yaml"))


def compose(name: str):
    command = "pipeline" if name.startswith("pp_regression/") else "train"
    return hydra_app.to_object(hydra_app.compose(command, [f"recipe={name}"]))


def test_there_are_recipes():
    assert "tiny_moe" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_recipe(name):
    cfg = compose(name)
    validate(cfg)
    plan = Experiment(cfg).plan
    assert len(plan.layers) == len(cfg.model.kinds)
    assert plan.in_words()
