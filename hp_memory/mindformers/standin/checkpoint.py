"""MindFormers' own recompute settings, run on hp_memory's wrappers where HyperParallel's are missing."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

from hp_memory.activation import checkpoint_wrapper as own_checkpoint_wrapper
from hp_memory.errors import NeedsHyperParallel


class CheckpointPolicy(enum.Enum):
    """What a per-operation policy may answer; the values only have to differ."""

    MUST_SAVE = "must_save"
    PREFER_SAVE = "prefer_save"
    MUST_RECOMPUTE = "must_recompute"
    PREFER_RECOMPUTE = "prefer_recompute"
    MUST_SWAP = "must_swap"


def checkpoint_wrapper(
    module: Any,
    *,
    policy_fn: Callable[..., object] | None = None,
    context_fn: Callable[[], object] | None = None,
    output_recompute: bool = False,
    early_stop: bool = False,
) -> Any:
    """Replays ``module`` in backward. Per-operation policies and replayed outputs need the real package."""
    if policy_fn is not None:
        raise NeedsHyperParallel("recompute.exclude_op", "it decides per operation, which needs its dispatcher")
    if output_recompute:
        raise NeedsHyperParallel("recompute_comm", "it replays the outputs of single operations")
    return own_checkpoint_wrapper(module, early_stop=early_stop, context_fn=context_fn)


def swap_wrapper(module: Any, policy_fn: Callable[..., object] | None = None) -> Any:
    """There is no device to swap from."""
    raise NeedsHyperParallel("swap", "it copies activations between device and host")


class SwapManager:
    """Only here to be imported; swap is refused before it is used."""

    def __init__(self) -> None:
        raise NeedsHyperParallel("swap", "it copies activations between device and host")
