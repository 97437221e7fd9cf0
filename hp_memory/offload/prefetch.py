"""Moving reloads ahead of their first use, so that the copy runs beside compute."""

from __future__ import annotations

from hp_memory.offload.draft import Draft
from hp_memory.offload.graph import Output
from hp_memory.offload.operations import H2D, Operation


def prefetch_distance_of(draft: Draft, reload: Operation, default: int) -> int:
    """The producer's own prefetch distance, else the setting."""
    if isinstance(reload.data, Output):
        own = draft.graph.nodes[reload.data.node].prefetch_distance
        return default if own is None else own
    return default


def adjust_hyper_offload_node_position(draft: Draft, default: int, floors: dict[Operation, int]) -> None:
    """``floors``: the lowest slot of a reload; only the peak strategy gives any."""
    for reload in draft.operations.of_kind(H2D):
        draft.operations.move_ahead(reload, prefetch_distance_of(draft, reload, default), floors.get(reload))
