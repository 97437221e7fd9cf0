"""What a command's config asks of the dry run: the shapes of one rank, and the pipeline."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from hp_memory.config.estimate import EstimateSettings
from hp_memory.estimate.engines.choice import refuse_unmodelled
from hp_memory.estimate.tracing.record import Views
from hp_memory.estimate.workload import Workload
from hp_memory.pipeline.settings import PipelineSettings

if TYPE_CHECKING:
    from hp_memory.config.schema import HPConfig


def workload(cfg: HPConfig, settings: EstimateSettings) -> Workload:
    """The shapes of one rank.

    Raises:
        ConfigError: for a setting that changes memory and isn't modelled.
    """
    settings.validate("estimate")
    work = Workload(
        cfg.model,
        cfg.parallel,
        cfg.train.micro_batch_size,
        settings.dtype,
        cast(Views, settings.views),  # validated above; a structured config knows no literals
        settings.imbalance,
        settings.parameters_dtype,
    )
    refuse_unmodelled(work)
    return work


def pipeline_of(cfg: HPConfig) -> PipelineSettings:
    """The pipeline, with the micro-batches of the training where there is one stage only."""
    if cfg.pipeline.stages > 1:
        return cfg.pipeline
    return replace(cfg.pipeline, microbatches=cfg.train.micro_batches)
