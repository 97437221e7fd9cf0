"""What parallel training can't do under MindFormers, in one table. Data, and one check over it.

``train``, ``export``, ``dryrun`` and ``search`` all read it, so that a config that one of them takes isn't refused by
the next one, or worse, by the cluster. Each row is about our own settings; ``conflicts`` has what MindFormers' own
settings exclude in each other. No MindSpore here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hp_memory.errors import ConfigError
from hp_memory.mindformers.families import FAMILIES
from hp_memory.pipeline.generate import INTERLEAVED

if TYPE_CHECKING:
    from hp_memory.config.schema import HPConfig


@dataclass(frozen=True)
class Limit:
    """A setting that can't be had together with others.

    Attributes:
        path: the setting that the error names.
        why: what would happen.
        holds: True for a config that runs into it.
        accepted: what ``path`` may be instead, beside the rest of such a config.
        source: where MindFormers or HyperParallel does so.
    """

    path: str
    why: str
    holds: Callable[[HPConfig], bool]
    accepted: tuple[Any, ...]
    source: str


def _overlap(cfg: HPConfig) -> bool:
    return cfg.pipeline.overlap_b_f


def _sharing(cfg: HPConfig) -> int:
    """Ranks over which MindFormers may spread the experts: those that share one copy of the parameters."""
    return cfg.parallel.fsdp * cfg.parallel.context * cfg.parallel.tensor


LIMITS: tuple[Limit, ...] = (
    Limit(
        "parallel.expert",
        "MindFormers spreads experts over ranks that share one copy of the parameters (fsdp * context * tensor) and "
        "must divide them; raise parallel.fsdp",
        lambda c: _sharing(c) % c.parallel.expert != 0,
        (1,),
        "parallel_dims.ParallelDims._validate",
    ),
    Limit(
        "pipeline.overlap_b_f",
        "only ranks that exchange tokens have something to overlap; parallel.expert is 1",
        lambda c: _overlap(c) and c.parallel.expert == 1,
        (False,),
        "parallelize.apply_pp: use_ep_overlap",
    ),
    Limit(
        "pipeline.overlap_b_f",
        "HyperParallel pairs backwards with forwards in its interleaved schedule only, elsewhere MindFormers drops the "
        "setting without a word; set pipeline.schedule=interleaved_1f1b",
        lambda c: _overlap(c) and c.pipeline.schedule not in INTERLEAVED,
        (False,),
        "pipeline_parallel._create_schedule: filtered_kwargs",
    ),
    Limit(
        "pipeline.overlap_p2p",
        "HyperParallel defers messages in its interleaved schedule only, elsewhere MindFormers drops the setting "
        "without a word; set pipeline.schedule=interleaved_1f1b",
        lambda c: c.pipeline.overlap_p2p and c.pipeline.schedule not in INTERLEAVED,
        (False,),
        "pipeline_parallel._create_schedule: filtered_kwargs",
    ),
    Limit(
        "pipeline.split_backward",
        "MindFormers switches the dx/dw split off unless pipeline.overlap_b_f is on",
        lambda c: c.pipeline.split_backward and not _overlap(c),
        (False,),
        "pipeline_parallel._create_schedule",
    ),
)

# What HyperParallel can do and its stand-in can't; a cluster has the package.
_ONE_OPERATION = "spreads single operations over ranks, which the stand-in for hyper_parallel can't do"
NEED_THE_PACKAGE: tuple[Limit, ...] = (
    Limit("parallel.tensor", _ONE_OPERATION, lambda c: c.parallel.tensor > 1, (1,), "standin.dtensor"),
    Limit("parallel.context", _ONE_OPERATION, lambda c: c.parallel.context > 1, (1,), "standin.parallel"),
    Limit(
        "pipeline.overlap_p2p",
        "the messages of the stand-in for hyper_parallel end before the next step",
        lambda c: c.pipeline.overlap_p2p,
        (False,),
        "standin.wire",
    ),
)


def refuse(cfg: HPConfig) -> None:
    """Raises ConfigError for the first row that ``cfg`` runs into; other models than MindFormers' have none."""
    _refuse_rows(LIMITS, cfg)


def refuse_without_the_package(cfg: HPConfig) -> None:
    """Raises ConfigError for what needs HyperParallel; for where it isn't installed and something is to be run."""
    _refuse_rows(NEED_THE_PACKAGE, cfg)


def _refuse_rows(rows: tuple[Limit, ...], cfg: HPConfig) -> None:
    if cfg.model.family not in FAMILIES:
        return
    for limit in rows:
        if limit.holds(cfg):
            value = functools.reduce(getattr, limit.path.split("."), cfg)
            raise ConfigError(limit.path, value, limit.why, limit.accepted)
