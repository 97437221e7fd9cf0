from __future__ import annotations

from hp_memory.config.estimate import EstimateSettings
from hp_memory.estimate.account.terms import optimizer_step, static_terms
from hp_memory.estimate.tracing.record import LayerTrace, Parameter
from hp_memory.models.settings import ParallelSettings


def layer(dense: int = 1000, expert: int = 8000) -> LayerTrace:
    trace = LayerTrace("moe", ())
    trace.parameters = [
        Parameter("attention", (dense,), 2 * dense, True, False),
        Parameter("experts", (expert,), 2 * expert, True, True),
        Parameter("load", (10,), 40, False, False),
    ]
    return trace


def terms(parallel: ParallelSettings, **settings) -> dict[str, int]:
    settings = EstimateSettings(reserve="0B", **settings)
    return {t.name: t.nbytes for t in static_terms([layer(), layer()], settings, parallel, 100)}


def test_one_rank_holds_everything_and_adamw_twelve_bytes_per_narrow_parameter():
    found = terms(ParallelSettings())
    assert found == {"parameters": 2 * 18040, "gradients": 2 * 4 * 9000, "optimizer states": 2 * 12 * 9000}


def test_fsdp_spreads_dense_parameters_over_its_ranks_and_experts_over_what_expert_parallelism_leaves():
    found = terms(ParallelSettings(data=8, fsdp=8, expert=4))
    assert found["optimizer states"] == 2 * (12 * 1000 // 8 + 12 * 8000 // 2)
    assert found["parameters"] == 2 * (2000 // 8 + 40 // 8 + 16000 // 2)
    # Without a pipeline two layers' parameters are gathered at a time: here that is both.
    assert found["gathered parameters"] == 2 * (2000 + 40 + 16000) - found["parameters"]
    assert found["gradients being reduced"] == 18000


def test_under_a_pipeline_gathered_parameters_stay_after_the_forward_unless_told_otherwise():
    parallel = ParallelSettings(data=8, fsdp=8, pipeline=2)
    kept = terms(parallel)["gathered parameters"]
    dropped = terms(parallel, reshard_after_forward="always", prefetch=0)["gathered parameters"]
    assert kept == 2 * dropped
    assert terms(parallel)["pipeline messages"] == 200


def test_under_a_pipeline_gradients_are_added_up_before_they_are_spread_whatever_is_resharded():
    alone, piped = (ParallelSettings(data=8, fsdp=8, expert=4, pipeline=stages) for stages in (1, 2))
    assert terms(alone)["gradients"] == 2 * 4 * (1000 // 8 + 8000 // 2)
    for policy in ("default", "always", "never"):
        found = terms(piped, reshard_after_forward=policy)
        assert found["gradients"] == 2 * 4 * 9000
        assert "gradients being reduced" not in found
    sharded = terms(piped, gradient_accumulation="sharded")
    assert sharded["gradients"] == terms(alone)["gradients"]
    assert sharded["gradients being reduced"] == 18000
    assert terms(alone, gradient_accumulation="whole")["gradients"] == 2 * 4 * 9000


def test_sharding_of_less_keeps_more():
    parallel = ParallelSettings(data=8, fsdp=8)
    assert terms(parallel, shard="optim")["gradients"] == 2 * 4 * 9000
    assert terms(parallel, shard="optim_grads")["gradients"] == 2 * (4 * 9000 // 8)
    assert "gathered parameters" not in terms(parallel, shard="optim_grads")


def test_communicators_take_two_buffers_each_and_every_term_says_how_it_came_about():
    parallel = ParallelSettings(data=8, expert=4, pipeline=2)
    found = static_terms([layer()], EstimateSettings(), parallel, 100)
    assert {t.name: t.nbytes for t in found}["communicators"] == 2 * 4 * 200 * 2**20
    assert {t.kind for t in found} == {"MODELLED"}
    assert all(t.scales for t in found)


def test_the_optimizer_step_is_sized_by_the_largest_shard():
    assert optimizer_step([layer()], ParallelSettings(data=8, fsdp=8, expert=4)) == 3 * 4 * 4000
