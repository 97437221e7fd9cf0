"""MindFormers' own Trainer on two msrun workers, with FSDP and expert parallelism: a plan changes no bit on any rank.

All of the matrix is in ``tests/ranks`` (``make test-ranks``).
"""

from __future__ import annotations

import numpy as np
import pytest

# One job does all the work, in the first test's time.
pytestmark = pytest.mark.timeout(600)

BOTH = {"expert_parallel": 2}  # and the parameters sharded over the same two ranks
CASES = [
    {"name": "alone", "alone": True, "whole": True},
    {"name": "plain", "parallelism": BOTH, "whole": True},
    {"name": "full", "plan": "full", "parallelism": BOTH},
    {
        "name": "chain_exclude",
        "plan": "chain_exclude",
        "parallelism": BOTH | {"reshard_after_forward_policy": "never"},
        "checkpoint": {"enable_save": True, "save_path": "{folder}/saved", "save_interleaved_steps": 1},
    },
    {
        "name": "resumed",
        "plan": "op_exclude",
        "parallelism": BOTH,
        "checkpoint": {"enable_save": False, "load_path": "{folder}/saved/iteration_00000001"},
    },
]
RESULTS = ("losses", "norms", "grads", "params", "states", "tokens", "aux")


@pytest.fixture(scope="module")
def job(msrun_job):
    return msrun_job(2, [{"model": "deepseek_v3"} | case for case in CASES])


@pytest.fixture(scope="module")
def ranks(job):
    return job[0]


def test_two_ranks_compute_what_one_does(job):
    """The sums are added in another order: the tolerance is a hundredth of one step of AdamW, which moves by 0.01."""
    ranks, folder = job
    for rank in ranks:
        for what in ("losses", "norms"):
            one, two = ([float.fromhex(value) for value in rank[name][what]] for name in ("alone", "plain"))
            assert two == pytest.approx(one, rel=1e-5)
    one, two = (np.load(folder / f"{name}_0.npz") for name in ("alone", "plain"))
    for name in one.files:
        assert two[name] == pytest.approx(one[name], abs=1e-4), name


def test_each_rank_holds_its_part_and_sees_its_own_rows(ranks):
    first, second = (rank["plain"] for rank in ranks)
    assert first["losses"] == second["losses"]
    assert first["tokens"] != second["tokens"]
    weight = "decoder.layers.1.mlp.experts.weight1"
    assert first["grads"][0][weight] != second["grads"][0][weight]
    assert len(first["grads"][0]) > 20


@pytest.mark.parametrize("plan", ["full", "chain_exclude"])
def test_a_plan_changes_no_bit(ranks, plan):
    for rank in ranks:
        for what in RESULTS:
            assert rank[plan][what] == rank["plain"][what], what


@pytest.mark.parametrize("plan", ["full", "chain_exclude", "resumed"])
def test_every_rank_installed_the_plan_and_checked_it(ranks, plan):
    first, second = (rank[plan]["report"] for rank in ranks)
    assert first["plan_hash"] == second["plan_hash"]
    assert first["receipts"] == second["receipts"]
    assert first["runs"] == second["runs"]
    replays = {"full": 1, "chain_exclude": 0, "resumed": 0}[plan] * 2  # micro-batches
    assert first["runs"]["layers.1/all2all.in"]["replays"] == replays


def test_a_checkpoint_of_one_plan_resumes_under_another(ranks):
    for rank in ranks:
        for what in ("losses", "norms", "grads"):
            assert rank["resumed"][what] == rank["plain"][what][1:], what
        for what in ("params", "states"):
            assert rank["resumed"][what] == rank["plain"][what], what
