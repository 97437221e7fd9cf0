"""The tables of keys are complete: the installed MindFormers' own config classes know no key that they don't have."""

from __future__ import annotations

import pytest

from hp_memory.mindformers import names
from hp_memory.mindformers.families import FAMILIES, SIZES
from hp_memory.mindformers.trainer_yaml.callbacks import HARMLESS
from hp_memory.mindformers.trainer_yaml.check import TABLES

# What MindSpore keeps in the module that MindFormers registers callbacks from.
NO_CALLBACKS = {"CallbackManager", "CheckpointManager", "InternalCallbackParam", "SummaryLandscape"}
# Written by hand in every file that names one.
OURS = {"HPMemoryCallback", "HPMemoryGraphCallback"}


@pytest.fixture(scope="module")
def theirs(script):
    return script("their_keys.py", timeout=240)


def test_every_key_of_every_section_of_the_pynative_trainer_is_in_a_table(theirs):
    checked = 0
    for section, keys in theirs["pynative"].items():
        if section in TABLES["pynative"]:
            assert set(keys) <= set(TABLES["pynative"][section]), section
            checked += len(keys)
        else:
            parent, _, name = section.rpartition(".")
            assert TABLES["pynative"][parent][name].use in ("free", "read", "only"), section
    assert checked > 90


def test_every_key_of_every_section_of_the_graph_trainer_is_in_a_table(theirs):
    top = TABLES["graph"][""]
    for section, keys in theirs["graph"].items():
        table = top if section == "general_config" else TABLES["graph"].get(section)
        if table is not None:
            assert set(keys) <= set(table), section
        else:
            assert top[section].use in ("free", "read", "ignored", "only"), section


def test_every_key_of_a_model_is_in_both_tables(theirs):
    assert len(theirs["model"]) > 250
    assert set(theirs["model"]) <= set(TABLES["pynative"]["model"])
    assert set(theirs["model"]) <= set(TABLES["graph"]["model.model_config"])


def test_sizes_go_by_mindformers_own_names(theirs):
    for size in SIZES:
        for name in size.names:
            assert theirs["model"][name] == size.built, (size.ours, name)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_has_the_defaults_of_its_config_class(theirs, name):
    family, found = FAMILIES[name], theirs["defaults"][name]
    stated = {ours: value for ours, value in found["sizes"].items() if value is not None}
    assert stated == {ours: family.defaults[ours] for ours in stated}
    normalises = {"qk_layernorm"} if name in ("qwen3", "qwen3_moe", "glm4_moe") else set()
    for key, value in found["built"].items():
        assert family.built_with[key] == (True if key in normalises else value), key


def test_every_callback_of_theirs_is_known(theirs):
    assert set(theirs["callbacks"]) - NO_CALLBACKS - OURS <= set(HARMLESS)


def test_every_cell_of_a_block_is_a_region_or_a_part_of_one(theirs):
    known = {module.path for module in names.MODULES} | set(names.FRAGMENTS) | set(names.EMPTY)
    assert len(theirs["cells"]) > 30
    assert not {name for name in theirs["cells"] if name not in known}
