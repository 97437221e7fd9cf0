"""What a config says about the pipeline, and why a combination is refused. No MindSpore."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.layout import ActivationPlan
from hp_memory.layout.settings import LayerOverride, LayoutSettings
from hp_memory.pipeline import layers as split
from hp_memory.pipeline.generate import generate
from hp_memory.pipeline.messages import add_messages
from hp_memory.pipeline.schedule import Schedule
from hp_memory.pipeline.validate import validate

SCHEDULES = ("gpipe", "1f1b", "interleaved_1f1b", "zb_h1", "zb_v")
MOST_STEPS = 100_000
SESSIONS = ("none", "share", "keep", "release")


@dataclass
class StageLayout:
    """Another layout for the layers of some stages: the last ranks hold fewer micro-batches and can save more."""

    stages: str = "???"
    """Ranks of the pipeline: ``"0"``, ``"0-1"`` or ``"2-"``."""
    default: str | None = None
    save: list[str] | None = None
    recompute: list[str] | None = None
    offload: list[str] | None = None
    as_one: list[list[str]] | None = None


@dataclass
class PipelineSettings:
    """How the model is cut into stages and in which order their micro-batches run."""

    stages: int = 1
    """Ranks of the pipeline; 1 means no pipeline."""
    layers_per_stage: Any = "auto"
    """``auto`` (even, refused where it doesn't divide), a list with the number of layers of each chunk from input to
    output (``[3, 5]``), or a list with each rank's layer ids (``["0-2,6-8", "3-5,9-11"]``)."""
    microbatches: int = 1
    schedule: str = "1f1b"
    interleave: int = 1
    """Chunks per rank of ``interleaved_1f1b``. ``zb_v`` always has two, laid out as a V."""
    split_backward: bool = False
    """Run dx and dw as two steps. The zero-bubble schedules need it; others run dw right after dx."""
    prefire_recompute: bool = False
    """Replay before the gradient arrives instead of inside backward."""
    session: str = "share"
    """What dx and dw share of a replay: ``share`` (dx retains, dw releases), ``keep`` (both retain, then
    cleared), ``release`` (the first use releases: whole backward only), ``none`` (each replays for itself)."""
    overlap_p2p: bool = False
    overlap_b_f: bool = False
    """Overlap flags for MindFormers; the runner here is synchronous."""
    layouts: list[StageLayout] = field(default_factory=list)

    @property
    def chunks(self) -> int:
        """Chunks of the whole model, from input to output."""
        per_rank = 2 if self.schedule == "zb_v" else self.interleave
        return self.stages * per_rank

    def validate(self, path: str = "pipeline") -> None:
        """Refuse what can't run or would have no effect.

        Raises:
            ConfigError: names the setting, its value and the reason.
        """
        for name in ("stages", "microbatches", "interleave"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{path}.{name}", getattr(self, name), "must be at least 1")
        if self.microbatches * self.chunks > MOST_STEPS:
            why = f"with {self.chunks} chunks that is more than {MOST_STEPS} forwards: no schedule is laid out"
            raise ConfigError(f"{path}.microbatches", self.microbatches, why)
        if self.schedule not in SCHEDULES:
            raise ConfigError(f"{path}.schedule", self.schedule, "no such schedule", SCHEDULES)
        if self.session not in SESSIONS:
            raise ConfigError(f"{path}.session", self.session, "no such session rule", SESSIONS)
        if self.stages == 1:
            _refuse_without_pipeline(self, path)
        _check_schedule(self, path)
        _check_replay(self, path)
        _check_overlap(self, path)

    def layers_of_chunks(self, layers: int, path: str = "pipeline") -> tuple[tuple[int, ...], ...]:
        """Layer ids of each chunk, from input to output, for a model of ``layers`` layers."""
        return split.layers_of_chunks(self.layers_per_stage, layers, self.placement, f"{path}.layers_per_stage")

    @property
    def placement(self) -> tuple[int, ...]:
        """The rank of each chunk."""
        down = tuple(range(self.stages))
        if self.schedule == "zb_v":
            return down + down[::-1]
        return down * self.interleave

    def build_schedule(self) -> Schedule:
        """The schedule these settings mean, with messages, checked."""
        schedule = generate(
            self.schedule,
            self.stages,
            self.microbatches,
            interleave=self.interleave,
            split=self.split_backward,
            prefire=self.prefire_recompute,
        )
        schedule = add_messages(schedule)
        validate(schedule)
        return schedule


def _refuse_without_pipeline(cfg: PipelineSettings, path: str) -> None:
    default = PipelineSettings()
    for name in ("layers_per_stage", "split_backward", "prefire_recompute", "overlap_p2p", "overlap_b_f", "layouts"):
        if getattr(cfg, name) != getattr(default, name):
            raise ConfigError(f"{path}.{name}", getattr(cfg, name), f"has no effect with {path}.stages=1")


def _check_schedule(cfg: PipelineSettings, path: str) -> None:
    if cfg.schedule == "interleaved_1f1b":
        if cfg.interleave < 2:
            raise ConfigError(f"{path}.interleave", cfg.interleave, "interleaved_1f1b needs at least 2 chunks per rank")
        if cfg.microbatches % cfg.stages:
            why = f"interleaved_1f1b takes micro-batches in groups of the {cfg.stages} stages"
            raise ConfigError(f"{path}.microbatches", cfg.microbatches, why)
    elif cfg.interleave > 1:
        own = "always has two chunks per rank" if cfg.schedule == "zb_v" else "has one chunk per rank"
        raise ConfigError(
            f"{path}.interleave", cfg.interleave, f"{cfg.schedule} {own}; only interleaved_1f1b takes an interleave"
        )
    if cfg.schedule in ("zb_h1", "zb_v") and not cfg.split_backward:
        why = f"{cfg.schedule} fills its bubble with dw alone; set {path}.split_backward=true"
        raise ConfigError(f"{path}.split_backward", False, why)


def _check_replay(cfg: PipelineSettings, path: str) -> None:
    if cfg.split_backward and cfg.session == "release":
        why = "dx would release the tensors that dw reads; share keeps them until dw"
        raise ConfigError(f"{path}.session", cfg.session, why, ("share", "keep", "none"))
    if cfg.prefire_recompute and cfg.session == "none":
        why = "a replay ahead of the gradient is found again only through a session; backward would replay once more"
        raise ConfigError(f"{path}.session", cfg.session, why, ("share", "keep", "release"))


def _check_overlap(cfg: PipelineSettings, path: str) -> None:
    if not cfg.overlap_b_f:
        return
    if cfg.schedule == "gpipe":
        raise ConfigError(f"{path}.overlap_b_f", True, "gpipe runs no forward beside a backward")
    if cfg.overlap_p2p:
        raise ConfigError(
            f"{path}.overlap_p2p", True, "HyperParallel's overlap_b_f isn't adapted to overlapped messages"
        )


def check_plan(cfg: PipelineSettings, plan: ActivationPlan, layers: int, path: str = "pipeline") -> None:
    """Refuse what doesn't fit a model and its activation plan.

    Args:
        layers: decoder layers; the plan's MTP layers come after them.

    Raises:
        ConfigError: a split the layers don't allow, a pre-fire with nothing to replay, an overlap that would deadlock.
    """
    if cfg.stages == 1:
        return
    chunks = cfg.layers_of_chunks(layers, path)
    if cfg.prefire_recompute and not any(p.layout.replays(plan.regions(p.layer)) for p in plan.layers):
        raise ConfigError(f"{path}.prefire_recompute", True, "the layout replays nothing that could run ahead")
    if cfg.overlap_b_f:
        experts = [sum(plan.layers[i].kind == "moe" for i in chunk) for chunk in chunks]
        _check_overlapped_experts(cfg, experts, path)


def _check_overlapped_experts(cfg: PipelineSettings, experts: list[int], path: str) -> None:
    """A forward and a backward of one rank meet at every exchange of tokens."""
    if not any(experts):
        raise ConfigError(f"{path}.overlap_b_f", True, "overlaps the exchange of tokens; the model has no experts")
    if 0 in experts:
        why = f"chunk {experts.index(0)} has no MoE layer: MindFormers would overlap on the other ranks only"
        raise ConfigError(f"{path}.overlap_b_f", True, why)
    for rank in range(cfg.stages):
        own = [n for n, place in zip(experts, cfg.placement, strict=True) if place == rank]
        if len(set(own)) > 1:
            why = (
                f"the chunks of rank {rank} have {own} MoE layers: a forward would wait for a backward without exchange"
            )
            raise ConfigError(f"{path}.overlap_b_f", True, why)


def with_stage_layouts(layout: LayoutSettings, cfg: PipelineSettings, layers: int) -> LayoutSettings:
    """The layout settings with the per-stage exceptions written out per layer; later ones win.

    Raises:
        ConfigError: a stage selector that selects nothing.
    """
    chunks = cfg.layers_of_chunks(layers) if cfg.layouts else ()
    overrides = list(layout.layers)
    for i, stage in enumerate(cfg.layouts):
        ranks = split.parse_ids(stage.stages, cfg.stages, f"pipeline.layouts[{i}].stages", "stages")
        ids = sorted(
            layer for chunk, rank in zip(chunks, cfg.placement, strict=True) if rank in ranks for layer in chunk
        )
        for first, last in split.runs(ids):
            override = LayerOverride(
                f"{first}-{last}", stage.default, stage.save, stage.recompute, stage.offload, stage.as_one
            )
            override.origin = f"pipeline.layouts[{i}]"
            overrides.append(override)
    return replace(layout, layers=overrides)
