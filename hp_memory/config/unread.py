"""Settings that a command doesn't read. Given on its command line they are refused: they would have no effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hp_memory.config.overrides import parse, typed
from hp_memory.errors import ConfigError


@dataclass(frozen=True)
class Unread:
    """Keys, or groups of them, that ``command`` doesn't read where ``holds``; ``why`` says what does.

    A recipe may set them all the same: it is one experiment for all commands.
    """

    command: str
    keys: tuple[str, ...]
    why: str
    holds: Callable[[Any], bool] = lambda cfg: True


_CHECKPOINTS = ("train.save_every", "train.save_last", "train.keep_last", "train.resume_from", "train.eval_batches")
_MODEL = ("model", "parallel", "layout", "pipeline", "train", "data", "seed", "engine")


def _mindformers(cfg: Any) -> bool:
    return cfg.engine == "mindformers"


def _from_yaml(cfg: Any) -> bool:
    return cfg.yaml is not None


def _own_task(cfg: Any) -> bool:
    return bool(cfg.launch.task)


def _shows(cfg: Any) -> bool:
    return bool(cfg.show)


_NOT_IN_MINDFORMERS = tuple(
    Unread(command, keys, why, _mindformers)
    for command in ("train", "launch")
    for keys, why in (
        (("train.seed",), "MindFormers has one seed for all: set seed"),
        (("train.decay_steps",), "MindFormers' cosine ends at train.steps"),
        (("train.eval_batches",), "MindFormers' Trainer validates nothing"),
    )
)

_SAID_BY_YAML = ("recipe", "engine", "model", "parallel", "pipeline", "train", "offload", "seed")
_ESTIMATED_BY_YAML = (
    *("estimate.dtype", "estimate.parameters_dtype", "estimate.shard", "estimate.reshard_after_forward"),
    *("estimate.gradient_accumulation", "estimate.optimizer_on_host"),
)

UNREAD: tuple[Unread, ...] = (
    *(Unread(command, keys, "the file of `yaml` says it: change it there", _from_yaml)
      for command, keys in (
          ("dryrun", (*_SAID_BY_YAML, *_ESTIMATED_BY_YAML)),
          ("search", (*_SAID_BY_YAML, *_ESTIMATED_BY_YAML)),
          ("export", _SAID_BY_YAML),
      )),
    Unread("compare", ("layout",), "compare takes its layouts by name: layouts=[none,full]"),
    Unread("compare", ("train.steps",), "compare runs `steps` compared and `timed_steps` timed steps"),
    Unread("compare", _CHECKPOINTS, "compare writes and reads no checkpoints and validates nothing"),
    Unread("calibrate", ("layout",), "every region is timed, whatever is saved"),
    Unread("calibrate", ("train.steps", *_CHECKPOINTS), "calibrate trains nothing"),
    Unread("calibrate", ("data",), "calibrate draws its own tokens"),
    Unread("pipeline", ("layout",), "a schedule is shown without layout", _shows),
    Unread(
        "pipeline",
        ("matrix", "model", "parallel", "train", "data", "launch", "offload", "seed", "engine", "name", "run_root",
         "run_dir"),
        "show=true only draws the schedule of pipeline",
        _shows,
    ),
    Unread(
        "pipeline",
        ("pipeline.layers_per_stage", "pipeline.layouts", "pipeline.overlap_p2p", "pipeline.overlap_b_f"),
        "a schedule is shown without the model's layers, and one step after the other",
        _shows,
    ),
    Unread("pipeline", ("picture",), "is drawn with show=true only", lambda cfg: not cfg.show),
    Unread("pipeline", ("layout",), "the regression takes its layouts by name: matrix.layout=[full]"),
    Unread("pipeline", ("train", "data"), "the regression draws its own data and trains nothing"),
    Unread("pipeline", ("seed",), "the regression's seed is matrix.seed"),
    Unread("pipeline", ("pipeline",), "the regression takes its pipelines from matrix", lambda cfg: not cfg.show),
    Unread("export", ("launch",), "launch settings aren't exported: `hp-memory launch` starts MindFormers"),
    Unread("export", ("data",), "the dataset of an exported config is yours to fill in"),
    Unread("export", ("run_root", "run_dir"), "export writes one file, `output`"),
    Unread("export", ("engine",), "an export is for MindFormers whatever the engine"),
    Unread("export", _CHECKPOINTS, "checkpoints of an exported config are yours to fill in"),
    Unread("export", ("train.seed",), "MindFormers has one seed for all: set seed"),
    Unread("search", ("layout",), "the search chooses the layout"),
    Unread("dryrun", ("launch", "data"), "the dry run starts no workers and reads no text"),
    Unread("search", ("launch", "data"), "the search starts no workers and reads no text"),
    Unread("offload", (*_MODEL, "launch"), "the command works on the graph of `graph`, whatever its model"),
    Unread("doctor", ("recipe", "offload", "launch", "name", "run_root", "run_dir", *_MODEL), "doctor looks at this "
           "machine only"),
    Unread("launch", _MODEL, "launch.task is another program with a config of its own", _own_task),
    *_NOT_IN_MINDFORMERS,
)  # fmt: skip


def refuse(command: str, overrides: Sequence[str], cfg: Any) -> None:
    """Refuses the first override that ``command`` doesn't read with this config.

    Raises:
        ConfigError: saying what does read it, or what to set instead.
    """
    for override in parse(overrides):
        key = override.key_or_group.replace("/", ".")
        for unread in UNREAD:
            inside = any(key == k or key.startswith(f"{k}.") for k in unread.keys)
            if unread.command == command and inside and unread.holds(cfg):
                raise ConfigError(key, typed(override).partition("=")[2], f"has no effect here: {unread.why}")
