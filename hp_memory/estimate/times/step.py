"""A step of the whole schedule: when each rank runs what, how long it waits, and what that makes of the hardware.

Every rank's steps run in the schedule's order, each when its input is there (``pipeline.simulate``). What comes after
the last backward (reducing gradients, the optimizer) adds to each rank's end; the slowest ends the step, because the
gradients' norm is taken over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hp_memory.estimate.times.layer import LayerTime, Work
from hp_memory.estimate.times.outside import Outside
from hp_memory.pipeline import simulate
from hp_memory.pipeline.schedule import Schedule
from hp_memory.pipeline.simulate import Costs, Timeline

PARTS = (
    "forward", "dx", "dw", "replay", "expert exchange", "tensor and context exchange", "gather", "host copies",
    "waiting", "gradient reduction", "optimizer",
)  # fmt: skip


@dataclass(frozen=True)
class RankTime:
    """Seconds of one rank in one step, by ``PARTS``; they add up to the step's."""

    rank: int
    parts: Mapping[str, float]

    @property
    def busy(self) -> float:
        """All but waiting."""
        return sum(self.parts.values()) - self.parts["waiting"]


@dataclass(frozen=True)
class StepTime:
    """One step.

    Attributes:
        seconds: of the whole step.
        ranks: of the pipeline.
        timeline: of its compute steps.
        replays: seconds of the replay inside each chunk's backward.
        tokens: that all devices together train on in a step.
        devices: in the job.
        model_flops: of a step and rank, forward and backward without replays, averaged over the pipeline's ranks.
        peak_teraflops: of the device, for the utilisation.
    """

    seconds: float
    ranks: tuple[RankTime, ...]
    timeline: Timeline
    replays: tuple[float, ...]
    tokens: int
    devices: int
    model_flops: float
    peak_teraflops: float

    @property
    def tokens_per_second(self) -> float:
        """Of all devices together."""
        return self.tokens / self.seconds

    @property
    def utilisation(self) -> float:
        """Model FLOPs utilisation: FLOPs that the model needs, without replays, over what the devices could do."""
        return self.model_flops / (self.seconds * self.peak_teraflops * 1e12)

    def device_hours(self, tokens: float) -> float:
        """What a run over so many tokens costs."""
        return tokens / self.tokens_per_second * self.devices / 3600

    @cached_property
    def slowest(self) -> RankTime:
        """The rank with most to do."""
        return max(self.ranks, key=lambda rank: rank.busy)


def timeline_of(schedule: Schedule, chunks: Sequence[LayerTime], transfer: float) -> Timeline:
    """When every step runs; a replay belongs to its backward unless the schedule starts it ahead.

    Args:
        chunks: one micro-batch in each chunk.
        transfer: seconds of a message between neighbours.
    """
    ahead = schedule.prefires
    costs = {
        c: Costs(t.forward.total, t.dx.total + (0 if ahead else t.replay.total), t.dw.total, t.replay.total, transfer)
        for c, t in enumerate(chunks)
    }
    return simulate.run(schedule, costs)


def rank_times(
    timeline: Timeline, chunks: Sequence[LayerTime], outside: Sequence[Outside], waits: Sequence[float] = ()
) -> tuple[float, tuple[RankTime, ...]]:
    """Seconds of the step, and of each rank.

    Each rank's ``waits`` for copies from and to the host make it end so much later: as if no bubble took them up.
    """
    schedule = timeline.schedule
    parts = [_parts(schedule, rank, chunks, outside[rank]) for rank in range(schedule.ranks)]
    for rank, p in enumerate(parts):
        p["host copies"] = waits[rank] if waits else 0.0
    ends = [
        (timeline.of_rank(r)[-1].end if timeline.of_rank(r) else 0.0)
        + p["gather"]
        + p["host copies"]
        + p["gradient reduction"]
        for r, p in enumerate(parts)
    ]
    seconds = max(ends) + max(p["optimizer"] for p in parts)
    for p in parts:
        p["waiting"] = seconds - sum(p.values())
    return seconds, tuple(RankTime(r, {name: p[name] for name in PARTS}) for r, p in enumerate(parts))


def _parts(schedule: Schedule, rank: int, chunks: Sequence[LayerTime], outside: Outside) -> dict[str, float]:
    own = sum((chunks[c] for c in schedule.chunks_of(rank)), LayerTime(Work(), Work(), Work()))
    m = schedule.microbatches
    found = {name: m * getattr(own, name).compute for name in ("forward", "dx", "dw", "replay")}
    every = (own.forward, own.dx, own.dw, own.replay)
    found["expert exchange"] = m * sum(work.experts for work in every)
    found["tensor and context exchange"] = m * sum(work.parallel for work in every)
    backward = own.dx.total + own.dw.total + own.replay.total
    found["gather"] = outside.exposed_gathers(own.forward.total, backward)
    found["gradient reduction"] = outside.exposed_reduces(backward)
    found["optimizer"] = outside.optimizer
    return found
