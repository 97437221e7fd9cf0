"""Private values appear in no plan, config or print."""

from __future__ import annotations

import json

import pytest

from hp_memory.launch.plan import plan_launch
from hp_memory.launch.secrets import hidden_below, is_secret
from hp_memory.launch.settings import LaunchSettings


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "db_password", "AWS_SECRET_ACCESS", "MY_AUTH"])
def test_a_name_tells(name):
    assert is_secret(name)
    assert not is_secret("HCCL_BUFFSIZE")


def test_no_private_value_is_in_the_plan_as_printed_or_as_saved(tmp_path):
    settings = LaunchSettings(env={"HF_TOKEN": "hf_abcdef", "PLAIN": "seen"})
    settings.hccl.extra = {"HCCL_AUTH": "hf_abcdef"}
    plan = plan_launch(settings, ("x",), tmp_path, {"HCCL_MY_TOKEN": "hf_abcdef"})
    assert plan.nodes[0].env["HF_TOKEN"] == "hf_abcdef"
    for text in (plan.in_words(), json.dumps(hidden_below(plan.to_dict()))):
        assert "hf_abcdef" not in text
        assert "seen" in text
