"""Settings of MindFormers that can't be used together, or not beside a plan of ours. Data, and one check over it.

MindFormers 2.0 and 2.1 answer to these in different ways: some raise, some warn and switch one of the two off, some
silently do nothing. Here each is an error before anything starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hp_memory.errors import ConfigError

Section = Mapping[str, Any]


@dataclass(frozen=True)
class Conflict:
    """A pair of settings that excludes each other.

    Attributes:
        path: the setting that is named in the error.
        other: the setting it clashes with.
        why: what would happen.
        holds: True for a config in which both are set so that they clash.
        source: where MindFormers says or does so.
    """

    path: str
    other: str
    why: str
    holds: Callable[[Section], bool]
    source: str

    def in_words(self) -> str:
        """Why the two can't stand together."""
        return f"{self.why} ({self.other})"


def value(config: Any, path: str, default: Any = None) -> Any:
    """``path`` in nested mappings or objects, or ``default`` where any part of it is missing."""
    for part in path.split("."):
        config = config.get(part) if isinstance(config, Mapping) else getattr(config, part, None)
        if config is None:
            return default
    return config


def _pp(config: Any) -> int:
    return int(value(config, "parallelism.pipeline_parallel", 1))


def _interleave(config: Any) -> int:
    return int(value(config, "parallelism.pipeline_parallel_interleave_num", 1))


def _flag(name: str) -> Callable[[Any], bool]:
    return lambda config: bool(value(config, f"parallelism.{name}", False))


_overlap_b_f = _flag("pipeline_parallel_overlap_b_f")
_overlap_p2p = _flag("pipeline_parallel_overlap_p2p")
_dxdw = _flag("pipeline_parallel_enable_dxdw_split")


def _is_interleaved(config: Any) -> bool:
    return _interleave(config) > 1 or value(config, "parallelism.pipeline_parallel_schedule") == "interleaved_1f1b"


def _expert_parallel(config: Any) -> int:
    return int(value(config, "parallelism.expert_parallel", 1))


def _recompute(config: Any) -> bool:
    return value(config, "recompute.mode", "None") != "None"


def _swap(config: Any) -> bool:
    return bool(value(config, "swap.enable", False))


def layer_ids(specs: Any) -> set[int]:
    """Layer ids of MindFormers' range strings: ``["0-3", "8"]``."""
    ids: set[int] = set()
    for spec in specs or ():
        low, _, high = str(spec).strip().partition("-")
        ids |= set(range(int(low), int(high or low) + 1))
    return ids


def _full_and_swapped(config: Any) -> bool:
    full = layer_ids(value(config, "recompute.full_recompute_layer")) if _recompute(config) else set()
    entries = value(config, "swap.layer_swap", ()) if _swap(config) else ()
    return bool(full & {i for entry in entries for i in layer_ids(value(entry, "layers"))})


def _is_dense(config: Any) -> bool:
    return not (value(config, "model.n_routed_experts") or value(config, "model.num_experts"))


