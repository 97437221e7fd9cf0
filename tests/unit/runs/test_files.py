"""Files are written whole or not at all, and only files are read."""

from __future__ import annotations

import os

import pytest

from hp_memory.runs.files import FileSum, read_bytes, sum_of, write_whole


def test_what_is_no_file_or_too_long_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", tmp_path):
        with pytest.raises(OSError, match="no regular file"):
            read_bytes(path)
    (tmp_path / "long").write_bytes(bytes(11))
    assert read_bytes(tmp_path / "long", 11) == bytes(11)
    with pytest.raises(OSError, match="longer than 10 bytes"):
        read_bytes(tmp_path / "long", 10)


def test_a_written_file_replaces_a_link_and_has_the_mode_asked_for(tmp_path):
    victim, target = tmp_path / "victim", tmp_path / "plan.json"
    victim.write_text("MINE")
    target.symlink_to(victim)
    write_whole(target, "ours", 0o600)
    assert victim.read_text() == "MINE"
    assert target.read_text() == "ours"
    assert target.stat().st_mode & 0o777 == 0o600
    assert {file.name for file in tmp_path.iterdir()} == {"victim", "plan.json"}


def test_a_sum_travels_as_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    found = sum_of(tmp_path / "a")
    assert found.size == 3
    assert len(found.packed()) == 40
    assert FileSum.unpacked(found.packed()) == found
