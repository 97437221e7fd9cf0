"""The distance strategy: a tensor whose next use is far away in the execution order is moved out."""

from __future__ import annotations

from hp_memory.offload.graph import Graph
from hp_memory.offload.info import OffloadInfo, ReplaceInfo, Skipped
from hp_memory.offload.users import UserInfo, is_valid_offload_node


def long_gaps(info: UserInfo, select_distance: int) -> list[ReplaceInfo]:
    """One entry for each gap of more than ``select_distance`` kernels between consecutive uses (strictly more)."""
    groups: list[ReplaceInfo] = []
    previous = info.node.node
    for use in info.users:
        if use.node - previous > select_distance:
            groups.append(ReplaceInfo(previous, []))
        if groups:
            groups[-1].replace_rest_nodes.append(use)
        previous = use.node
    return groups


def distance_strategy(
    graph: Graph, user_infos: list[UserInfo], select_distance: int
) -> tuple[list[OffloadInfo], list[Skipped]]:
    """Candidates in first-use order, and tensors with a long gap that were skipped.

    A tensor with several long gaps is skipped whole, so a smaller select distance can lose candidates.
    """
    chosen: list[OffloadInfo] = []
    skipped: list[Skipped] = []
    for info in user_infos:
        if info.users[-1].node - info.node.node <= select_distance:
            continue
        groups = long_gaps(info, select_distance)
        if not groups or not is_valid_offload_node(graph, info):
            continue
        if len(groups) > 1:
            skipped.append(Skipped(info.node, [group.gap for group in groups], "several long gaps"))
        else:
            chosen.append(OffloadInfo(info.node, groups))
    return chosen, skipped
