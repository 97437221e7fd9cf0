"""The callback in MindFormers' Trainer: checkpoints, plain YAML, refusals, and where it installs."""

from __future__ import annotations

import pytest

# One script does all the work, in the first test's time.
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def results(script):
    return script("features.py")


def test_checkpoint_files_are_the_same_bytes(results):
    found = results["checkpoints"]
    assert found["planned"] == found["plain"]
    assert len(found["plain"]) == 4  # model and optimizer, two steps


def test_a_checkpoint_resumes_under_another_plan(results):
    found = results["checkpoints"]
    assert found["planned_losses"] == found["plain_losses"]
    assert found["resumed_losses"] == found["plain_losses"][1:]
    assert found["params_equal"]


def test_a_restarted_job_goes_on_with_the_losses_it_would_have_had(results):
    found = results["restarts"]
    assert found["broken"] == found["straight"][2:]
    assert (found["steps"], len(set(found["straight"]))) == (4, 4)


def test_the_stanza_in_a_plain_yaml_is_enough(results):
    found = results["plain_yaml"]
    assert found["runs"]["layers.0/gmm.up"]["replays"] == 2
    assert found["runs"]["layers.1/gmm.up"]["replays"] == 0
    assert found["losses"] == results["checkpoints"]["plain_losses"][:1]


def test_evaluation_between_steps_is_not_noticed(results):
    assert all(results["evaluation"].values()), results["evaluation"]


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("own_recompute", ("recompute.mode='full'", "wrapped twice")),
        ("own_swap", ("swap.enable=True", "wrapped twice")),
        ("misspelt_region", ("plan.save[0]='gmm.upp'", "did you mean 'gmm.up'")),
        ("backend", ("backend='hyper_parallel'", "not installed")),
        ("bypassed", ("PlanMismatch", "layers.1/dispatch.permute: ran 0 times", "the plan says 2 and 2")),
        ("renamed", ("decoder.layers.0.mlp.experts.unpermute", "no 'unpermute'")),
    ],
)
def test_refusals_name_what_is_wrong(results, case, parts):
    for part in parts:
        assert part in results["refusals"][case]


def test_under_parallelism_the_plan_replaces_apply_ac_before_fsdp(results):
    found = results["under_parallelism"]
    assert found["wrapped_before_fsdp"] == found["receipts"] > 20
    assert found["apply_ac_back"]
    assert found["mode_kept"]
    assert "the model holds plan" in found["other_plan"]
    assert "wrapped twice" in found["both"]


def test_a_pipeline_stage_takes_its_layers_part_of_the_plan(results):
    assert results["under_parallelism"]["stage"] == [1]


@pytest.mark.parametrize("output", ["True", "False"], ids=["plain outputs", "distributed outputs"])
@pytest.mark.parametrize("layout", ["none", "full", "op_exclude", "region_exclude", "chain_exclude"])
def test_a_plan_changes_no_bit_around_a_distributed_router(results, layout, output):
    """Under tensor parallelism MindFormers converts distributed tensors in hooks around each router."""
    found = results["distributed_routers"][output]
    assert found["plain"]["routers"] == 1
    assert len(found["plain"]["grads"]) > 20
    assert found[layout] == found["plain"]
