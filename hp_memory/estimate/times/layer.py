"""Seconds of one micro-batch in one layer: its forward, both halves of its backward, and a replay of each region."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from hp_memory.config.estimate import DeviceSettings
from hp_memory.estimate.times.measured import corrected, unmodelled
from hp_memory.estimate.tracing.record import BARE, EXCHANGE, LayerTrace, Op


@dataclass(frozen=True)
class Work:
    """Seconds of something, by what the rank does meanwhile.

    Attributes:
        compute: kernels.
        experts: exchanges of tokens between expert parallel ranks.
        parallel: collectives of tensor and context parallelism.
    """

    compute: float = 0.0
    experts: float = 0.0
    parallel: float = 0.0

    @property
    def total(self) -> float:
        """Nothing here overlaps: MindFormers' expert and tensor parallelism wait for each of their collectives."""
        return self.compute + self.experts + self.parallel

    def __add__(self, other: Work) -> Work:
        return Work(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Work)))


@dataclass(frozen=True)
class LayerTime:
    """One micro-batch in one layer."""

    forward: Work
    dx: Work
    dw: Work
    replay: Work = Work()

    def __add__(self, other: LayerTime) -> LayerTime:
        return LayerTime(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(LayerTime)))

    @property
    def total(self) -> float:
        """Everything."""
        return self.forward.total + self.dx.total + self.dw.total + self.replay.total


NOTHING = LayerTime(Work(), Work(), Work())


def work_of(trace: LayerTrace, op: Op, device: DeviceSettings) -> Work:
    """One operation's seconds, under what it is."""
    took = corrected(trace, op, device)
    if op.name != EXCHANGE:
        return Work(compute=took)
    return Work(experts=took) if trace.kind in ("moe", "mtp") and _of_experts(op.region) else Work(parallel=took)


def _of_experts(region: str) -> bool:
    # Backward's exchanges are found at their neighbours in the experts' path.
    return region.partition(".")[0] in ("dispatch", "all2all", "compute", "gmm", "combine")


def layer_time(trace: LayerTrace, replayed: Collection[str], device: DeviceSettings) -> LayerTime:
    """All four for a choice of replayed regions."""
    of_regions = replay_work(trace, device)
    again = sum((of_regions.get(region, Work()) for region in (*replayed, BARE)), Work()) if replayed else Work()
    plain = _plain(trace, device)
    return LayerTime(plain.forward, plain.dx, plain.dw, again)


def _plain(trace: LayerTrace, device: DeviceSettings) -> LayerTime:
    key = f"seconds on {device}"
    if key not in trace.memo:
        weights = weight_operations(trace)
        parts = {"forward": Work(sum(unmodelled(trace, device).values())), "dx": Work(), "dw": Work()}
        for i, op in enumerate(trace.ops):
            name = op.phase if op.phase == "forward" else "dw" if i in weights else "dx"
            parts[name] += work_of(trace, op, device)
        trace.memo[key] = LayerTime(**parts)
    return trace.memo[key]


def replay_work(trace: LayerTrace, device: DeviceSettings) -> dict[str, Work]:
    """What one replay of each region takes, and of the operations between them (``BARE``)."""
    key = f"replay on {device}"
    if key not in trace.memo:
        found = {BARE: Work()} | {region: Work(took) for region, took in unmodelled(trace, device).items()}
        for op in trace.of_phase("forward"):
            found[op.region] = found.get(op.region, Work()) + work_of(trace, op, device)
        trace.memo[key] = found
    return trace.memo[key]


def weight_operations(trace: LayerTrace) -> set[int]:
    """Numbers of the backward operations that only gradients of parameters need: dw. All others are dx."""
    readers: dict[int, list[int]] = {}
    for i, op in enumerate(trace.ops):
        for number in op.reads:
            readers.setdefault(number, []).append(i)
    found: set[int] = set()
    for i in range(len(trace.ops) - 1, -1, -1):
        op = trace.ops[i]
        if op.phase == "backward" and op.writes:
            later = [j for number in op.writes for j in readers.get(number, ()) if j > i]
            given = any(number in trace.weight_gradients for number in op.writes)
            if (given or later) and all(j in found for j in later):
                found.add(i)
    return found
