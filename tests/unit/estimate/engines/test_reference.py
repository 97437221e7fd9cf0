"""The dry run against the real thing: the reference model on a CPU, seen by probes that share nothing with it."""

from __future__ import annotations

import gc
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

from hp_memory.config.app import compose, to_object
from hp_memory.errors import ConfigError
from hp_memory.layout import ALWAYS_SAVED, LayoutSettings, build_plan
from hp_memory.models.fingerprint import fingerprint
from hp_memory.models.settings import ModelSettings, ParallelSettings

MODEL = ModelSettings(
    family="reference", num_layers=2, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, ffn_size=96,
    first_dense_layers=1, num_experts=4, top_k=2, expert_ffn_size=32, shared_experts=1, vocab_size=128, seq_length=8,
)  # fmt: skip
NAMED = ("none", "full", "op_exclude", "region_exclude", "chain_exclude")
SEQUENCES = 2


def named(layout: str) -> LayoutSettings:
    return to_object(compose("layout_only", [f"layout={layout}"])).layout


def work(model=MODEL, **parallel):
    from hp_memory.estimate.workload import Workload

    return Workload(model, ParallelSettings(**parallel), SEQUENCES, "float32", "copied")


def run_for_real(layout: LayoutSettings, layer: int, model=MODEL, probe=None):
    """One forward and backward of a block on the CPU: what was held, how often regions ran, the routing it made."""
    import mindspore as ms

    from hp_memory.activation import observe
    from hp_memory.install import install
    from hp_memory.models.reference import build, region_map

    part = build(model, ParallelSettings())
    install(part, build_plan(layout, fingerprint(model)), region_map(part))
    block, routing = list(part.layers)[layer], []
    if model.kinds[layer] == "moe":
        router = block.moe.router
        kernels = vars(router.kernels)

        def topk(scores, k):
            values, indices = kernels["topk"](scores, k)
            routing.append(indices.asnumpy().copy())
            return values, indices

        router.__dict__["kernels"] = SimpleNamespace(**kernels | {"topk": topk})
    rows = np.random.default_rng(0).standard_normal((SEQUENCES * model.seq_length, model.hidden_size))
    x = ms.Tensor(rows.astype(np.float32))
    with observe() as seen:
        ms.value_and_grad(block, 0, ms.ParameterTuple(block.trainable_params()))(x)
        held = list(seen.held)
    return held, seen.runs, routing[0] if routing else None


def trace_of(chosen):
    from hp_memory.estimate.engines import reference as reference_engine

    return reference_engine.trace(work(), chosen)


@pytest.fixture(scope="module")
def routing(mindspore):
    return run_for_real(named("none"), 1)[2]


@pytest.fixture(scope="module")
def traced(routing):
    return trace_of(routing)


def expected(traced, layout: LayoutSettings, layer: int) -> Counter:
    from hp_memory.estimate.account.held import held

    plan = build_plan(layout, fingerprint(MODEL)).layers[layer]
    trace = traced.layers[plan.kind]
    storages = ((entry.shape, trace.storages[entry.storage]) for entry in held(trace, plan.layout))
    return Counter((shape, s.dtype, s.nbytes) for shape, s in storages)


@pytest.mark.parametrize("layout", NAMED)
@pytest.mark.parametrize("layer", [0, 1])
def test_the_set_of_held_storages_is_what_a_probe_measures(traced, layout, layer):
    held, _, _ = run_for_real(named(layout), layer)
    assert Counter((h.shape, h.dtype, h.nbytes) for h in held) == expected(traced, named(layout), layer)


free = sorted(set(fingerprint(MODEL).regions["moe"]) - set(ALWAYS_SAVED))


@given(st.sets(st.sampled_from(free), max_size=len(free) - 1), st.booleans())
@settings(max_examples=8, phases=[Phase.generate])
def test_any_layout_holds_what_a_probe_measures(mindspore, traced, save, keep_outputs):
    # Queries, keys and values are views, whose copies inside the attention kernel the checkpoint can't see being read.
    assume("attention.qkv" not in save or "attention.core" in save)
    layout = LayoutSettings(name="random", default="recompute", save=sorted(save), keep_outputs=keep_outputs)
    held, runs, _ = run_for_real(layout, 1)
    assert Counter((h.shape, h.dtype, h.nbytes) for h in held) == expected(traced, layout, 1)
    for region in free:
        assert runs[f"layers.1/{region}"].replays == (region not in save)


@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_no_layout_holds_more_than_no_checkpoint_and_the_input(traced, kind):
    from hp_memory.estimate.account.held import held_bytes_of_all

    trace = traced.layers[kind]
    held = held_bytes_of_all(trace)
    decisions = trace.nbytes(n for region in ALWAYS_SAVED for n in trace.region_outputs.get(region, ()))
    assert len(held) == 2 ** len(set(trace.regions) - set(ALWAYS_SAVED))
    assert held.max() <= held[0] + trace.nbytes(trace.inputs) + decisions
    assert held[-1] < held[0]


