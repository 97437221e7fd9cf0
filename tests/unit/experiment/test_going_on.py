"""The same command again goes on with its run; anything else leaves that alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hp_memory.config.app import compose, to_object
from hp_memory.errors import ConfigError
from hp_memory.experiment.job import own_run_dir
from hp_memory.runs import checkpoint, owner
from hp_memory.runs.checkpoint import CheckpointInfo


@pytest.fixture
def config(tmp_path):
    def make(*words):
        return to_object(compose("train", [f"run_dir={tmp_path / 'run'}", "recipe=tiny_moe", *words]))

    yield make
    owner.release(tmp_path / "run")


def save(run_dir):
    folder = checkpoint.folder_of(run_dir, 3)
    found = checkpoint.save_rank(folder, 0, 3, {"a": np.ones(2, np.float32)})
    checkpoint.mark_complete(folder, CheckpointInfo(3, "d", 1, 1, (found,)))


def end(run_dir, code):
    (run_dir / "launch").mkdir(exist_ok=True)
    (run_dir / "launch/plan_0.json").write_text("{}")
    (run_dir / "launch/outcome_0.json").write_text(json.dumps({"exit_code": code}))


def test_the_same_command_goes_on_where_there_is_a_checkpoint(config):
    run_dir = own_run_dir(config())
    with pytest.raises(ConfigError, match="without a checkpoint"):
        own_run_dir(config())
    save(run_dir)
    end(run_dir, 143)
    assert own_run_dir(config()) == run_dir
    with pytest.raises(ConfigError, match="with other settings"):
        own_run_dir(config("train.steps=77"))
    end(run_dir, 0)
    with pytest.raises(ConfigError, match="has ended well"):
        own_run_dir(config())


def test_the_written_config_has_no_private_value_and_is_still_the_same_command(config):
    secret = ("launch.env.HF_TOKEN=hf_abcdef",)
    run_dir = own_run_dir(config(*secret))
    assert "hf_abcdef" not in (run_dir / "config.yaml").read_text()
    save(run_dir)
    assert own_run_dir(config(*secret)) == run_dir
