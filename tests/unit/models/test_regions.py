"""One region saved or replayed at a time: no bit changes, and tokens are counted once."""

from __future__ import annotations

import pytest

from hp_memory.layout import LayoutSettings, build_plan
from hp_memory.models.fingerprint import fingerprint

REGIONS = (
    *("attention.qkv_proj", "attention.rope", "router.gate"),
    *("shared_experts.up", "shared_experts.act", "shared_experts.down"),
)
CHOICES = [
    LayoutSettings("plain", "save"),
    *(LayoutSettings(f"only {region} saved", "recompute", save=[region]) for region in REGIONS),
    *(LayoutSettings(f"only {region} replayed", "save", recompute=[region]) for region in REGIONS),
    LayoutSettings("groups", "recompute", save=["router", "attention.qkv", "shared_experts"]),
]


@pytest.fixture(scope="module")
def steps(mindspore):
    """Loss, gradients and loads of one training step, kept by layout."""
    return {}


@pytest.mark.parametrize("layout", CHOICES, ids=lambda layout: layout.name)
def test_no_bit_changes(mindspore, build, settings, tokens, steps, layout):
    from hp_memory.install import install
    from hp_memory.models.reference import next_token_loss, region_map

    model = build(settings)
    install(model, build_plan(layout, fingerprint(settings)), region_map(model))
    parameters = model.trainable_params()
    step = mindspore.value_and_grad(lambda x, y: next_token_loss(model(x), y), None, parameters)
    seen = []
    for _ in range(2):  # the first step watches, the second knows
        loss, grads = step(*tokens)
        loads = [load.tolist() for load in model.take_expert_loads()]
        seen.append((float(loss), [grad.asnumpy().tobytes() for grad in grads], loads))
    assert seen == steps.setdefault("plain", seen)
    assert seen[0][1] == seen[1][1]
    assert sum(seen[0][2][0]) == tokens[0].size * settings.top_k