def test_the_installed_plan_on_the_meta_device_keeps_and_replays_what_the_rules_say(traced, routing):
    from hp_memory.estimate.engines import reference as reference_engine

    for name in NAMED:
        plan = build_plan(named(name), fingerprint(MODEL))
        for check in reference_engine.check(work(), traced, plan, routing):
            assert check.held == check.expected, (name, check.kind)
            assert check.replay_flops == check.expected_replay_flops, (name, check.kind)


def test_storages_said_to_be_held_are_owned_and_the_others_are_given_back(mindspore, traced):
    """Reuse of freed memory as the measure: no hook has a part in it. Large tensors, or the pool decides nothing."""
    import mindspore as ms

    from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper
    from hp_memory.activation.probe import block_of, was_freed
    from hp_memory.estimate.account.held import held_by
    from hp_memory.estimate.tracing.record import LayerTrace
    from hp_memory.estimate.tracing.trace import Mark, record_layer
    from hp_memory.kernels.cpu.kernels import swiglu

    shape, blocks = (2048, 2048), {}

    def noted(name, function):
        def call(x):
            blocks[name] = block_of(out := function(x))
            return out

        return call

    parts = {"mlp.up": lambda x: ms.mint.cat((x, x), 1), "mlp.act": swiglu, "mlp.down": lambda x: x * x}

    def chain(wrap):
        up, act, down = (wrap(name, part) for name, part in parts.items())
        return lambda x: down(act(up(x * 1.5)))

    trace = LayerTrace("dense", tuple(parts))
    with ms.DeviceCtx("meta"):
        record_layer(trace, chain(lambda name, part: Mark(part, name)), [ms.mint.empty(shape)], [], views="copied")
    kept = {entry.storage for entry in held_by(trace, ("mlp.act",))}

    def wrap(name, part):
        return noted(name, part) if name == "mlp.act" else checkpoint_exclude_wrapper(noted(name, part), name=name)

    found = {}

    def forward(x):
        out = checkpoint_wrapper(chain(wrap), name="chain")(x)
        gc.collect()
        found.update({name: not was_freed(block) for name, block in blocks.items() if name != "mlp.down"})
        return out

    ms.grad(forward)(ms.Tensor(np.ones(shape, np.float32)))
    assert found == {name: trace.region_outputs[name][0] in kept for name in found}
    assert found == {"mlp.up": True, "mlp.act": False}


def test_a_storage_stays_as_long_as_a_variable_refers_to_it(mindspore):
    import mindspore as ms

    from hp_memory.estimate.tracing.record import LayerTrace
    from hp_memory.estimate.tracing.trace import record_layer

    def forgetful(x):
        return ((x + 1) + 2) + 3

    def keeping(x):
        first = x + 1
        second = first + 2
        return second + 3

    def released(function) -> list[int]:
        trace = LayerTrace("dense", ())
        with ms.DeviceCtx("meta"):
            record_layer(trace, function, [ms.mint.empty((4, 4))], [])
        return [trace.released[op.writes[0]] for op in trace.of_phase("forward")[:2]]

    assert released(forgetful) == [1, 2]
    assert released(keeping) == [2, 2]


def test_parameters_are_counted_as_the_built_model_has_them(mindspore):
    from hp_memory.estimate.engines.choice import trace
    from hp_memory.models.reference import build

    real = sum(p.size for p in build(MODEL, ParallelSettings()).trainable_params())
    assert trace(work()).total_parameters == real
    # Every rank holds its own experts, and all of them together the same model.
    assert trace(work(data=2, expert=2)).total_parameters == real


def test_equal_layers_are_traced_once_and_a_change_of_layout_traces_nothing(mindspore, monkeypatch):
    from hp_memory.config.estimate import EstimateSettings
    from hp_memory.estimate.engines import reference as reference_engine
    from hp_memory.estimate.ranks import estimate
    from hp_memory.pipeline.settings import PipelineSettings

    deep = ModelSettings(**vars(MODEL) | {"num_layers": 40})
    assumptions = EstimateSettings(dtype="float32", views="copied", reserve="0B", fragmentation=0.0)
    pipeline = PipelineSettings(stages=4, microbatches=8)
    needs = work(deep, pipeline=4)
    first = estimate(needs, build_plan(named("full"), needs.fingerprint()), pipeline, assumptions)
    monkeypatch.setattr(reference_engine, "record_layer", None)
    second = estimate(needs, build_plan(named("none"), needs.fingerprint()), pipeline, assumptions)
    assert first.worst.peak < second.worst.peak
    assert [stage.layers for stage in first.stages] == [tuple(range(10 * i, 10 * i + 10)) for i in range(4)]
    assert [round(stage.in_flight, 6) for stage in first.stages] == [4, 3, 2, 1]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"parallel": ParallelSettings(context=2)}, "parallel.context"),
        ({"dtype": "bfloat16"}, "estimate.dtype"),
        ({"imbalance": 1.5}, "estimate.imbalance"),
    ],
)
def test_what_is_not_modelled_is_refused(mindspore, change, path):
    from dataclasses import replace

    from hp_memory.estimate.engines.choice import trace

    with pytest.raises(ConfigError, match=f"{path}="):
        trace(replace(work(), **change))
