"""Pipelines, context parallelism and overlap: importable, and refused when they are used."""

from __future__ import annotations

import enum
from typing import Any

from hp_memory.errors import NeedsHyperParallel


class PipelineStage:
    """MindFormers derives its stages from it at import."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NeedsHyperParallel("pipeline_parallel", "a pipeline needs several processes")


class Schedule1F1B(PipelineStage):
    """A pipeline schedule."""


class ScheduleInterleaved1F1B(PipelineStage):
    """A pipeline schedule."""


class ScheduleGPipe(PipelineStage):
    """A pipeline schedule."""


class MetaStepType(enum.Enum):
    FWD = "fwd"
    BWD = "bwd"
    OVERLAP_B_F = "overlap_b_f"


class HookRole(enum.Enum):
    COMPUTE = "compute"
    COMM = "comm"


class HookCoordinator:
    """Coordinates two threads in the real package; here nothing is ever overlapped."""

    def is_enabled(self) -> bool:
        return False


class CommComputeOverlap:
    """Runs a backward beside a forward in the real package."""

    def __init__(self) -> None:
        raise NeedsHyperParallel("pipeline_parallel_overlap_b_f", "it overlaps two pipeline stages")


class ContextParallel:
    """MindFormers derives its style from it at import."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NeedsHyperParallel("context_parallel", "a sequence is split over several processes")


class AsyncContextParallel(ContextParallel):
    """MindFormers derives its style from it at import."""


class _Platform:
    def differentiable_sync_hook(self, x: Any, hook_name: str, coordinator: Any) -> Any:
        return x


def get_platform() -> _Platform:
    """Where the real package keeps its backend's functions."""
    return _Platform()
