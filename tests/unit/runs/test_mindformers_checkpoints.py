"""Which of MindFormers' checkpoints is complete."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from hp_memory.launch.launcher import restart
from hp_memory.runs import mindformers_checkpoints as checkpoints


def save(root, step: int, tracked: bool = True):
    """A checkpoint as MindFormers leaves it; the tracker is the last thing it writes."""
    folder = root / f"iteration_{step:08d}"
    folder.mkdir(parents=True)
    for kind in ("model", "opt"):
        save_file({"w": np.ones(64, np.float32)}, str(folder / f"checkpoint-{kind}-0000000-0000001.safetensors"))
    (folder / "common.json").write_text(f'{{"global_step": {step}}}')
    if tracked:
        (root / checkpoints.TRACKER).write_text(str(step))
    return folder


def test_newest_that_the_tracker_names(tmp_path):
    save(tmp_path, 2)
    four = save(tmp_path, 4)
    save(tmp_path, 6, tracked=False)
    assert checkpoints.newest(tmp_path) == four


def test_nothing_was_ever_complete(tmp_path):
    assert checkpoints.newest(tmp_path / "none") is None
    save(tmp_path, 2, tracked=False)
    assert checkpoints.newest(tmp_path) is None


def test_empty_tracker_was_being_written_for_the_newest(tmp_path):
    save(tmp_path, 2)
    four = save(tmp_path, 4)
    (tmp_path / checkpoints.TRACKER).write_text("")
    assert checkpoints.newest(tmp_path) == four


@pytest.mark.parametrize("damage", ["cut", "empty", "no common", "bad common"])
def test_damaged_files_send_it_to_the_one_before(tmp_path, damage):
    two, four = save(tmp_path, 2), save(tmp_path, 4)
    file = next(four.glob("*-opt-*"))
    if damage in ("cut", "empty"):
        file.write_bytes(file.read_bytes()[:-1] if damage == "cut" else b"")
    elif damage == "no common":
        (four / "common.json").unlink()
    else:
        (four / "common.json").write_text('{"global')
    assert checkpoints.newest(tmp_path) == two


def test_restart_finds_either_trainers_checkpoint(tmp_path):
    assert restart.last_complete(tmp_path) is None
    two = save(tmp_path / "checkpoints", 2)
    assert restart.last_complete(tmp_path) == two


def test_what_to_load(tmp_path, monkeypatch):
    two, four = save(tmp_path / "checkpoints", 2), save(tmp_path / "checkpoints", 4)
    assert checkpoints.to_load(None) == ""
    assert checkpoints.to_load(str(tmp_path)) == str(four)
    assert checkpoints.to_load(str(tmp_path / "checkpoints")) == str(four)
    assert checkpoints.to_load(str(two)) == str(two)
    assert checkpoints.to_load("/weights/of/hugging-face") == "/weights/of/hugging-face"
    monkeypatch.setenv("HP_MEMORY_RESUME", str(two))
    assert checkpoints.to_load(str(tmp_path)) == str(two)
