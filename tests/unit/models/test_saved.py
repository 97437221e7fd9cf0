"""The hand-written tables against what a probe finds, as sets."""

from __future__ import annotations

from collections import Counter

import pytest

from hp_memory.layout import LayoutSettings, build_plan
from hp_memory.models.fingerprint import fingerprint

LAYOUTS = {
    "none": LayoutSettings("none", "save"),
    "full": LayoutSettings("full", "recompute"),
    "op_exclude": LayoutSettings("op_exclude", "recompute", save=["all2all", "gmm"]),
    "region_exclude": LayoutSettings(
        "region_exclude",
        "recompute",
        save=["all2all", "compute", "gmm", "combine.unsort"],
        as_one=[["all2all.in", "all2all.out"]],
    ),
    "chain_exclude": LayoutSettings("chain_exclude", "recompute", save=["all2all", "compute", "gmm", "combine.unsort"]),
}


def keys(layer, entries):
    return Counter((_region(layer, e), e.shape, e.dtype, e.nbytes, e.reason) for e in entries)


def _region(layer, entry):
    region = entry.region
    if region.startswith("layers."):
        return region
    return f"layers.{layer}/{region}" if region else f"layers.{layer}"


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shared_experts", [1, 0])
def test_each_layout_holds_exactly_what_its_table_says(mindspore, build, settings, tokens, layout, shared_experts):
    from hp_memory.activation import observe
    from hp_memory.install import install
    from hp_memory.models.reference import next_token_loss, region_map, saved

    settings.shared_experts = shared_experts
    model = build(settings)
    install(model, build_plan(LAYOUTS[layout], fingerprint(settings)), region_map(model))
    step = mindspore.value_and_grad(lambda x, y: next_token_loss(model(x), y), None, model.trainable_params())
    step(*tokens)  # the first forward learns which outputs a replay reads
    with observe() as observation:
        step(*tokens)
    values = saved.sizes(settings, 2, model.layers[1].moe.received_rows)
    for layer, kind in enumerate(settings.kinds):
        found = [h for h in observation.held if h.region.split("/")[0] == f"layers.{layer}"]
        assert keys(layer, found) == keys(layer, saved.expected(layout, kind, values))


def test_the_chain_holds_what_the_document_counts(mindspore, settings):
    from hp_memory.compare.chain import measure_chain
    from hp_memory.models.reference.saved import REPLAY

    results = {result.case: result for result in measure_chain(settings)}
    assert {case: result.agrees for case, result in results.items()} == dict.fromkeys(results, True)
    assert len(results["op_exclude, inputs kept"].found) == 3
    assert len(results["op_exclude"].found) == 2
    assert len(results["region_exclude"].found) == 2
    # resort's output is gmm's input: one storage, held for the gradient in any case. So three outputs, and one.
    assert len(results["chain_exclude, outputs kept"].found) == 3
    assert [h.region for h in results["chain_exclude"].found if h.reason == REPLAY] == ["gmm.up"]


def test_a_table_of_sizes_has_every_symbol(settings):
    from hp_memory.models.reference import saved

    values = saved.sizes(settings, 2, 28)
    for tensors in saved.TENSORS.values():
        assert all(symbol in values for tensor in tensors for symbol in tensor.shape)
