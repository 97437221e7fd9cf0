"""A plan in a run directory is read as it was written, and refused where it is damaged."""

from __future__ import annotations

import json

import pytest

from hp_memory.errors import ConfigError
from hp_memory.layout import LayoutSettings, ModelFingerprint, build_plan, plan_file

MARK = ModelFingerprint("reference", ("dense",), {"dense": ("attention.core", "mlp.act")}, "0" * 16, {})
PLAN = build_plan(LayoutSettings("some", "recompute", save=["mlp.act"]), MARK)


def test_what_was_written_is_read(tmp_path):
    (tmp_path / plan_file.NAME).write_text(plan_file.text(PLAN))
    assert plan_file.read(tmp_path / plan_file.NAME) == PLAN


@pytest.mark.parametrize(
    ("change", "path", "says"),
    [
        (lambda data: data.update(schema=99), "plan.schema", "can't read it"),
        (lambda data: data.pop("layers"), "plan", "'layers'"),
        (lambda data: data["layers"][0].pop("actions"), "plan", "'actions'"),
        (lambda data: data.update(fingerprint=[]), "plan", "not a plan"),
    ],
)
def test_a_damaged_plan_is_refused(tmp_path, change, path, says):
    data = PLAN.to_dict()
    change(data)
    (tmp_path / plan_file.NAME).write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=says) as error:
        plan_file.read(tmp_path / plan_file.NAME)
    assert error.value.path == path


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_what_is_no_plan_at_all_is_refused(tmp_path, text):
    (tmp_path / plan_file.NAME).write_text(text)
    with pytest.raises(ConfigError, match=r"plan\.json"):
        plan_file.read(tmp_path / plan_file.NAME)
