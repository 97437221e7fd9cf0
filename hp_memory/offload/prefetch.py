"""Moving reloads ahead of their first use, so that the copy runs beside compute."""

from __future__ import annotations

from collections.abc import Callable

from hp_memory.offload.draft import Draft
from hp_memory.offload.operations import H2D, Moved, Operation


def adjust_hyper_offload_node_position(
    draft: Draft, distance: Callable[[Moved], int], floors: dict[Operation, int]
) -> None:
    """``distance``: of a tensor; ``floors``: the lowest slot of a reload, which only the peak strategy gives."""
    for reload in draft.operations.of_kind(H2D):
        draft.operations.move_ahead(reload, distance(reload.data), floors.get(reload))
