"""Every layout under every spread of two and four workers: bit-equal to the same job without a plan, on every rank.

An own target (``make test-ranks``): each spread is a job of its own.
"""

from __future__ import annotations

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(1800)

# Workers, and what MindFormers' ``parallelism`` section says; without a size FSDP takes all data parallel ranks.
SPREADS: dict[str, tuple[int, dict]] = {
    "data=2": (2, {"data_parallel_shard": 1}),
    "fsdp=2": (2, {}),
    "fsdp=2 reshard always": (2, {"reshard_after_forward_policy": "always"}),
    "fsdp=2 reshard never": (2, {"reshard_after_forward_policy": "never"}),
    "fsdp=2 expert=2": (2, {"expert_parallel": 2}),
    "fsdp=4": (4, {}),
    "data=4 fsdp=2": (4, {"data_parallel_shard": 2}),
    "fsdp=4 expert=2": (4, {"expert_parallel": 2}),
    "fsdp=4 expert=4": (4, {"expert_parallel": 4}),
    "data=4 fsdp=2 expert=2": (4, {"data_parallel_shard": 2, "expert_parallel": 2}),
}
BY_LAYER = {"name": "by_layer", "default": "recompute", "layers": [{"layers": "1", "save": ["gmm", "shared_experts"]}]}
LAYOUTS = ("none", "full", "op_exclude", "region_exclude", "chain_exclude")
MODELS = {"deepseek_v3": (*LAYOUTS, BY_LAYER), "qwen3_moe": LAYOUTS}
RESULTS = ("losses", "norms", "grads", "params", "states", "tokens", "aux")

PLANS = [
    (spread, model, plan if isinstance(plan, str) else plan["name"])
    for spread in SPREADS
    for model, plans in MODELS.items()
    for plan in plans
]


@pytest.fixture(scope="module")
def jobs(msrun_job):
    done: dict = {}

    def job(spread: str) -> tuple[list[dict], object]:
        if spread not in done:
            workers, parallelism = SPREADS[spread]
            cases = []
            for model, plans in MODELS.items():
                common = {"model": model, "parallelism": parallelism}
                cases.append(common | {"name": f"{model} alone", "alone": True, "whole": True})
                cases.append(common | {"name": f"{model} plain", "whole": True})
                for plan in plans:
                    name = plan if isinstance(plan, str) else plan["name"]
                    cases.append(common | {"name": f"{model} {name}", "plan": plan})
            done[spread] = msrun_job(workers, cases, timeout=1700)
        return done[spread]

    return job


@pytest.mark.parametrize(("spread", "model", "plan"), PLANS)
def test_a_plan_changes_no_bit(jobs, spread, model, plan):
    ranks, _ = jobs(spread)
    for number, rank in enumerate(ranks):
        plain, planned = rank[f"{model} plain"], rank[f"{model} {plan}"]
        for what in RESULTS:
            assert planned[what] == plain[what], f"rank {number}: {what}"
        assert planned["names_kept"]
        assert planned["optimizer_kept"]
        assert planned["report"]["plan_hash"] == ranks[0][f"{model} {plan}"]["report"]["plan_hash"]
        assert planned["report"]["runs"] or plan == "none"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("spread", SPREADS)
def test_the_bed_computes_what_one_process_does(jobs, spread, model):
    ranks, folder = jobs(spread)
    for rank in ranks:
        for what in ("losses", "norms"):
            one, many = ([float.fromhex(v) for v in rank[f"{model} {name}"][what]] for name in ("alone", "plain"))
            assert many == pytest.approx(one, rel=1e-5)
    one, many = (np.load(folder / f"{model} {name}.npz") for name in ("alone", "plain"))
    for name in one.files:
        assert many[name] == pytest.approx(one[name], abs=1e-4), name
