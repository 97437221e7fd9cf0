"""What can't be had together, as rows: one table, one reader, every command.

Rows about one setting by itself stand beside that setting (``validate``); what MindFormers excludes in parallel
training is in ``hp_memory.mindformers.limits``, which is read here too, so that no command takes what another refuses.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hp_memory.config.schema import HPConfig
from hp_memory.errors import ConfigError
from hp_memory.mindformers import limits
from hp_memory.models.settings import REFERENCE
from hp_memory.runs import hyper_parallel
from hp_memory.runs.hyper_parallel import State

TRAINS = ("train", "compare", "calibrate")
ESTIMATES = ("dryrun", "search")
EVERY = (*TRAINS, "pipeline", "export", *ESTIMATES)


@dataclass(frozen=True)
class Refusal:
    """A row: ``path`` can't have its value where ``holds``.

    Attributes:
        commands: that read the row.
        path: a setting, or a group of which no setting may differ from its default.
        holds: true for a config that runs into it.
        why: what would happen; ``{cfg...}`` stands for a value of the config.
        accepted: what the setting may be instead.
    """

    commands: tuple[str, ...]
    path: str
    holds: Callable[[HPConfig], bool]
    why: str
    accepted: tuple[Any, ...] = ()


def _on(engine: str) -> Callable[[HPConfig], bool]:
    return lambda cfg: cfg.engine == engine


def _hyper_parallel(cfg: HPConfig) -> str:
    """What is wrong with the HyperParallel that MindFormers would import here; empty if nothing is."""
    if cfg.engine != "mindformers":
        return ""
    found = hyper_parallel.probe()
    return "" if found.usable or found.state is State.ABSENT else found.sentence


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        (*TRAINS, "pipeline"),
        "launch.task",
        lambda cfg: bool(cfg.launch.task),
        "this command starts workers of its own; `hp-memory launch` starts other programs",
    ),
    Refusal(
        ("compare",), "engine", _on("mindformers"), "layouts are compared on the reference model", ("reference",)
    ),
    Refusal(
        ("calibrate",), "engine", _on("mindformers"), "regions are timed on the reference model", ("reference",)
    ),
    Refusal(
        ("pipeline",), "engine", _on("mindformers"), "the regression runs the reference model", ("reference",)
    ),
    Refusal(
        (*TRAINS, "pipeline", *ESTIMATES),
        "engine",
        lambda cfg: cfg.engine == "reference" and cfg.model.family != REFERENCE,
        "can't run the family {cfg.model.family!r}",
        ("mindformers",),
    ),
    Refusal(
        (*TRAINS, *ESTIMATES),
        "engine",
        lambda cfg: cfg.engine == "mindformers" and cfg.model.family == REFERENCE,
        "can't run the family {cfg.model.family!r}",
        ("reference",),
    ),
    Refusal(
        ("train",),
        "engine",
        lambda cfg: bool(_hyper_parallel(cfg)),
        "imports HyperParallel, and what is here under its name can't be used: {hyper_parallel}",
    ),
    Refusal(
        TRAINS,
        "pipeline",
        _on("reference"),
        "has no effect here: pipelines of the reference model run under `hp-memory pipeline`",
    ),
    *(
        Refusal(
            (*TRAINS, "pipeline"),
            f"data.{name}",
            lambda cfg, name=name: cfg.engine == "reference" and getattr(cfg.data, name) is not None,  # type: ignore[misc]
            "has no effect here: only MindFormers has a loader for it",
            (None,),
        )
        for name in ("mindrecord", "megatron")
    ),
    Refusal(
        TRAINS,
        "parallel.pipeline",
        lambda cfg: cfg.engine == "reference" and cfg.parallel.pipeline != 1,
        "has no effect here: pipelines of the reference model run under `hp-memory pipeline`",
        (1,),
    ),
    Refusal(
        ("pipeline",),
        "pipeline.stages",
        lambda cfg: cfg.pipeline.stages != 1,
        "the regression takes its pipelines from matrix",
        (1,),
    ),
    Refusal(
        EVERY,
        "offload",
        lambda cfg: True,
        "has no effect here: HyperOffload acts on compiled graphs, this model runs eagerly (PyNative)",
    ),
    Refusal(
        ("search",),
        "pipeline.layouts",
        lambda cfg: bool(cfg.pipeline.layouts),
        "has no effect: the search chooses layouts",
    ),
    Refusal(
        ESTIMATES,
        "pipeline.stages",
        lambda cfg: cfg.pipeline.stages != cfg.parallel.pipeline,
        "parallel.pipeline is {cfg.parallel.pipeline}",
    ),
    Refusal(
        ESTIMATES,
        "pipeline.overlap_b_f",
        lambda cfg: cfg.pipeline.overlap_b_f,
        "two micro-batches run at once: their working sets together aren't modelled",
        (False,),
    ),
)  # fmt: skip


def refuse(command: str, cfg: HPConfig) -> None:
    """Raises ConfigError for the first row of ``command`` that the config runs into."""
    limits.refuse(cfg)
    for row in REFUSALS:
        if command in row.commands and row.holds(cfg):
            _refuse_row(row, cfg)


def _refuse_row(row: Refusal, cfg: HPConfig) -> None:
    value = functools.reduce(getattr, row.path.split("."), cfg)
    # Only rows of this file are formatted: no text of a user's is.
    why = row.why.format(cfg=cfg, hyper_parallel=_hyper_parallel(cfg))
    if not dataclasses.is_dataclass(value):
        raise ConfigError(row.path, value, why, row.accepted)
    default = type(value)()
    for name in (field.name for field in dataclasses.fields(value)):
        if getattr(value, name) != getattr(default, name):
            raise ConfigError(f"{row.path}.{name}", getattr(value, name), why)
