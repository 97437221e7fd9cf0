"""Which cases a matrix means, and what is expected of each."""

from __future__ import annotations

import pytest

from hp_memory.errors import ConfigError
from hp_memory.pipeline.regression.cases import Case, MatrixSettings, expand

BASE = {"variant": "1f1b", "layout": "full", "prefire": False, "session": "share", "microbatches": 4, "stages": 2}


def case(**changes):
    return Case(**{**BASE, "early_stop": False, **changes})


def test_without_replays_sessions_and_prefire_make_no_difference():
    matrix = MatrixSettings(
        layouts=["none"], prefire=[False, True], sessions=["share", "none"], early_stop=[False, True]
    )
    assert len(expand(matrix)) == 1


def test_every_dimension_multiplies():
    matrix = MatrixSettings(
        schedules=["1f1b", "zb_h1"], layouts=["full", "op_exclude"], prefire=[False, True], microbatches=[2, 4]
    )
    assert len(expand(matrix)) == 16
    assert len({c.name for c in expand(matrix)}) == 16


def test_interleaved_leaves_out_micro_batches_it_cannot_group():
    matrix = MatrixSettings(schedules=["interleaved_1f1b"], microbatches=[3, 4])
    assert [c.microbatches for c in expand(matrix)] == [4]


@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({}, False),
        ({"session": "release"}, False),
        ({"session": "none", "prefire": True}, True),
        ({"variant": "zb_h1", "session": "release"}, True),
        ({"variant": "1f1b+split", "session": "release"}, True),
        ({"variant": "zb_v", "session": "none"}, False),
    ],
)
def test_which_cases_must_be_refused(changes, refused):
    assert case(**changes).refused is refused


@pytest.mark.parametrize(
    ("changes", "chunk", "replays"),
    [
        ({}, 1, 1),
        ({"session": "none"}, 1, 1),
        ({"variant": "zb_h1", "session": "none"}, 1, 2),
        ({"variant": "zb_h1", "session": "none"}, 0, 1),
        ({"variant": "zb_h1", "session": "keep"}, 1, 1),
        ({"layout": "none"}, 1, 0),
    ],
)
def test_replays_expected(changes, chunk, replays):
    assert case(**changes).replays(chunk) == replays


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"schedules": []}, "matrix.schedules"),
        ({"schedules": ["zb_h1+split"]}, "matrix.schedules[0]"),
        ({"layouts": ["full", "ful"]}, "matrix.layouts[1]"),
        ({"sessions": ["retain"]}, "matrix.sessions[0]"),
        ({"stages": [1]}, "matrix.stages[0]"),
        ({"microbatches": [0]}, "matrix.microbatches[0]"),
        ({"rows": 0}, "matrix.rows"),
    ],
)
def test_a_bad_matrix_is_refused(settings, path):
    with pytest.raises(ConfigError) as error:
        MatrixSettings(**settings).validate()
    assert error.value.path == path
