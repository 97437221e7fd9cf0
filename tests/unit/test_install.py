"""Installation: applied once, counted, refused where plan and model don't fit, invisible to parameter names."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest

from hp_memory.errors import InstallError
from hp_memory.layout import LayoutSettings, build_plan
from hp_memory.layout.regions import EXPERT_PATH
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.settings import ModelSettings, ParallelSettings

MODEL = ModelSettings(
    family="reference", num_layers=3, hidden_size=16, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=32,
    first_dense_layers=1, num_experts=4, top_k=2, expert_ffn_size=8, shared_experts=1, vocab_size=32, seq_length=8,
)  # fmt: skip


@pytest.fixture
def build(mindspore):
    from hp_memory.models.reference import build

    return lambda settings=MODEL: build(settings, ParallelSettings())


def plan(model=MODEL, **kw):
    return build_plan(LayoutSettings(**{"name": "mine", "default": "recompute", **kw}), fingerprint(model))


def install(model, activation_plan, blocks=None):
    from hp_memory.install import install as apply
    from hp_memory.models.reference import region_map

    return apply(model, activation_plan, region_map(model) if blocks is None else blocks)


def names(model):
    return [(name, p.name) for name, p in model.parameters_and_names()]


def test_the_receipt_counts_every_wrapper(build):
    model = build()
    receipt = install(model, plan(save=["gmm"]))
    assert receipt.count("boundary") == 3
    assert receipt.count("saved") == 2 * (2 + 2)  # router, counts and both gmm in two MoE layers
    assert receipt.count("replayed") == len(receipt.wrapped) - 3 - 8
    assert receipt.plan_hash in receipt.in_words()


def test_a_plan_that_replays_nothing_puts_no_boundary(build):
    receipt = install(build(), plan(default="save"))
    assert {w.how for w in receipt.wrapped} == {"named"}


def test_a_span_is_excluded_by_one_wrapper_and_its_regions_are_only_named(build):
    spans = plan(save=["all2all", "compute", "gmm", "combine.unsort"], as_one=[["all2all.in", "all2all.out"]])
    receipt = install(build(), spans)
    one = [w for w in receipt.wrapped if w.how == "saved as one"]
    assert [w.regions for w in one] == [EXPERT_PATH, EXPERT_PATH]
    assert receipt.count("named") == 2 * len(EXPERT_PATH)


def test_a_span_without_a_place_of_its_own_excludes_its_regions_one_by_one(build):
    from hp_memory.models.reference import region_map

    model = build()
    singles = [
        dataclasses.replace(b, sites=tuple(s for s in b.sites if len(s.regions) == 1)) for b in region_map(model)
    ]
    spans = plan(save=["all2all", "compute", "gmm", "combine.unsort"], as_one=[["all2all.in", "all2all.out"]])
    receipt = install(model, spans, singles)
    assert receipt.count("saved as one") == 0
    assert receipt.count("saved") == 2 * (2 + len(EXPERT_PATH))


def test_parameter_names_are_what_they_were(build):
    model, wrapped = build(), build()
    install(wrapped, plan(save=["gmm"]))
    assert names(wrapped) == names(model)
    assert [n for n, _ in wrapped.cells_and_names()] == [n for n, _ in model.cells_and_names()]


def test_a_second_installation_is_refused(build):
    from hp_memory.models.reference import region_map

    model = build()
    blocks = region_map(model)
    install(model, plan(), blocks)
    with pytest.raises(InstallError, match="already"):
        install(model, plan(), blocks)
    with pytest.raises(InstallError, match="wrapped already"):
        install(model.layers, plan(), region_map(model))


@pytest.mark.parametrize(
    "other", [{"num_layers": 2}, {"num_layers": 5}, {"hidden_size": 32}, {"first_dense_layers": 0}]
)
def test_a_plan_for_another_model_is_refused_and_nothing_is_wrapped(build, other):
    model = build()
    with pytest.raises(InstallError, match="this one is"):
        install(model, plan(replace(MODEL, **other)))
    assert install(model, plan()).wrapped


def test_a_region_map_with_a_missing_or_renamed_place_is_refused_before_anything_changes(build):
    from hp_memory.models.reference import region_map

    model = build()
    first, *rest = region_map(model)
    with pytest.raises(InstallError, match="no place for mlp\\.down"):
        install(model, plan(), [dataclasses.replace(first, sites=first.sites[:-1]), *rest])
    renamed = dataclasses.replace(first.sites[0], attr="gone")
    with pytest.raises(InstallError, match="no attribute 'gone'"):
        install(model, plan(), [dataclasses.replace(first, sites=(renamed, *first.sites[1:])), *rest])
    with pytest.raises(InstallError, match="names no block"):
        install(model, plan(), [])
    assert install(model, plan()).wrapped


def test_graph_mode_is_refused_before_anything_is_wrapped(mindspore, build):
    model = build()
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    try:
        with pytest.raises(InstallError, match="PYNATIVE_MODE"):
            install(model, plan())
    finally:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    assert install(model, plan()).wrapped
