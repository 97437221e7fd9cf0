"""A command's config with what its ``yaml`` says in place of the recipe's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from hp_memory.config.estimate import OF_YAML
from hp_memory.errors import ConfigError
from hp_memory.layout import LayoutSettings
from hp_memory.mindformers.trainer_yaml.reading import Reading, read

if TYPE_CHECKING:
    from hp_memory.config.schema import DryrunConfig, ExportConfig, SearchConfig

Config = TypeVar("Config", bound="DryrunConfig | SearchConfig | ExportConfig")
Estimating = TypeVar("Estimating", bound="DryrunConfig | SearchConfig")


@dataclass(frozen=True)
class Applied(Generic[Config]):
    """The config, and the file that it is from."""

    cfg: Config
    reading: Reading | None = None

    @property
    def notes(self) -> Sequence[str]:
        """What a reader should know of how the file was read."""
        document = self.reading.document if self.reading is not None else None
        return tuple(f"{document.file}: {note}" for note in document.notes) if document is not None else ()


def applied(cfg: Config, layout: LayoutSettings | None = None) -> Applied[Config]:
    """The config with the file's model, sizes, pipeline and layout; ``layout=`` on the command line wins.

    Args:
        cfg: of the command.
        layout: stands for the file's own recompute settings where the command chooses others; they aren't read then.

    Raises:
        ConfigError: for whatever in the file isn't known, isn't modelled or contradicts itself, all at once.
    """
    if cfg.yaml is None:
        for name in ("devices", "ignore"):
            if getattr(cfg, name):
                raise ConfigError(name, getattr(cfg, name), "has no effect without yaml=FILE")
        return Applied(cfg)
    reading = read(cfg.yaml, cfg.devices, cfg.ignore, layout if cfg.layout.name == OF_YAML else cfg.layout)
    return Applied(_with(cfg, reading), reading)


def _with(cfg: Config, reading: Reading) -> Config:
    spread = reading.spread
    micros = max(spread.pipeline.microbatches, 1)
    return replace(
        cfg,
        name=reading.name if cfg.name == "run" else cfg.name,
        engine="mindformers",
        model=reading.model.model,
        parallel=spread.parallel,
        pipeline=spread.pipeline,
        layout=reading.layout,
        train=replace(cfg.train, micro_batch_size=spread.micro_batch, micro_batches=micros),
    )


def applied_with_assumptions(cfg: Estimating, layout: LayoutSettings | None = None) -> Applied[Estimating]:
    """The same with what the file says of dtypes and sharding; arguments and errors as for ``applied``."""
    found = applied(cfg, layout)
    if found.reading is None:
        return found
    model, spread = found.reading.model, found.reading.spread
    estimate = replace(
        cfg.estimate,
        dtype=model.dtype,
        parameters_dtype=model.parameters_dtype,
        shard=spread.shard,
        reshard_after_forward=spread.reshard,
        gradient_accumulation=spread.accumulation,
        optimizer_on_host=spread.optimizer_on_host,
    )
    return Applied(replace(found.cfg, estimate=estimate), found.reading)
