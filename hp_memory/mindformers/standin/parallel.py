"""Context parallelism, importable and refused when it is used, and the platform's functions."""

from __future__ import annotations

from typing import Any

from hp_memory.errors import NeedsHyperParallel
from hp_memory.mindformers.standin import overlap


class ContextParallel:
    """MindFormers derives its style from it at import."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NeedsHyperParallel("context_parallel", "a sequence is split over several processes")


class AsyncContextParallel(ContextParallel):
    """MindFormers derives its style from it at import."""


class _Platform:
    """Where the real package keeps its backend's functions."""

    differentiable_sync_hook = staticmethod(overlap.differentiable_sync_hook)
    differentiable_all_to_all_single_async = staticmethod(overlap.differentiable_all_to_all_single_async)


def get_platform() -> _Platform:
    """The backend's functions."""
    return _Platform()
