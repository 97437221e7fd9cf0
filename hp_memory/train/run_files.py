"""The settings a worker takes from its run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from omegaconf import DictConfig, OmegaConf

from hp_memory.host.settings import HostSettings
from hp_memory.models.settings import ModelSettings, ParallelSettings
from hp_memory.train.settings import DataSettings, TrainSettings

CONFIG = "config.yaml"
Group = TypeVar("Group")


@dataclass(frozen=True)
class RunSettings:
    """What training needs of a run's config."""

    model: ModelSettings
    parallel: ParallelSettings
    data: DataSettings
    train: TrainSettings
    host: HostSettings


def read_settings(run_dir: Path) -> RunSettings:
    """Reads the resolved ``config.yaml``, which may hold further groups.

    Raises:
        FileNotFoundError: without a config.
        omegaconf.errors.OmegaConfBaseException: for keys that the settings don't have, or values of another type.
    """
    config = read_config(run_dir)
    return RunSettings(
        typed_group(config, "model", ModelSettings),
        typed_group(config, "parallel", ParallelSettings),
        typed_group(config, "data", DataSettings),
        typed_group(config, "train", TrainSettings),
        typed_group(config, "host", HostSettings) if "host" in config else HostSettings(),  # runs from before it
    )


def read_config(run_dir: Path) -> DictConfig:
    """The resolved ``config.yaml`` of a run directory."""
    config = OmegaConf.load(run_dir / CONFIG)
    assert isinstance(config, DictConfig), "a run's config is a mapping"
    return config


def typed_group(config: DictConfig, group: str, schema: type[Group]) -> Group:
    """One group of a run's config as its settings."""
    return cast(Group, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), config[group])))
