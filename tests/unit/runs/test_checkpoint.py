"""Checkpoints as files: whole or absent, and refused where they don't fit."""

from __future__ import annotations

import numpy as np
import pytest

from hp_memory.errors import ConfigError, NotFinite
from hp_memory.runs import checkpoint
from hp_memory.runs.checkpoint import CheckpointInfo

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(1, np.float32)}


def write(run_dir, step, digest="d", ranks=2, expert=2, complete=True):
    folder = checkpoint.folder_of(run_dir, step)
    sums = tuple(checkpoint.save_rank(folder, rank, step, ARRAYS) for rank in range(ranks))
    if complete:
        checkpoint.mark_complete(folder, CheckpointInfo(step, digest, ranks, expert, sums))
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
    found = checkpoint.save_rank(folder, 0, 1, {"turned": ARRAYS["a"].T})
    checkpoint.mark_complete(folder, CheckpointInfo(1, "d", 1, 1, (found,)))
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
    folder = write(tmp_path, 2)
    (folder / "rank_1.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"rank_1\.safetensors can't be read: No such file"):
        checkpoint.find_checkpoint(str(folder), "d", 2, 2)


def test_a_checkpoint_at_or_behind_the_end_of_training_is_refused(tmp_path):
    write(tmp_path, 5)
    assert checkpoint.find_checkpoint(str(tmp_path), "d", 2, 2, steps=6)
    with pytest.raises(ConfigError, match=r"step 5, where train\.steps=5"):
        checkpoint.find_checkpoint(str(tmp_path), "d", 2, 2, steps=5)


def _truncate(folder):
    file = folder / "rank_1.safetensors"
    file.write_bytes(file.read_bytes()[:-3])


def _zero(folder):
    file = folder / "rank_0.safetensors"
    file.write_bytes(bytes(file.stat().st_size))


def _flip(folder):
    file = folder / "rank_1.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def _swap(folder):
    a, b, c = folder / "rank_0.safetensors", folder / "rank_1.safetensors", folder / "aside"
    a.rename(c)
    b.rename(a)
    c.rename(b)


def _as_a_folder(folder):
    (folder / "complete.json").unlink()
    (folder / "complete.json").mkdir()


def _without_sums(folder):
    (folder / "complete.json").write_text('{"step": 6, "digest": "d", "world_size": 2, "expert_parallel": 2}')


DAMAGES = [
    (_truncate, "rank_1.safetensors has"),
    (_zero, "rank_0.safetensors can't be read"),
    (_flip, "rank_1.safetensors isn't what was written"),
    (_swap, "rank_0.safetensors is of rank 1"),
    (_as_a_folder, "complete.json can't be read"),
    (_without_sums, "without checksums"),
    (lambda folder: (folder / "complete.json").write_text("[" * 100_000), "complete.json can't be read"),
    (lambda folder: (folder / "complete.json").write_bytes(b"\xff"), "complete.json can't be read"),
]


@pytest.mark.parametrize(("spoil", "why"), DAMAGES)
def test_a_damaged_one_is_refused_by_name_and_passed_over_in_its_run(tmp_path, spoil, why):
    good, bad = write(tmp_path, 4), write(tmp_path, 6)
    spoil(bad)
    with pytest.raises(ConfigError, match=f"is damaged: .*{why}"):
        checkpoint.find_checkpoint(str(bad), "d", 2, 2)
    lines = []
    assert checkpoint.find_checkpoint(str(tmp_path), "d", 2, 2, say=lines.append) == good
    assert len(lines) == 1
    assert why in lines[0]


def test_a_rank_refuses_its_own_file_where_a_byte_has_changed_since_the_start(tmp_path):
    folder = write(tmp_path, 6)
    _flip(folder)
    assert checkpoint.load_rank(folder, 0).keys() == ARRAYS.keys()
    with pytest.raises(checkpoint.DamagedCheckpoint, match="rank_1"):
        checkpoint.load_rank(folder, 1)


def test_of_large_checkpoints_lengths_and_headers_are_looked_at_before_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "READ_BEFORE_START", 0)
    folder = write(tmp_path, 6)
    _flip(folder)
    assert checkpoint.damage(folder) is None
    _swap(folder)
    assert "is of rank 1" in checkpoint.damage(folder)


def test_what_is_not_finite_is_never_written(tmp_path):
    folder = checkpoint.folder_of(tmp_path, 3)
    with pytest.raises(NotFinite, match="b isn't finite on rank 1 after step 3"):
        checkpoint.save_rank(folder, 1, 3, ARRAYS | {"b": np.array([1.0, np.nan])})
    assert not folder.exists()


@pytest.mark.parametrize(("number", "left"), [(0, [2, 4, 6]), (2, [4, 6]), (1, [6]), (9, [2, 4, 6])])
def test_only_the_newest_are_kept(tmp_path, number, left):
    for step in (2, 4, 6):
        write(tmp_path, step)
    write(tmp_path, 7, complete=False)
    checkpoint.keep_last(tmp_path, number)
    assert [checkpoint.read_info(folder).step for folder in checkpoint.complete(tmp_path)] == left
    assert checkpoint.folder_of(tmp_path, 7).exists(), "being written"
