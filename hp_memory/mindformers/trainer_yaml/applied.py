"""A command's config with what its ``yaml`` says in place of the recipe's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from hp_memory.config.estimate import OF_YAML
from hp_memory.errors import ConfigError
from hp_memory.mindformers.trainer_yaml.reading import Reading, read

if TYPE_CHECKING:
    from hp_memory.config.schema import DryrunConfig, SearchConfig

Config = TypeVar("Config", bound="DryrunConfig | SearchConfig")


@dataclass(frozen=True)
class Applied(Generic[Config]):
    """The config, and what a reader should know of how the file was read."""

    cfg: Config
    notes: Sequence[str] = ()


def applied(cfg: Config) -> Applied[Config]:
    """The config with the file's model, sizes, pipeline, layout and assumptions; ``layout=`` on the line wins.

    Raises:
        ConfigError: for whatever in the file isn't known, isn't modelled or contradicts itself, all at once.
    """
    if cfg.yaml is None:
        for name in ("devices", "ignore"):
            if getattr(cfg, name):
                raise ConfigError(name, getattr(cfg, name), "has no effect without yaml=FILE")
        return Applied(cfg)
    reading = read(cfg.yaml, cfg.devices, cfg.ignore)
    return Applied(_with(cfg, reading), tuple(f"{cfg.yaml}: {note}" for note in reading.document.notes))


def _with(cfg: Config, reading: Reading) -> Config:
    model, spread = reading.model, reading.spread
    estimate = replace(
        cfg.estimate,
        dtype=model.dtype,
        parameters_dtype=model.parameters_dtype,
        shard=spread.shard,
        reshard_after_forward=spread.reshard,
        optimizer_on_host=spread.optimizer_on_host,
    )
    micros = max(spread.pipeline.microbatches, 1)
    return replace(
        cfg,
        name=reading.name if cfg.name == "run" else cfg.name,
        engine="mindformers",
        model=model.model,
        parallel=spread.parallel,
        pipeline=spread.pipeline,
        layout=reading.layout if cfg.layout.name == OF_YAML else cfg.layout,
        train=replace(cfg.train, micro_batch_size=spread.micro_batch, micro_batches=micros),
        estimate=estimate,
    )
