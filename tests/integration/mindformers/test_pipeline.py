"""MindFormers' Trainer over two pipeline stages of two ranks each; the whole matrix is in tests/ranks.

The control: a pipeline computes what one process does, up to the order in which norms and rows are added up.
"""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(900)

SEEN = ("losses", "norms", "grads", "params", "states", "tokens", "aux")
MODEL = {"model": "deepseek_v3_deep", "steps": 1}
STAGES = {
    "pipeline_parallel": 2,
    "expert_parallel": 2,
    "pipeline_parallel_layers_per_stage": ["0-2", "3-4"],
}
CHUNKS = STAGES | {
    "pipeline_parallel_schedule": "interleaved_1f1b",
    "pipeline_parallel_interleave_num": 2,
    "pipeline_parallel_layers_per_stage": ["0-1,3", "2,4"],
}
PAIRS = CHUNKS | {"pipeline_parallel_overlap_b_f": True}
SPLIT = PAIRS | {"pipeline_parallel_enable_dxdw_split": True}
START = MODEL | {"same_start": True, "whole": True}
CASES = [
    START | {"name": "alone", "alone": True},
    START | {"name": "start", "parallelism": STAGES},
    MODEL | {"name": "1f1b", "parallelism": STAGES},
    MODEL | {"name": "1f1b chain_exclude", "parallelism": STAGES, "plan": "chain_exclude"},
    MODEL | {"name": "interleaved", "parallelism": CHUNKS, "rows": 8},
    MODEL | {"name": "dx/dw chain_exclude", "parallelism": SPLIT, "plan": "chain_exclude", "rows": 8},
]


@pytest.fixture(scope="module")
def job(msrun_job):
    """What each of the four ranks found, and the folder."""
    return msrun_job(4, CASES)


def test_no_case_ended_with_an_error(job):
    for rank in job[0]:
        assert {name: case["trace"] for name, case in rank.items() if "error" in case} == {}
        assert len(rank) == len(CASES)


def test_a_pipeline_computes_what_one_process_does(job):
    found, folder = job
    assert [float.fromhex(x) for x in found[2]["start"]["losses"]] == pytest.approx(
        [float.fromhex(x) for x in found[0]["alone"]["losses"]], rel=1e-5
    )
    whole = np.load(folder / "alone_0.npz")
    stages = [np.load(folder / f"start_{stage}.npz") for stage in (0, 1)]
    assert sorted(name for stage in stages for name in stage) == sorted(whole)
    for stage in stages:
        for name in stage:
            np.testing.assert_allclose(stage[name], whole[name], rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(("planned", "plain"), [("1f1b chain_exclude", "1f1b"), ("dx/dw chain_exclude", "interleaved")])
def test_a_plan_changes_no_bit(job, planned, plain):
    for rank in job[0]:
        assert {key: rank[planned][key] for key in SEEN} == {key: rank[plain][key] for key in SEEN}
        assert rank[planned]["names_kept"]
        assert rank[planned]["optimizer_kept"]
        assert rank[planned]["report"]["plan_hash"] == job[0][0][planned]["report"]["plan_hash"]


def test_only_the_last_stage_has_losses(job):
    assert [len(rank["1f1b"]["losses"]) for rank in job[0]] == [0, 0, 1, 1]


def test_each_stage_installs_its_own_layers(job):
    layers = [
        sorted({w["layer"] for w in receipt["wrapped"]})
        for rank in job[0][::2]
        for receipt in rank["dx/dw chain_exclude"]["report"]["receipts"]
    ]
    assert layers == [[0, 1], [3], [2], [4]]


def test_backwards_ran_beside_forwards(job):
    """On a thread of their own, several on the last stage, after the blocks were replayed on the main one."""
    assert [rank["interleaved"]["pairs"] for rank in job[0]] == [0] * 4
    assert all(rank["dx/dw chain_exclude"]["pairs"] > 1 for rank in job[0][2:])
    runs = job[0][3]["dx/dw chain_exclude"]["report"]["runs"]
    assert runs["layers.4/all2all.in"]["replays"] == 0
    assert runs["layers.4/dispatch.permute"]["replays"] > 0
