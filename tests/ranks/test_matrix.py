"""Every layout under every spread of two and four workers: bit-equal to the same job without a plan, on every rank.

An own target (``make test-ranks``): one start of msrun trains one model under one spread, with all layouts in sequence.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.same_bits import LAYOUTS, assert_no_bit_changed

pytestmark = pytest.mark.timeout(1800)

# Workers, and what MindFormers' ``parallelism`` section says; without a size FSDP takes all data parallel ranks.
SPREADS: dict[str, tuple[int, dict]] = {
    "data2": (2, {"data_parallel_shard": 1}),
    "fsdp2": (2, {}),
    "fsdp2-reshard-always": (2, {"reshard_after_forward_policy": "always"}),
    "fsdp2-reshard-never": (2, {"reshard_after_forward_policy": "never"}),
    "fsdp2-expert2": (2, {"expert_parallel": 2}),
    "fsdp2-expert2-reshard-always": (2, {"expert_parallel": 2, "reshard_after_forward_policy": "always"}),
    "fsdp4": (4, {}),
    "copies2-fsdp2": (4, {"data_parallel_shard": 2}),
    "fsdp4-expert2": (4, {"expert_parallel": 2}),
    "fsdp4-expert4": (4, {"expert_parallel": 4}),
    "copies2-fsdp2-expert2": (4, {"data_parallel_shard": 2, "expert_parallel": 2}),
}
# As `hp-memory search` prints one: a layer that keeps all, another that keeps some.
SEARCHED = {
    "name": "searched",
    "default": "save",
    "layers": [{"layers": "1", "default": "recompute", "save": ["attention.core", "gmm.down", "router.gate"]}],
}
MODELS = ("deepseek_v3", "qwen3_moe")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("spread", SPREADS)
def test_every_layout_changes_no_bit(msrun_job, spread, model):
    workers, parallelism = SPREADS[spread]
    common = {"model": model, "parallelism": parallelism, "steps": 2}
    cases = [common | {"name": "alone", "alone": True, "whole": True}, common | {"name": "plain", "whole": True}]
    plans = {layout: layout for layout in LAYOUTS} | {"searched": SEARCHED}
    cases += [common | {"name": name, "plan": plan} for name, plan in plans.items()]
    ranks, folder = msrun_job(workers, cases, timeout=1700)
    assert_no_bit_changed(ranks, "plain", list(plans))
    for rank in ranks:
        assert rank["full"]["report"]["runs"]
        for what in ("losses", "norms"):
            one, many = ([float.fromhex(value) for value in rank[name][what]] for name in ("alone", "plain"))
            assert many == pytest.approx(one, rel=1e-5)
    # Sums are added in another order; a step of AdamW moves a parameter by 0.01.
    one, many = (np.load(folder / f"{name}_0.npz") for name in ("alone", "plain"))
    # Without a router's bias MindFormers leaves each rank the count of its own rows.
    for name in (name for name in one.files if not name.endswith("tokens_per_expert")):
        assert many[name] == pytest.approx(one[name], abs=1e-4), name
