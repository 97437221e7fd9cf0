"""What MindFormers' Trainer can't do here, said before anything is started. No MindSpore here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hp_memory.errors import ConfigError
from hp_memory.mindformers.families import family

if TYPE_CHECKING:
    from hp_memory.config.schema import HPConfig


def refuse_untrainable(cfg: HPConfig) -> None:
    """Raises ConfigError for a family that can't be trained, and for offload, which has no graph to act on."""
    why = family(cfg.model).plan_only
    if why:
        raise ConfigError("model.family", cfg.model.family, f"can only be planned: {why}")
    if cfg.offload.auto_offload != "none":
        why = "MindFormers' PyNative models have no jitted graph, and HyperOffload is a pass of the graph compiler"
        raise ConfigError("offload.auto_offload", cfg.offload.auto_offload, why)
