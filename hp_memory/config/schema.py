"""The structured configs, assembled from the settings that stand beside each mechanism and registered once."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from hp_memory.config.estimate import DryrunFields, EstimateSettings, SearchFields
from hp_memory.errors import ConfigError
from hp_memory.host.settings import HostSettings
from hp_memory.launch.settings import LaunchSettings
from hp_memory.layout import LayoutSettings
from hp_memory.models.settings import ModelSettings, ParallelSettings
from hp_memory.offload.settings import OffloadCommandSettings, OffloadSettings
from hp_memory.pipeline.regression.cases import MatrixSettings
from hp_memory.pipeline.settings import PipelineSettings
from hp_memory.train.settings import DataSettings, TrainSettings

ENGINES = ("reference", "mindformers")
NAMED_LAYOUTS = ("none", "full", "op_exclude", "region_exclude", "chain_exclude")
COMPARED = (*NAMED_LAYOUTS, "offload_experts")


@dataclass
class HPConfig:
    """What every command reads: an experiment, and where its run goes."""

    name: str = "run"
    """Names the run's folder below ``run_root``."""
    engine: str = "reference"
    """``reference`` (this package's small model and trainer) or ``mindformers`` (its Trainer with our callback)."""
    seed: int = 1
    """For groups that refer to it (``train.seed`` in the shipped configs)."""
    run_root: str = "runs"
    """Where run directories are made."""
    run_dir: str | None = None
    """Where this run writes; null makes a folder named by the time below ``run_root/name``."""
    recipe: Any = None
    """Set by the command line (``recipe=NAME``); no key of its own."""
    model: ModelSettings = field(default_factory=ModelSettings)
    parallel: ParallelSettings = field(default_factory=ParallelSettings)
    layout: LayoutSettings = field(default_factory=LayoutSettings)
    pipeline: PipelineSettings = field(default_factory=PipelineSettings)
    offload: OffloadSettings = field(default_factory=OffloadSettings)
    host: HostSettings = field(default_factory=HostSettings)
    launch: LaunchSettings = field(default_factory=LaunchSettings)
    data: DataSettings = field(default_factory=DataSettings)
    train: TrainSettings = field(default_factory=TrainSettings)


@dataclass
class CompareConfig(HPConfig):
    """``hp-memory compare``: the same steps under several layouts, from one initial state."""

    layouts: list[str] = field(default_factory=lambda: list(COMPARED))
    """Names of layouts in ``configs/layout``; the first is what the others are compared with."""
    steps: int = 3
    """Steps whose losses, gradients and parameters are compared bit for bit."""
    timed_steps: int = 6
    """Further steps that are timed, layouts alternating step by step."""


@dataclass
class CalibrateConfig(HPConfig):
    """``hp-memory calibrate``: what each region takes on this device, for dry runs and searches."""

    estimate: EstimateSettings = field(default_factory=EstimateSettings)
    """The model that the measured times are compared with."""
    repeats: int = 20
    """How often each region is run; its median counts."""


@dataclass
class ExportConfig(HPConfig):
    """``hp-memory export``: the plan as MindFormers YAML."""

    to: str = "???"
    """``mindformers-2.0`` or ``-2.1`` (its own settings), or ``mindformers-callback`` (ours, with the plan in it); for
    a graph Trainer's ``yaml`` also ``mindformers-graph`` (its own settings)."""
    output: str | None = None
    """The file to write; null prints."""
    yaml: str | None = None
    """A MindFormers YAML to put the plan into: every other line of it stays as it is."""
    devices: int | None = None
    """With ``yaml``: how many devices the job has, where the file doesn't say it."""
    ignore: list[str] = field(default_factory=list)
    """With ``yaml``: its keys that are known to change neither memory nor time."""


@dataclass
class PipelineConfig(HPConfig):
    """``hp-memory pipeline``: a matrix of pipelines against an unpipelined reference, or one schedule's timeline."""

    matrix: MatrixSettings = field(default_factory=MatrixSettings)
    show: bool = False
    """Only print the timeline, bubble and peaks of ``pipeline``."""
    picture: str | None = None
    """With ``show``: write the timeline to this file too; the suffix decides the format."""


