"""What a command's config asks of the dry run: the workload, the plan, and refusals of what isn't modelled."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hp_memory.config.estimate import EstimateSettings
from hp_memory.errors import ConfigError
from hp_memory.estimate.engines.choice import refuse_unmodelled
from hp_memory.estimate.workload import Workload
from hp_memory.mindformers import limits
from hp_memory.models.settings import REFERENCE
from hp_memory.pipeline.settings import PipelineSettings, with_stage_layouts

if TYPE_CHECKING:
    from hp_memory.config.schema import HPConfig
    from hp_memory.layout import LayoutSettings


def workload(cfg: HPConfig, settings: EstimateSettings) -> Workload:
    """The shapes of one rank.

    Raises:
        ConfigError: for a setting that changes memory and isn't modelled.
    """
    settings.validate("estimate")
    _refuse(cfg)
    work = Workload(
        cfg.model, cfg.parallel, cfg.train.micro_batch_size, settings.dtype, settings.views, settings.imbalance
    )
    refuse_unmodelled(work)
    return work


def _refuse(cfg: HPConfig) -> None:
    engine = "reference" if cfg.model.family == REFERENCE else "mindformers"
    if cfg.engine != engine:
        raise ConfigError("engine", cfg.engine, f"can't run the family {cfg.model.family!r}", (engine,))
    if cfg.pipeline.stages != cfg.parallel.pipeline:
        raise ConfigError("pipeline.stages", cfg.pipeline.stages, f"parallel.pipeline is {cfg.parallel.pipeline}")
    limits.refuse(cfg)
    if cfg.pipeline.overlap_b_f:
        why = "two micro-batches run at once: their working sets together aren't modelled"
        raise ConfigError("pipeline.overlap_b_f", True, why, (False,))
    if cfg.offload != type(cfg.offload)():
        raise ConfigError("offload", cfg.offload.auto_offload, "acts on compiled graphs; the dry run traces eager code")
    _refuse_family(cfg)


def _refuse_family(cfg: HPConfig) -> None:
    if cfg.model.family == REFERENCE:
        return
    from hp_memory.mindformers.families import family

    why = family(cfg.model).plan_only
    if why:
        raise ConfigError("model.family", cfg.model.family, f"there is no code to trace: {why}")


def pipeline_of(cfg: HPConfig) -> PipelineSettings:
    """The pipeline, with the micro-batches of the training where there is one stage only."""
    if cfg.pipeline.stages > 1:
        return cfg.pipeline
    return replace(cfg.pipeline, microbatches=min(cfg.train.micro_batches, 2))


def layout_of(cfg: HPConfig) -> LayoutSettings:
    """The layout with the exceptions of single stages written out."""
    return with_stage_layouts(cfg.layout, cfg.pipeline, cfg.model.num_layers)
