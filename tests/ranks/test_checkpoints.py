"""MindFormers' checkpoints over several ranks: what one plan or spread wrote, another one continues."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(900)

BOTH = {"expert_parallel": 2}
STAGES = {"pipeline_parallel": 2, "pipeline_parallel_layers_per_stage": ["0", "1"]}
SEARCHED = {"name": "searched", "default": "recompute", "save": ["gmm.down"]}
# Every parameter begins with the same values, however it is spread.
START = {"model": "deepseek_v3", "same_start": True}


def saves(folder):
    return {"enable_save": True, "save_path": f"{{folder}}/{folder}", "save_interleaved_steps": 1}


def loads(folder):
    return {"enable_save": False, "load_path": f"{folder}/iteration_00000001"}


CASES = [
    {"name": "plain", "parallelism": BOTH},
    {"name": "saved", "plan": "chain_exclude", "parallelism": BOTH, "checkpoint": saves("saved")},
    {"name": "none", "parallelism": BOTH, "checkpoint": loads("{folder}/saved")},
    {"name": "searched", "plan": SEARCHED, "parallelism": BOTH, "checkpoint": loads("{folder}/saved")},
    {"name": "fsdp=2", "plan": "full", "parallelism": {}, "checkpoint": loads("{folder}/saved")},
    {
        "name": "data=2",
        "plan": "full",
        "parallelism": {"data_parallel_shard": 1},
        "checkpoint": loads("{folder}/saved"),
    },
    {"name": "staged", "plan": "full", "parallelism": STAGES, "checkpoint": saves("staged")},
    {"name": "pipeline=2", "plan": "full", "parallelism": STAGES, "checkpoint": loads("{folder}/saved")},
    {"name": "from pipeline=2", "plan": "full", "parallelism": BOTH, "checkpoint": loads("{folder}/staged")},
]


@pytest.fixture(scope="module")
def job(msrun_job):
    return msrun_job(2, [START | case for case in CASES])


@pytest.fixture(scope="module")
def twice_as_many(job, msrun_job):
    """The same checkpoint on four ranks."""
    case = {"name": "fsdp=4", "plan": "full", "parallelism": BOTH, "checkpoint": loads(str(job[1] / "saved"))}
    return msrun_job(4, [START | case])[0]


@pytest.mark.parametrize("name", ["none", "searched"])
def test_what_one_plan_wrote_another_continues(job, name):
    for rank in job[0]:
        assert "error" not in rank[name], rank[name]
        for what in ("losses", "norms", "grads"):
            assert rank[name][what] == rank["plain"][what][1:], what
        for what in ("params", "states"):
            assert rank[name][what] == rank["plain"][what], what


def assert_continued(case, plain):
    """Sums are added in another order."""
    assert "error" not in case, case
    for what in ("losses", "norms"):
        before, after = ([float.fromhex(value) for value in values] for values in (plain[what][1:], case[what]))
        if after or what == "norms":  # a pipeline's first stage has no losses
            assert after == pytest.approx(before, rel=1e-5), what


@pytest.mark.parametrize("name", ["fsdp=2", "data=2", "pipeline=2", "from pipeline=2"])
def test_what_one_spread_wrote_another_continues(job, name):
    for rank in job[0]:
        assert_continued(rank[name], rank["plain"])


def test_more_ranks_continue_it(job, twice_as_many):
    for rank in twice_as_many:
        assert_continued(rank["fsdp=4"], job[0][0]["plain"])
