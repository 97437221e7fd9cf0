"""Where a command writes is looked at before it works, and refused with the setting's name."""

from __future__ import annotations

import pytest

from hp_memory.errors import ConfigError
from hp_memory.runs.paths import check_output, make_folder, make_run_dir


def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path):
    old, new = tmp_path / "old.png", tmp_path / "new.PNG"
    old.write_text("kept")
    for file in (old, new):
        assert check_output("picture", str(file), (".png",)) == file
    assert old.read_text() == "kept"
    assert not new.exists()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "name a file"),
        (".", "name a file"),
        ("no/such/folder.png", "there is no folder no/such"),
        ("file/x.png", "there is no folder file"),
        ("x.doc", "accepted: .png, .svg"),
        ("x", "accepted: .png, .svg"),
        ("/proc/x.png", "can't be written"),
        ("x" * 300 + ".png", "can't be written"),
    ],
)
def test_a_file_that_can_not(tmp_path, monkeypatch, value, why):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=why) as error:
        check_output("picture", value, (".png", ".svg"))
    assert error.value.path == "picture"


@pytest.mark.parametrize("value", ["", "/proc/hp", "/dev/null", "/dev/null/below", "x" * 300])
def test_a_folder_that_can_not(tmp_path, monkeypatch, value):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^run_root="):
        make_folder("run_root", value)
    with pytest.raises(ConfigError, match=r"^run_dir="):
        make_run_dir(value, "runs", "name")
