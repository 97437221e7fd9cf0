"""The settings a worker takes from its run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from hp_memory.models.settings import ModelSettings, ParallelSettings
from hp_memory.train.settings import DataSettings, TrainSettings

CONFIG = "config.yaml"


@dataclass(frozen=True)
class RunSettings:
    """What training needs of a run's config."""

    model: ModelSettings
    parallel: ParallelSettings
    data: DataSettings
    train: TrainSettings


def read_settings(run_dir: Path) -> RunSettings:
    """Reads the resolved ``config.yaml``, which may hold further groups.

    Raises:
        FileNotFoundError: without a config.
        omegaconf.errors.OmegaConfBaseException: for keys that the settings don't have, or values of another type.
    """
    config = OmegaConf.load(run_dir / CONFIG)
    return RunSettings(
        _typed(config, "model", ModelSettings),
        _typed(config, "parallel", ParallelSettings),
        _typed(config, "data", DataSettings),
        _typed(config, "train", TrainSettings),
    )


def _typed(config: DictConfig, group: str, schema: type) -> Any:
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), config[group]))
