"""A pipeline's step under the best layouts that fit: seconds, and what no layouts undercut.

With the stages fixed, every rank's memory is its own, and a step never gets shorter by a longer replay: its schedule is
a fixed order, in which every beginning is the latest of some ends. So with one chunk per rank the cheapest replay of
each rank gives the shortest step, and the schedule run with each rank's bound bounds it. Several chunks of a rank share
its memory; the least sum of their replays is then a good choice but not a proven one, and the bound is only that no
rank works less than its own micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hp_memory.estimate.ranks import job_of
from hp_memory.estimate.search.budget import Plan, Planner
from hp_memory.estimate.search.programme import proven_gap
from hp_memory.estimate.times.job import Job, chunk_times
from hp_memory.estimate.times.layer import LayerTime, Work
from hp_memory.estimate.times.step import StepTime
from hp_memory.layout import LayoutSettings
from hp_memory.pipeline.settings import PipelineSettings


@dataclass(frozen=True)
class Answer:
    """A plan for the whole job.

    Attributes:
        pipeline: stages, schedule and micro-batches it is for.
        sequences: of one micro-batch.
        step: its modelled time.
        bound: seconds that no layouts undercut within the budget, with the same stages, schedule and micro-batches.
        peak: bytes of the rank that needs most.
    """

    pipeline: PipelineSettings
    sequences: int
    plan: Plan
    layout: LayoutSettings
    step: StepTime
    bound: float
    peak: int

    @property
    def gap(self) -> float:
        """By how much the step may be too long, as a share of it; 0 is a proof."""
        return proven_gap(self.step.seconds, self.bound)

    def in_words(self) -> str:
        """The choice in one line."""
        stages = self.pipeline.layers_per_stage
        cut = "" if self.pipeline.stages == 1 else f", layers per stage {stages}"
        return f"micro-batch {self.sequences}, {schedule_in_words(self.pipeline)}{cut}"


def schedule_in_words(pipeline: PipelineSettings) -> str:
    """A schedule by the name people know it by."""
    name = pipeline.schedule + (f" x{pipeline.interleave}" if pipeline.interleave > 1 else "")
    return name + (" with replays ahead" if pipeline.prefire_recompute else "")


def best_layouts(planner: Planner, budget: int, gap: float = 0.0) -> Answer | None:
    """The fastest step of the planner's pipeline within ``budget`` bytes on every rank; None if nothing fits."""
    plan = planner.solve(budget, gap)
    if plan is None:
        return None
    job = job_of(planner.work, planner.model, planner.pipeline, planner.settings)
    chunks = chunks_with(planner, job, [planner.replays(plan, rank) for rank in range(job.schedule.ranks)])
    step = job.step(chunks)
    found = planner.estimate(plan.layout)
    return Answer(
        planner.pipeline,
        planner.work.sequences,
        plan,
        plan.layout,
        step,
        min(_bound(planner, job, plan), step.seconds),
        found.worst.peak,
    )


def chunks_with(planner: Planner, job: Job, replays: Sequence[dict[int, float]]) -> list[LayerTime]:
    """One micro-batch in each chunk with so many seconds of replay."""
    seconds = {chunk: took for of_rank in replays for chunk, took in of_rank.items()}
    plain = base(job)
    return [replace(time, replay=Work(seconds[c])) for c, time in enumerate(plain)]


def base(job: Job) -> list[LayerTime]:
    """One micro-batch in each chunk without any replay."""
    return chunk_times(job, {layer: () for layers in job.chunks for layer in layers})


def undercut(planner: Planner, budget: int) -> float:
    """Seconds that no layouts undercut, from the relaxations alone; infinite if nothing fits."""
    job = job_of(planner.work, planner.model, planner.pipeline, planner.settings)
    plain, schedule = base(job), job.schedule
    work = []
    for problem in planner.ranks:
        room = problem.room(budget, planner.settings.fragmentation)
        replay = problem.programme.bound(room, planner.seconds) if room >= 0 else None
        if replay is None:
            return float("inf")
        work.append(replay + sum(plain[c].total for c in schedule.chunks_of(problem.rank)))
    return schedule.microbatches * max(work)


def _bound(planner: Planner, job: Job, plan: Plan) -> float:
    schedule, plain = job.schedule, base(job)
    bounds = [choice.bound for choice in plan.choices]
    if schedule.chunks == schedule.ranks:
        chunks = [replace(time, replay=Work(bounds[schedule.placement[c]])) for c, time in enumerate(plain)]
        return job.step(chunks).seconds
    work = [bounds[r] + sum(plain[c].total for c in schedule.chunks_of(r)) for r in range(schedule.ranks)]
    return schedule.microbatches * max(work)
