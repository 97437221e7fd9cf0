"""Which cases a matrix means, and what is expected of each."""

from __future__ import annotations

from dataclasses import fields

import pytest

from hp_memory.errors import ConfigError
from hp_memory.layout import LayoutSettings
from hp_memory.pipeline.regression.cases import Case, MatrixSettings, expand
from hp_memory.pipeline.settings import PipelineSettings
from hp_memory.train.settings import TrainSettings


def case(schedule="1f1b", layout="full", **changes):
    return Case(schedule, layout, **changes)


def test_without_replays_sessions_and_prefire_make_no_difference():
    matrix = MatrixSettings(
        layout=["none"], prefire_recompute=[False, True], session=["share", "none"], early_stop=[False, True]
    )
    assert len(expand(matrix)) == 1


def test_every_dimension_multiplies():
    matrix = MatrixSettings(
        schedule=["1f1b", "zb_h1"], layout=["full", "op_exclude"], prefire_recompute=[False, True], microbatches=[2, 4]
    )
    assert len(expand(matrix)) == 16
    assert len({c.name for c in expand(matrix)}) == 16


def test_the_backward_is_split_where_asked_and_where_the_schedule_needs_it():
    matrix = MatrixSettings(schedule=["gpipe", "zb_v"], split_backward=[False, True])
    assert [c.order for c in expand(matrix)] == ["gpipe", "gpipe+split", "zb_v"]


def test_a_dimension_is_a_setting_of_the_pipeline_or_of_the_group_that_has_its_name():
    of_pipeline = {f.name for f in fields(MatrixSettings)} & {f.name for f in fields(PipelineSettings)}
    assert of_pipeline == {f.name for f in fields(PipelineSettings)} - {
        "interleave",
        "layouts",
        "overlap_p2p",
        "overlap_b_f",
    }
    assert hasattr(LayoutSettings(), "early_stop")
    assert hasattr(TrainSettings(), "micro_batch_size")


def test_interleaved_leaves_out_micro_batches_it_cannot_group():
    matrix = MatrixSettings(schedule=["interleaved_1f1b"], microbatches=[3, 4])
    assert [c.microbatches for c in expand(matrix)] == [4]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, False),
        ({"session": "release"}, False),
        ({"session": "none", "prefire_recompute": True}, True),
        ({"schedule": "zb_h1", "split_backward": True, "session": "release"}, True),
        ({"split_backward": True, "session": "release"}, True),
        ({"schedule": "zb_v", "split_backward": True, "session": "none"}, False),
    ],
)
def test_which_cases_must_be_refused(changes, refused):
    assert case(**changes).refused is refused


@pytest.mark.parametrize(
    ("changes", "chunk", "replays"),
    [
        ({}, 1, 1),
        ({"session": "none"}, 1, 1),
        ({"schedule": "zb_h1", "split_backward": True, "session": "none"}, 1, 2),
        ({"schedule": "zb_h1", "split_backward": True, "session": "none"}, 0, 1),
        ({"schedule": "zb_h1", "split_backward": True, "session": "keep"}, 1, 1),
        ({"layout": "none"}, 1, 0),
    ],
)
def test_replays_expected(changes, chunk, replays):
    assert case(**changes).replays(chunk) == replays


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"schedule": []}, "matrix.schedule"),
        ({"schedule": ["zb_h2"]}, "matrix.schedule[0]"),
        ({"layout": ["full", "ful"]}, "matrix.layout[1]"),
        ({"session": ["retain"]}, "matrix.session[0]"),
        ({"stages": [1]}, "matrix.stages[0]"),
        ({"microbatches": [0]}, "matrix.microbatches[0]"),
        ({"micro_batch_size": 0}, "matrix.micro_batch_size"),
    ],
)
def test_a_bad_matrix_is_refused(settings, path):
    with pytest.raises(ConfigError) as error:
        MatrixSettings(**settings).validate()
    assert error.value.path == path
