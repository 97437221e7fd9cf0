"""What each rank writes down of its steps, with and without losses of its own."""

from __future__ import annotations

import json

from mindspore import Tensor

from hp_memory.mindformers.recorder import Recorder
from hp_memory.mindformers.trainer import reporting_rank
from hp_memory.models.settings import ParallelSettings
from hp_memory.runs.progress import read_progress


def steps(recorder, losses):
    for step, loss in enumerate(losses, 1):
        recorder.begin()
        recorder.end(step, loss)
    recorder.close()


def test_a_stage_before_the_last_writes_its_steps_without_losses(tmp_path):
    first, last = (Recorder(tmp_path, rank) for rank in (0, 1))
    steps(first, [None, None])
    steps(last, [Tensor([4.0]), Tensor([3.0])])
    assert [sorted(line) for line in read_progress(tmp_path, 0)] == [["seconds", "step"]] * 2
    assert [(line["step"], line["loss"]) for line in read_progress(tmp_path, 1)] == [(1, 4.0), (2, 3.0)]
    assert (first.losses, last.losses) == ([], [4.0, 3.0])
    assert len(first.seconds) == 2


def test_every_rank_leaves_its_peaks_for_the_launcher(tmp_path):
    steps(Recorder(tmp_path, 3), [None])
    assert "kind" in json.loads((tmp_path / "reports" / "rank_3.json").read_text())["peaks"]


def test_outside_a_run_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorder = Recorder(None, 0)
    steps(recorder, [Tensor([4.0])])
    assert recorder.losses == [4.0]
    assert not list(tmp_path.iterdir())


def test_the_result_is_the_last_stages():
    assert reporting_rank(ParallelSettings()) == 0
    assert reporting_rank(ParallelSettings(data=2)) == 0
    assert reporting_rank(ParallelSettings(data=2, pipeline=2)) == 2