CONFLICTS: tuple[Conflict, ...] = (
    Conflict(
        "swap.enable",
        "parallelism.pipeline_parallel",
        "MindFormers raises: swap is not supported with pipeline parallel",
        lambda c: _swap(c) and _pp(c) > 1,
        "activation_checkpoint.apply_ac",
    ),
    Conflict(
        "parallelism.pipeline_parallel_enable_dxdw_split",
        "parallelism.pipeline_parallel_overlap_b_f",
        "MindFormers switches the dx/dw split off unless overlap_b_f is on",
        lambda c: _dxdw(c) and not _overlap_b_f(c),
        "parallelize.apply_pp",
    ),
    Conflict(
        "parallelism.pipeline_parallel_overlap_b_f",
        "model",
        "MindFormers switches the overlap off where a model chunk holds no MoE layer",
        lambda c: _overlap_b_f(c) and _is_dense(c),
        "parallelize.apply_pp",
    ),
    Conflict(
        "parallelism.pipeline_parallel_overlap_b_f",
        "parallelism.pipeline_parallel",
        "there is no pipeline whose stages could overlap",
        lambda c: _overlap_b_f(c) and _pp(c) == 1,
        "parallelize.parallelize_gptmodel",
    ),
    Conflict(
        "parallelism.pipeline_parallel_overlap_b_f",
        "parallelism.expert_parallel",
        "without ranks that exchange tokens there is nothing to overlap",
        lambda c: _overlap_b_f(c) and not _is_dense(c) and _pp(c) > 1 and _expert_parallel(c) == 1,
        "parallelize.apply_pp",
    ),
    Conflict(
        "parallelism.pipeline_parallel_overlap_b_f",
        "parallelism.pipeline_parallel_schedule",
        "HyperParallel overlaps in its interleaved schedule only, MindFormers drops the setting elsewhere",
        lambda c: _overlap_b_f(c) and _pp(c) > 1 and not _is_interleaved(c),
        "pipeline_parallel._create_schedule",
    ),
    Conflict(
        "parallelism.pipeline_parallel_overlap_p2p",
        "parallelism.pipeline_parallel_schedule",
        "HyperParallel defers messages in its interleaved schedule only, MindFormers drops the setting elsewhere",
        lambda c: _overlap_p2p(c) and not _is_interleaved(c),
        "pipeline_parallel._create_schedule",
    ),
    Conflict(
        "parallelism.pipeline_parallel_schedule",
        "parallelism.pipeline_parallel_interleave_num",
        "MindFormers turns 1f1b into interleaved_1f1b where a rank holds several chunks",
        lambda c: value(c, "parallelism.pipeline_parallel_schedule", "1f1b") == "1f1b" and _interleave(c) > 1,
        "pipeline_parallel._infer_schedule_type",
    ),
    Conflict(
        "parallelism.pipeline_parallel_schedule",
        "parallelism.pipeline_parallel_interleave_num",
        "an interleaved schedule needs two chunks per rank or more",
        lambda c: value(c, "parallelism.pipeline_parallel_schedule") == "interleaved_1f1b" and _interleave(c) == 1,
        "pipeline_parallel._infer_schedule_type",
    ),
    Conflict(
        "recompute.full_recompute_layer",
        "swap.layer_swap",
        "a layer can't both be replayed and have its activations swapped",
        _full_and_swapped,
        "activation_checkpoint.apply_ac wraps it twice",
    ),
    Conflict(
        "swap.layer_swap",
        "swap.layer_swap",
        "MindFormers reads the first entry only",
        lambda c: _swap(c) and len(value(c, "swap.layer_swap", ()) or ()) > 1,
        "activation_checkpoint.apply_swap",
    ),
    Conflict(
        "recompute.exclude_op",
        "recompute.mode",
        "nothing is recomputed, so nothing can be excluded from it",
        lambda c: bool(value(c, "recompute.exclude_op")) and not _recompute(c),
        "RecomputeConfig.exclude_op",
    ),
    Conflict(
        "parallelism.moe_token_dispatcher_type",
        "parallelism.pipeline_parallel_overlap_b_f",
        "only the plain all-to-all dispatcher has an overlapped form",
        lambda c: (
            _overlap_b_f(c) and value(c, "parallelism.moe_token_dispatcher_type", "alltoall") == "alltoall_deredundancy"
        ),
        "parallelize._apply_spmd_parallelism",
    ),
    Conflict(
        "parallelism.moe_token_dispatcher_type",
        "parallelism.expert_parallel",
        "alltoall_deredundancy needs as many expert parallel ranks as a node has devices",
        lambda c: (
            value(c, "parallelism.moe_token_dispatcher_type") == "alltoall_deredundancy"
            and int(value(c, "parallelism.expert_parallel", 1)) < int(value(c, "parallelism.npu_nums_per_device", 8))
        ),
        "ParallelismConfig.__post_init__",
    ),
)

# Not beside a plan of ours: what it replaces, since a block would be wrapped twice, and what has no regions.
BESIDE_A_PLAN: tuple[Conflict, ...] = (
    *(
        Conflict(
            path, "callbacks", "the callback's plan replaces it: a block would be wrapped twice", holds, "apply_ac"
        )
        for path, holds in (
            ("recompute.mode", _recompute),
            ("recompute_comm.enable", lambda c: bool(value(c, "recompute_comm.enable", False))),
            ("swap.enable", _swap),
        )
    ),
    Conflict(
        "parallelism.moe_token_dispatcher_type",
        "callbacks",
        "alltoall_deredundancy dispatches and combines in bodies without regions",
        lambda c: (
            value(c, "parallelism.moe_token_dispatcher_type") == "alltoall_deredundancy" and _expert_parallel(c) > 1
        ),
        "expert_parallel.DeredundancyExpertParallel",
    ),
)

# What our callback makes good.
WITHOUT_A_PLAN: tuple[Conflict, ...] = (
    Conflict(
        "parallelism.pipeline_parallel_enable_dxdw_split",
        "callbacks",
        "MindFormers runs the whole backward of a pair, and HyperParallel's schedule then asks for its dw; "
        "HPMemoryCallback runs dx alone (to=mindformers-callback)",
        lambda c: _dxdw(c) and _overlap_b_f(c),
        "parallelize._make_overlap_b_f_callback",
    ),
)


def found(config: Any, with_plan: bool) -> list[Conflict]:
    """The pairs in ``config`` that exclude each other.

    Args:
        config: MindFormers' training config, as nested mappings or as its ``TrainConfig``.
        with_plan: whether a plan of ours is to be installed too.
    """
    return [c for c in (*(BESIDE_A_PLAN if with_plan else WITHOUT_A_PLAN), *CONFLICTS) if c.holds(config)]


def refuse(config: Any, with_plan: bool) -> None:
    """Raises ConfigError for the first pair in ``config`` that excludes each other; arguments as for ``found``."""
    for conflict in found(config, with_plan):
        raise ConfigError(conflict.path, value(config, conflict.path), conflict.in_words())
