"""A schedule for people: its timeline, its bubble and peaks beside the published ones, as text and as a picture."""

from __future__ import annotations

from pathlib import Path

from hp_memory.pipeline.draw import as_picture, as_text
from hp_memory.pipeline.formulas import published
from hp_memory.pipeline.schedule import COMPUTE
from hp_memory.pipeline.settings import PipelineSettings
from hp_memory.pipeline.simulate import Costs, Timeline, peak_held_for_dw, peak_in_flight, run
from hp_memory.report.table import Table

PICTURES = (".png", ".svg", ".pdf", ".jpg", ".webp")
UNIT = "F = B = W = R = 1, BW = 2"


def timeline(cfg: PipelineSettings) -> Timeline:
    """The schedule at unit costs: every step of a chunk takes 1, a whole backward 2."""
    return run(cfg.build_schedule(), Costs())


def text(cfg: PipelineSettings) -> str:
    return as_text(timeline(cfg))


def picture(cfg: PipelineSettings, path: Path) -> None:
    title = f"{cfg.schedule}, {cfg.stages} ranks, {cfg.microbatches} micro-batches ({UNIT})"
    as_picture(timeline(cfg), path, title)


def figures(cfg: PipelineSettings) -> Table:
    """Computed and published bubble and in-flight peaks, by rank. Replays count neither as work nor as bubble."""
    bare = cfg.build_schedule().only(tuple(op for op in COMPUTE if op != "R"))
    per_rank = cfg.chunks // cfg.stages
    times = run(bare, Costs(1 / per_rank, 1 / per_rank, 1 / per_rank))
    claim = published(cfg.schedule, cfg.stages, cfg.microbatches, Costs(), cfg.interleave)
    rows = [
        (
            str(rank),
            f"{times.idle(rank):.2f}",
            f"{times.own_idle(rank):.2f}",
            f"{claim.bubble:.2f} ({claim.view})",
            str(peak_in_flight(bare, rank)),
            str(claim.in_flight[rank]),
            str(peak_held_for_dw(bare, rank)),
        )
        for rank in range(cfg.stages)
    ]
    columns = ("rank", "idle", "own idle", "published", "in flight", "published peak", "held for dw")
    note = (
        "" if not cfg.split_backward or cfg.schedule.startswith("zb") else " (of the schedule without split backward)"
    )
    caption = f"time in F of a whole stage, F = B = W; MODELLED. {claim.source}{note}"
    return Table(f"{cfg.schedule}: bubble {times.bubble_of_work:.1%} of the work", columns, rows, caption)
