"""A user's own recipes and layouts: found by every command, never hidden by a shipped one, data only."""

from __future__ import annotations

import os

import pytest

from hp_memory.config import own_files
from hp_memory.config.app import compose, to_object
from hp_memory.errors import ConfigError

MINE = "name: mine\ndefault: recompute\nsave: [gmm.up]\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    monkeypatch.setenv(own_files.VARIABLE, str(tmp_path / "own"))
    (tmp_path / "own" / "layout").mkdir(parents=True)
    return tmp_path / "own"


def layout(*words):
    return to_object(compose("train", ["recipe=tiny_moe", *words])).layout


def test_a_layout_of_ones_own_is_an_option_like_the_shipped_ones(folder):
    (folder / "layout" / "mine.yaml").write_text(MINE)
    assert layout("layout=mine").save == ["gmm.up"]
    assert layout("layout=mine", "layout.save=[gmm]").save == ["gmm"]
    with pytest.raises(ConfigError, match="did you mean 'mine'"):
        layout("layout=min")


@pytest.mark.parametrize("place", ["configs", "home"])
def test_folders_need_no_variable(folder, place, monkeypatch):
    monkeypatch.delenv(own_files.VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder.parent))
    own = folder.parent / ("configs" if place == "configs" else "hp-memory")
    (own / "layout").mkdir(parents=True)
    (own / "layout" / "mine.yaml").write_text(MINE)
    assert own_files.folders() == (own,)
    assert layout("layout=mine").save == ["gmm.up"]


def test_a_recipe_of_ones_own_may_use_both(folder):
    (folder / "layout" / "mine.yaml").write_text(MINE)
    (folder / "recipe").mkdir()
    words = (
        "# @package _global_\ndefaults:\n  - override /model: tiny_moe\n  - override /layout: mine\n\nname: my_run\n"
    )
    (folder / "recipe" / "my_run.yaml").write_text(words)
    cfg = to_object(compose("dryrun", ["recipe=my_run"]))
    assert (cfg.name, cfg.layout.name) == ("my_run", "mine")


def test_a_file_is_named_with_an_at(folder):
    file = folder.parent / "it's a file.yaml"
    file.write_text(MINE)
    (folder.parent / "plain.yaml").write_text(MINE)
    assert layout("layout=@plain.yaml").name == "mine"
    assert layout(f"layout=@{folder.parent}/plain.yaml", "layout.save=[gmm]").save == ["gmm"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("layout=@none.yaml", "there is no such file"),
        ("layout=@own", "there is no such file"),
        ("layout=@script.py", "is no YAML file"),
    ],
)
def test_other_files_are_refused(folder, word, says):
    (folder.parent / "script.py").write_text("")
    with pytest.raises(ConfigError, match=says) as error:
        layout(word)
    assert error.value.path == "layout"


def test_a_wrong_key_in_a_file_is_named(folder):
    (folder.parent / "odd.yaml").write_text("name: odd\nsav: [gmm]\n")
    with pytest.raises(ConfigError, match="sav"):
        layout("layout=@odd.yaml")


def test_a_shipped_name_is_refused_since_one_of_both_would_be_hidden(folder):
    (folder / "layout" / "full.yaml").write_text(MINE)
    with pytest.raises(ConfigError, match="is the name of a shipped layout"):
        layout("layout=full")


@pytest.mark.parametrize(
    "text",
    [
        "# @package hydra\nrun: {dir: /tmp/x}\n",
        "# @package _global_\nhydra: {run: {dir: /tmp/x}}\n",
        "{hydra: {searchpath: [/tmp]}}\n",
        "defaults:\n  - override /hydra/launcher: basic\n",
        "defaults:\n  - /hydra/launcher@hydra.launcher: basic\n",
    ],
)
def test_hydras_own_settings_are_out_of_reach(folder, text):
    (folder.parent / "odd.yaml").write_text(text)
    with pytest.raises(ConfigError, match="Hydra's own settings"):
        layout("layout=@odd.yaml")
    (folder / "layout" / "odd.yaml").write_text(text)
    with pytest.raises(ConfigError, match="Hydra's own settings"):
        layout("layout=full")


def test_a_pipe_is_no_config(folder):
    os.mkfifo(folder / "layout" / "endless.yaml")
    with pytest.raises(ConfigError, match="is no regular file"):
        layout("layout=full")


def test_a_folder_that_is_named_must_be_there(folder):
    with pytest.raises(ConfigError, match="no such folder") as error:
        own_files.folders({own_files.VARIABLE: f"{folder}{os.pathsep}/nowhere"})
    assert error.value.path == own_files.VARIABLE


def test_the_shipped_folder_is_no_folder_of_ones_own(folder, monkeypatch):
    monkeypatch.delenv(own_files.VARIABLE)
    monkeypatch.chdir(own_files.config_dir().resolve().parent)
    assert own_files.folders() == ()
