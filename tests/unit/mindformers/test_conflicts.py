"""Every pair in the table is refused, and no sound config is."""

from __future__ import annotations

import pytest

from hp_memory.errors import ConfigError
from hp_memory.mindformers.conflicts import BESIDE_A_PLAN, CONFLICTS, WITHOUT_A_PLAN, refuse

MOE = {"n_routed_experts": 8}
# A sound overlap, from which a case takes one thing away.
OVERLAP = {
    "pipeline_parallel": 2,
    "pipeline_parallel_overlap_b_f": True,
    "pipeline_parallel_schedule": "interleaved_1f1b",
    "pipeline_parallel_interleave_num": 2,
    "expert_parallel": 2,
}
# One config for each pair: what sets both.
CASES = {
    ("swap.enable", "parallelism.pipeline_parallel"): {
        "swap": {"enable": True},
        "parallelism": {"pipeline_parallel": 2},
    },
    ("parallelism.pipeline_parallel_enable_dxdw_split", "parallelism.pipeline_parallel_overlap_b_f"): {
        "parallelism": {"pipeline_parallel_enable_dxdw_split": True, "pipeline_parallel": 2}
    },
    ("parallelism.pipeline_parallel_overlap_b_f", "model"): {"parallelism": OVERLAP, "model": {}},
    ("parallelism.pipeline_parallel_overlap_b_f", "parallelism.pipeline_parallel"): {
        "parallelism": OVERLAP | {"pipeline_parallel": 1},
        "model": MOE,
    },
    ("parallelism.pipeline_parallel_overlap_b_f", "parallelism.expert_parallel"): {
        "parallelism": OVERLAP | {"expert_parallel": 1},
        "model": MOE,
    },
    ("parallelism.pipeline_parallel_overlap_b_f", "parallelism.pipeline_parallel_schedule"): {
        "parallelism": OVERLAP | {"pipeline_parallel_schedule": "1f1b", "pipeline_parallel_interleave_num": 1},
        "model": MOE,
    },
    ("parallelism.pipeline_parallel_overlap_p2p", "parallelism.pipeline_parallel_schedule"): {
        "parallelism": {"pipeline_parallel": 2, "pipeline_parallel_overlap_p2p": True},
    },
    ("parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_interleave_num", "1f1b"): {
        "parallelism": {"pipeline_parallel_schedule": "1f1b", "pipeline_parallel_interleave_num": 2}
    },
    ("parallelism.pipeline_parallel_schedule", "parallelism.pipeline_parallel_interleave_num", "interleaved"): {
        "parallelism": {"pipeline_parallel_schedule": "interleaved_1f1b"}
    },
    ("recompute.full_recompute_layer", "swap.layer_swap"): {
        "recompute": {"mode": "full", "full_recompute_layer": ["0-3"]},
        "swap": {"enable": True, "layer_swap": [{"layers": ["3"]}]},
    },
    ("swap.layer_swap", "swap.layer_swap"): {
        "swap": {"enable": True, "layer_swap": [{"layers": ["3"]}, {"layers": ["5"]}]}
    },
    ("recompute.exclude_op", "recompute.mode"): {"recompute": {"exclude_op": ["matmul"]}},
    ("parallelism.moe_token_dispatcher_type", "parallelism.pipeline_parallel_overlap_b_f"): {
        "parallelism": OVERLAP | {"moe_token_dispatcher_type": "alltoall_deredundancy", "expert_parallel": 8},
        "model": MOE,
    },
    ("parallelism.moe_token_dispatcher_type", "parallelism.expert_parallel"): {
        "parallelism": {"moe_token_dispatcher_type": "alltoall_deredundancy", "expert_parallel": 4}
    },
}


@pytest.mark.parametrize("pair", CASES, ids=" x ".join)
def test_each_pair_is_refused_and_named(pair):
    with pytest.raises(ConfigError) as error:
        refuse(CASES[pair], with_plan=False)
    assert error.value.path == pair[0]
    assert pair[1] in str(error.value)


def test_every_pair_of_the_table_has_a_case():
    assert len(CASES) == len(CONFLICTS)
    for conflict in CONFLICTS:
        assert sum(conflict.holds(config) for config in CASES.values()) == 1, conflict


@pytest.mark.parametrize(
    ("path", "config", "why"),
    [
        ("recompute.mode", {"recompute": {"mode": "full", "full_recompute_layer": ["0"]}}, "wrapped twice"),
        ("recompute_comm.enable", {"recompute_comm": {"enable": True}}, "wrapped twice"),
        ("swap.enable", {"swap": {"enable": True}}, "wrapped twice"),
        (
            "parallelism.moe_token_dispatcher_type",
            {"parallelism": {"moe_token_dispatcher_type": "alltoall_deredundancy", "expert_parallel": 8}},
            "bodies without regions",
        ),
    ],
)
def test_what_cant_be_beside_a_plan(path, config, why):
    refuse(config, with_plan=False)
    with pytest.raises(ConfigError, match=why) as error:
        refuse(config, with_plan=True)
    assert error.value.path == path
    assert sum(conflict.holds(config) for conflict in BESIDE_A_PLAN) == 1


def test_what_only_the_callback_makes_good():
    config = {"parallelism": OVERLAP | {"pipeline_parallel_enable_dxdw_split": True}, "model": MOE}
    refuse(config, with_plan=True)
    with pytest.raises(ConfigError, match="HPMemoryCallback runs dx alone") as error:
        refuse(config, with_plan=False)
    assert [conflict.path for conflict in WITHOUT_A_PLAN] == [error.value.path]


def test_the_string_none_is_no_recompute():
    refuse({"recompute": {"mode": "None"}, "swap": {"enable": False}}, with_plan=True)
    refuse({}, with_plan=True)
