"""Inserting the copies of chosen activations: one copy-out after the producer, one reload per group of later users."""

from __future__ import annotations

from hp_memory.offload.draft import Draft
from hp_memory.offload.graph import Output
from hp_memory.offload.info import OffloadInfo
from hp_memory.offload.operations import D2H, H2D, Operation


def add_single_activation_operations(draft: Draft, info: OffloadInfo, outputs_of: dict[Output, list[int]]) -> None:
    """Save the tensor after its producer, reload it before the first user of each group, rewire the users.

    Readers of a view get the reload of the source itself. A tensor that is also a graph output gets one more reload
    after the last kernel.
    """
    data = info.data_node
    draft.operations.add_after(data.node, Operation(D2H, data))
    for group in info.replace_info_list:
        reload = Operation(H2D, data)
        for use in group.replace_rest_nodes:
            draft.rewire(use.node, use.index, reload)
        draft.operations.add_before(group.replace_rest_nodes[0].node, reload)
    if data in outputs_of:
        reload = Operation(H2D, data, output_reload=True)
        for position in outputs_of[data]:
            draft.outputs[position] = reload
        draft.operations.add_after(len(draft.graph.nodes) - 1, reload)


def add_activation_operations(draft: Draft, infos: list[OffloadInfo], peak: bool) -> None:
    """Insert the copies of all chosen tensors.

    Of a tensor that is listed several times among the graph's outputs the distance strategy rewires the first only: the
    others keep the freed buffer, which is a hazard.
    """
    outputs_of: dict[Output, list[int]] = {}
    for position, source in enumerate(draft.graph.outputs):
        if isinstance(source, Output) and (peak or source not in outputs_of):
            outputs_of.setdefault(source, []).append(position)
    for info in infos:
        add_single_activation_operations(draft, info, outputs_of)
