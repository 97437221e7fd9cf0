"""Seconds of operations, layers and steps, worked out by hand."""

from __future__ import annotations

import pytest

from hp_memory.config.estimate import DeviceSettings, EstimateSettings
from hp_memory.errors import ConfigError
from hp_memory.estimate.times.layer import LayerTime, Work, layer_time, weight_operations
from hp_memory.estimate.times.operations import seconds
from hp_memory.estimate.times.outside import Outside, outside
from hp_memory.estimate.times.step import PARTS, rank_times, timeline_of
from hp_memory.estimate.tracing.record import EXCHANGE, LayerTrace, Op, Parameter, Storage
from hp_memory.models.settings import ParallelSettings
from hp_memory.pipeline.generate import generate

# 1 TFLOPS, 1000 bytes a second through memory, 100 over the link.
DEVICE = DeviceSettings(peak_teraflops=2.0, teraflops=1.0, memory_bandwidth=1000.0, link_bandwidth=100.0)
UP, ACT, A2A = "gmm.up", "compute.act", "all2all.in"


def layer() -> LayerTrace:
    """x -exchange-> 1 -product with w (5)-> 2 -act-> 3, and its backward; 100 bytes each."""
    trace = LayerTrace("moe", (A2A, UP, ACT))
    for number in range(10):
        kind = {0: "input", 5: "parameter"}.get(number, "activation")
        trace.storages.append(Storage(number, (25,), "float32", 100, kind, "", "forward"))
    trace.ops = [
        Op(EXCHANGE, "forward", A2A, (0,), (1,)),
        Op("Reshape", "forward", UP, (1,), (1,)),
        Op("GroupedMatmul", "forward", UP, (1, 5), (2,), int(2e12)),
        Op("SiLU", "forward", ACT, (2,), (3,)),
        Op("SiLUGrad", "backward", ACT, (4, 2), (6,)),
        Op("GroupedMatmul", "backward", UP, (6, 5), (7,), int(2e12)),
        Op("GroupedMatmul", "backward", UP, (1, 6), (8,), int(3e12)),
        Op("Cast", "backward", UP, (8,), (9,)),
        Op(EXCHANGE, "backward", A2A, (7,), (4,)),
    ]
    trace.weight_gradients = frozenset({9})
    return trace


def test_an_operation_takes_what_its_slowest_resource_takes():
    trace = layer()
    took = [seconds(trace, op, DEVICE) for op in trace.of_phase("forward")]
    # 100 bytes over the link; a view; a product of 2 TFLOP (its 300 bytes take less); 200 bytes read and written.
    assert took == pytest.approx([1.0, 0.0, 2.0, 0.2])


def test_dw_is_what_only_gradients_of_parameters_need():
    assert weight_operations(layer()) == {6, 7}


def test_a_layer_by_hand():
    found = layer_time(layer(), (UP,), DEVICE)
    assert (found.forward.compute, found.forward.experts) == pytest.approx((2.2, 1.0))
    assert (found.dx.compute, found.dx.experts) == pytest.approx((0.3 + 2.0, 1.0))
    assert found.dw.compute == pytest.approx(3.0 + 0.2)
    assert found.replay.total == pytest.approx(2.0)
    assert layer_time(layer(), (), DEVICE).replay.total == 0


def chunk(forward: float, dx: float, dw: float, replay: float = 0.0) -> LayerTime:
    return LayerTime(Work(forward), Work(dx), Work(dw), Work(replay))


NOTHING = Outside(0.0, 0, 0.0, 0, 0.0)


@pytest.mark.parametrize("replay", [0.0, 1.0])
def test_a_pipeline_waits_for_its_slowest_rank(replay):
    # 1F1B over 2 ranks, 4 micro-batches; rank 1 takes 1 + 2 (+ replay) a micro-batch, rank 0 takes 2.
    schedule = generate("1f1b", 2, 4)
    chunks = [chunk(1, 0.5, 0.5), chunk(1, 1, 1, replay)]
    step, ranks = rank_times(timeline_of(schedule, chunks, 0.0), chunks, [NOTHING] * 2)
    # The first forward of rank 0, rank 1 without a pause, the last backward of rank 0.
    assert step == pytest.approx(1 + 4 * (3 + replay) + 1)
    assert ranks[1].parts["waiting"] == pytest.approx(2)
    assert ranks[1].parts["replay"] == pytest.approx(4 * replay)
    for rank in ranks:
        assert sum(rank.parts.values()) == pytest.approx(step)
        assert tuple(rank.parts) == PARTS


def test_a_replay_ahead_of_the_gradient_fills_the_wait():
    chunks = [chunk(1, 1, 1, 1), chunk(1, 1, 1, 1)]
    inside = timeline_of(generate("1f1b", 2, 2), chunks, 0.0)
    ahead = timeline_of(generate("1f1b", 2, 2, prefire=True), chunks, 0.0)
    assert ahead.makespan < inside.makespan


def test_messages_delay_the_neighbour():
    chunks = [chunk(1, 1, 1)] * 2
    schedule = generate("1f1b", 2, 1)
    assert timeline_of(schedule, chunks, 0.5).makespan == timeline_of(schedule, chunks, 0.0).makespan + 1.0


def test_what_happens_once_a_step_by_hand():
    trace = layer()
    trace.parameters = [Parameter("w", (100,), 200, True, False)]
    settings = EstimateSettings(device=DEVICE)
    # Kept through the step under a pipeline: 150 of 200 bytes come from the other three ranks, once.
    piped = outside([trace], settings, ParallelSettings(data=4, fsdp=4, pipeline=2), 8)
    assert (piped.gather, piped.gathers, piped.reduce, piped.reduces) == pytest.approx((1.5, 1, 3.0, 1))
    assert piped.optimizer == pytest.approx(25 * 30 / 1000)
    # Without: for every forward and backward, hidden behind the layer before.
    alone = outside([trace], settings, ParallelSettings(data=4, fsdp=4), 8)
    assert (alone.gathers, alone.reduces) == (16, 8)
    assert alone.exposed_gathers(1.0, 2.0) == pytest.approx(8 * 0.5)
    assert alone.exposed_reduces(2.0) == pytest.approx(8 * 1.0)
    assert outside([trace], settings, ParallelSettings(), 8).exposed_reduces(0.0) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"teraflops": 400.0}, "estimate.device.teraflops=400.0: is above"),
        ({"sources": {"teraflop": "x"}}, "estimate.device.sources.teraflop"),
    ],
)
def test_speeds_that_can_not_be_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        DeviceSettings(**change).validate("estimate.device")
