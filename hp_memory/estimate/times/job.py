"""The step's time of a model cut into chunks, from the traces of its layers and each layer's replayed regions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from hp_memory.config.estimate import EstimateSettings
from hp_memory.estimate.times.host import HostCopies, Moving, copies_of
from hp_memory.estimate.times.layer import NOTHING, LayerTime, Work, layer_time
from hp_memory.estimate.times.outside import Outside, embedding_seconds, outside
from hp_memory.estimate.times.step import StepTime, rank_times, timeline_of
from hp_memory.estimate.tracing.record import LayerTrace, ModelTrace
from hp_memory.estimate.workload import Workload, hidden_bytes
from hp_memory.pipeline.schedule import Schedule

_BACKWARD_TOO = 3
"""A backward pass has twice the FLOPs of its forward."""


@dataclass(frozen=True)
class Job:
    """What a step's time depends on beside the layouts.

    Attributes:
        chunks: layer ids of each chunk.
        traces: for each rank the layers and ends whose parameters it holds.
    """

    work: Workload
    model: ModelTrace
    schedule: Schedule
    chunks: Sequence[Sequence[int]]
    traces: Sequence[Sequence[LayerTrace]]
    settings: EstimateSettings

    @property
    def transfer(self) -> float:
        """Seconds of a message between neighbours."""
        return hidden_bytes(self.work) / self.settings.device.link_bandwidth

    def layer(self, layer: int, replayed: Collection[str]) -> LayerTime:
        """One micro-batch in one layer."""
        return layer_time(self.model.layers[self.model.kinds[layer]], replayed, self.settings.device)

    def ends(self, chunk: int) -> LayerTime:
        """One micro-batch in what stands before and after the blocks."""
        found = NOTHING
        if chunk == 0 and self.model.embedding is not None:
            took = embedding_seconds(
                self.model.embedding, self.work.local_tokens, self.work.model.hidden_size, self.settings
            )
            found += LayerTime(Work(took / 2), Work(), Work(took / 2))
        if chunk == len(self.chunks) - 1 and self.model.head is not None:
            found += layer_time(self.model.head, (), self.settings.device)
        return found

    def outside(self) -> list[Outside]:
        """Of each rank, once a step."""
        m = self.schedule.microbatches
        return [outside(traces, self.settings, self.work.parallel, m) for traces in self.traces]

    def step(self, chunks: Sequence[LayerTime], waits: Sequence[float] = ()) -> StepTime:
        """The whole step, with each chunk's seconds per micro-batch, and each rank's waits for copies."""
        timeline = timeline_of(self.schedule, chunks, self.transfer)
        replays = tuple(0.0 if self.schedule.prefires else chunk.replay.total for chunk in chunks)
        seconds, ranks = rank_times(timeline, chunks, self.outside(), waits)
        parallel = self.work.parallel
        sequences = self.work.sequences * self.schedule.microbatches * parallel.data
        return StepTime(
            seconds,
            ranks,
            timeline,
            replays,
            sequences * self.work.model.seq_length,
            parallel.world_size,
            self._model_flops(),
            self.settings.device.peak_teraflops,
        )

    def _model_flops(self) -> float:
        layers = [self.model.layers[kind] for kind in self.model.kinds]
        ends = [self.model.head] if self.model.head is not None else []
        forward = sum(trace.flops("forward") for trace in (*layers, *ends))
        return _BACKWARD_TOO * forward * self.schedule.microbatches / self.schedule.ranks


def step_time(job: Job, replayed: Mapping[int, Collection[str]], waits: Sequence[float] = ()) -> StepTime:
    """The step with these regions replayed in each layer; ``waits``: of each rank, for copies from and to the host."""
    return job.step(chunk_times(job, replayed), waits)


def host_copies(
    job: Job, replayed: Mapping[int, Collection[str]], moved: Mapping[int, Sequence[int]]
) -> tuple[HostCopies, ...]:
    """Each rank's copies; ``moved``: bytes that leave each unit of each chunk, per micro-batch."""
    timeline = timeline_of(job.schedule, chunk_times(job, replayed), job.transfer)
    chunks = {}
    for c, layers in enumerate(job.chunks):
        times = [job.layer(layer, replayed[layer]) for layer in layers]
        # What stands beside the blocks moves nothing; its time is that of its neighbour.
        times[-1 if c == len(job.chunks) - 1 else 0] += job.ends(c)
        chunks[c] = [Moving(nbytes, time) for nbytes, time in zip(moved[c], times, strict=False)]
    return tuple(
        copies_of(timeline.of_rank(rank), chunks, job.settings.device.host_bandwidth_of_a_rank)
        for rank in range(job.schedule.ranks)
    )


def chunk_times(job: Job, replayed: Mapping[int, Collection[str]]) -> list[LayerTime]:
    """One micro-batch in each chunk."""
    return [
        sum((job.layer(layer, replayed[layer]) for layer in layers), job.ends(c)) for c, layers in enumerate(job.chunks)
    ]
