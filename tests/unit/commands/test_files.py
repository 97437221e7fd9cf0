"""Commands on files: what there is, a copy, a check, a comparison."""

from __future__ import annotations

import json

import pytest

from hp_memory.cli import TOOLS, main
from hp_memory.config import own_files


def run(capsys, *argv):
    with pytest.raises(SystemExit) as end:
        main(argv)
    out, err = capsys.readouterr()
    return end.value.code, out, err


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(own_files.VARIABLE, raising=False)
    return tmp_path / "hp-memory"


def test_ls_shows_recipes_and_layouts_with_a_line_each(capsys):
    code, out, _ = run(capsys, "ls")
    assert code == 0
    assert "tiny_moe" in out
    assert "Everything is replayed except routing decisions" in out


def test_a_copy_is_an_option_of_its_own_name(capsys, home):
    code, out, _ = run(capsys, "cp", "layout/op_exclude", "mine")
    assert code == 0
    assert (home / "layout" / "mine.yaml").is_file()
    assert "layout=mine" in out
    _, listed, _ = run(capsys, "ls", "layout")
    assert "mine" in listed
    code, out, _ = run(capsys, "validate", str(home / "layout" / "mine.yaml"))
    assert code == 0
    assert "mine: replay" in out  # the plan bears the copy's name


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("ls", "layouts"), "did you mean 'layout'"),
        (("cp",), "hp-memory cp layout/full mine"),
        (("cp", "layout/ful"), "did you mean 'full'"),
        (("cp", "layout/full", "none"), "already"),
        (("cp", "layout/full", "../none"), "letters, digits"),
        (("validate",), "names one file"),
        (("validate", "nothing.yaml"), "no such file"),
        (("validate", "broken.yaml"), "is no YAML"),
        (("validate", "wrong.yaml"), "al2all"),
        (("diff", "a"), "two run directories"),
        (("diff", "a", "b"), "no run directory"),
        (("lss",), "did you mean 'ls'"),
    ],
)
def test_bad_input_is_refused_in_two_lines(capsys, tmp_path, argv, says):
    (tmp_path / "broken.yaml").write_text("a: [1")
    (tmp_path / "wrong.yaml").write_text("name: wrong\ndefault: recompute\nsave: [al2all]\n")
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) <= 2
    assert "Traceback" not in out + err


def test_a_recipe_is_validated(capsys):
    shipped = own_files.options("recipe")["tiny_moe"]
    code, out, _ = run(capsys, "validate", str(shipped))
    assert code == 0
    assert "a sound recipe" in out
    assert "next: hp-memory dryrun recipe=@" in out


def test_diff_shows_what_differs_and_nothing_else(capsys, tmp_path):
    for name, rate in (("a", 1e-3), ("b", 2e-3)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(f"run_dir: {name}\nseed: 1\ntrain: {{learning_rate: {rate}}}\n")
        (tmp_path / name / "result.json").write_text(json.dumps({"losses": [1.0, rate]}))
    code, out, _ = run(capsys, "diff", "a", "b")
    assert code == 1
    assert "train.learning_rate" in out
    assert "result.losses" in out
    assert "seed" not in out
    code, out, _ = run(capsys, "diff", "a", "a")
    assert code == 0


@pytest.mark.parametrize("tool", TOOLS)
def test_each_tool_helps(capsys, tool):
    code, out, _ = run(capsys, tool, "--help")
    assert code == 0
    assert tool in out


def test_the_version_and_help_of_a_command(capsys):
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("hp-memory ")
    code, out, _ = run(capsys, "help", "train")
    assert code == 0
    assert "layout" in out
