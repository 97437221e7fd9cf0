"""Checkpoints as files: whole or absent, and refused where they don't fit."""

from __future__ import annotations

import numpy as np
import pytest

from hp_memory.errors import ConfigError
from hp_memory.runs import checkpoint
from hp_memory.runs.checkpoint import CheckpointInfo

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(1, np.float32)}


def write(run_dir, step, digest="d", ranks=2, expert=2, complete=True):
    folder = checkpoint.folder_of(run_dir, step)
    for rank in range(ranks):
        checkpoint.save_rank(folder, rank, ARRAYS)
    if complete:
        checkpoint.mark_complete(folder, CheckpointInfo(step, digest, ranks, expert))
    return folder


def test_what_is_saved_comes_back_bit_for_bit(tmp_path):
    folder = write(tmp_path, 3)
    loaded = checkpoint.load_rank(folder, 1)
    assert loaded.keys() == ARRAYS.keys()
    assert all(np.array_equal(loaded[name], ARRAYS[name]) for name in ARRAYS)
    assert checkpoint.read_info(folder).step == 3
    assert not list(folder.glob("*.partial"))


def test_an_array_that_is_a_view_is_saved_as_it_looks(tmp_path):
    folder = checkpoint.folder_of(tmp_path, 1)
    checkpoint.save_rank(folder, 0, {"turned": ARRAYS["a"].T})
    np.testing.assert_array_equal(checkpoint.load_rank(folder, 0)["turned"], ARRAYS["a"].T)


def test_the_newest_complete_one_is_taken_and_an_unfinished_one_is_not(tmp_path):
    write(tmp_path, 2)
    want = write(tmp_path, 10)
    write(tmp_path, 11, complete=False)
    assert checkpoint.find_checkpoint(str(tmp_path), "d", 2, 2) == want
    assert checkpoint.find_checkpoint(str(want), "d", 2, 2) == want


@pytest.mark.parametrize(
    ("digest", "ranks", "expert", "why"),
    [("other", 2, 2, "another model"), ("d", 4, 2, "written by 2 ranks"), ("d", 2, 1, "expert parallel 2")],
)
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, digest, ranks, expert, why):
    write(tmp_path, 2)
    with pytest.raises(ConfigError, match=why) as caught:
        checkpoint.find_checkpoint(str(tmp_path), digest, ranks, expert)
    assert caught.value.path == "train.resume_from"


def test_nothing_to_resume_from_and_a_lost_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="no complete checkpoint"):
        checkpoint.find_checkpoint(str(tmp_path), "d", 2, 2)
    (write(tmp_path, 2) / "rank_1.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"ranks \[1\] are missing"):
        checkpoint.find_checkpoint(str(tmp_path), "d", 2, 2)


def test_a_checkpoint_at_or_behind_the_end_of_training_is_refused(tmp_path):
    write(tmp_path, 5)
    assert checkpoint.find_checkpoint(str(tmp_path), "d", 2, 2, steps=6)
    with pytest.raises(ConfigError, match=r"step 5, where train\.steps=5"):
        checkpoint.find_checkpoint(str(tmp_path), "d", 2, 2, steps=5)
