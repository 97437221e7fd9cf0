"""A run directory belongs to one launch, and never holds anything of somebody else's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hp_memory.errors import ConfigError
from hp_memory.runs import owner
from hp_memory.runs.paths import make_run_dir

HOLD = """
import sys, time
from hp_memory.runs.paths import make_run_dir
make_run_dir(sys.argv[1], "runs", "x")
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def _released():
    yield
    for path in list(owner._held):
        owner.release(path)


def test_a_second_launch_is_told_whose_it_is_and_may_have_it_when_the_first_is_gone(tmp_path):
    place = str(tmp_path / "run")
    with subprocess.Popen([sys.executable, "-c", HOLD, place], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"another launch is using it: process {first.pid} on "):
            make_run_dir(place, "runs", "x")
        first.kill()
    assert make_run_dir(place, "runs", "x").is_dir()


@pytest.mark.parametrize("name", ["plan.json", "report.html", "logs"])
def test_a_folder_with_files_of_others_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("MINE")
    with pytest.raises(ConfigError, match=rf"files of others \({name}\)"):
        make_run_dir(str(tmp_path), "runs", "x")
    assert (tmp_path / name).read_text() == "MINE"
    assert not (tmp_path / owner.MARK).exists()


def test_the_root_of_the_file_system_and_a_folder_of_another_user_are_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="run_dir='/'"):
        make_run_dir("/", "runs", "x")
    monkeypatch.setattr(owner.os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigError, match="belongs to another user"):
        make_run_dir(str(tmp_path / "theirs"), "runs", "x")


def test_a_link_in_place_of_the_mark_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("MINE")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / owner.MARK).symlink_to(victim)
    with pytest.raises(ConfigError, match="can't be opened"):
        make_run_dir(str(tmp_path / "run"), "runs", "x")
    assert victim.read_text() == "MINE"


def test_a_name_that_leads_elsewhere_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^name='\.\./escaped'"):
        make_run_dir(None, str(tmp_path), "../escaped")