@dataclass
class OffloadConfig(HPConfig, OffloadCommandSettings):
    """``hp-memory offload ACTION``: HyperOffload's plan for a graph, advice, a timeline, or a check of a trace."""


@dataclass
class DryrunConfig(DryrunFields, HPConfig):
    """``hp-memory dryrun``: memory per pipeline rank at full size, on the meta device."""


@dataclass
class SearchConfig(SearchFields, HPConfig):
    """``hp-memory search``: the cheapest plan that fits a budget."""


@dataclass
class LayoutOnly:
    """One option of the ``layout`` group by itself, for commands that compare several."""

    layout: LayoutSettings = field(default_factory=LayoutSettings)


SCHEMAS: dict[str, type] = {
    "layout_only": LayoutOnly,
    "train": HPConfig,
    "compare": CompareConfig,
    "calibrate": CalibrateConfig,
    "launch": HPConfig,
    "doctor": HPConfig,
    "dryrun": DryrunConfig,
    "search": SearchConfig,
    "export": ExportConfig,
    "offload": OffloadConfig,
    "pipeline": PipelineConfig,
}


@functools.cache
def register(command: str) -> None:
    """Makes ``<command>_schema`` known to Hydra for the command's defaults list.

    Not all at once: Hydra copies every schema it knows for every file that it looks at.
    """
    ConfigStore.instance().store(name=f"{command}_schema", node=SCHEMAS[command])


@contextlib.contextmanager
def without_types(command: str) -> Iterator[None]:
    """Within, the command's config composes from its defaults as plain data: any key and any value goes."""
    store, name = ConfigStore.instance(), f"{command}_schema"
    store.store(name=name, node=OmegaConf.to_container(OmegaConf.structured(SCHEMAS[command])))
    try:
        yield
    finally:
        store.store(name=name, node=SCHEMAS[command])


def validate(cfg: HPConfig) -> None:
    """Checks every group by itself, without looking at data files; commands check what only they need.

    Raises:
        ConfigError: naming the config path, the value and what would have been accepted.
    """
    _refuse_unreal_numbers(cfg, "")
    _refuse_unreal_sizes(cfg)
    if not re.fullmatch(r"[\w.-]*\w", cfg.name):
        raise ConfigError("name", cfg.name, "names a folder: letters, digits, points, dashes")
    for name in ("run_root", "run_dir"):
        if getattr(cfg, name) == "":
            raise ConfigError(name, "", "is empty: name a folder")
    if cfg.seed < 0:
        raise ConfigError("seed", cfg.seed, "must be at least 0")
    if cfg.engine not in ENGINES:
        raise ConfigError("engine", cfg.engine, "no such engine", ENGINES)
    cfg.model.validate("model")
    cfg.parallel.validate("parallel", cfg.model)
    cfg.pipeline.validate("pipeline")
    cfg.offload.validate("offload")
    cfg.host.validate("host")
    cfg.launch.validate("launch")
    cfg.train.validate("train")


def _refuse_unreal_numbers(node: Any, path: str) -> None:
    """NaN and infinity pass every comparison with a bound, or fail none."""
    if isinstance(node, float) and not math.isfinite(node):
        raise ConfigError(path, node, "must be a finite number")
    if is_dataclass(node):
        node = vars(node)
    items = node.items() if isinstance(node, dict) else ()
    for key, value in items:
        _refuse_unreal_numbers(value, f"{path}.{key}" if path else str(key))
    for i, value in enumerate(node if isinstance(node, list) else ()):
        _refuse_unreal_numbers(value, f"{path}[{i}]")


# Sanity limits: larger values are mistakes.
_LARGEST = {"model.num_layers": 10_000, "model.mtp_layers": 1_000}
# NumPy's and MindSpore's generators take no more.
_SEEDS, _LARGEST_SEED = ("seed", "train.seed", "data.seed"), 2**32 - 1


def _refuse_unreal_sizes(cfg: HPConfig) -> None:
    for path, most in (*_LARGEST.items(), *((path, _LARGEST_SEED) for path in _SEEDS)):
        value: Any = cfg
        for name in path.split("."):
            value = getattr(value, name)
        if value > most:
            raise ConfigError(path, value, f"must be at most {most}")
