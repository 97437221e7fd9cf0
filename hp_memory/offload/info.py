"""The offload scheme of one tensor, as strategies hand it to the insertion."""

from __future__ import annotations

from dataclasses import dataclass, field

from hp_memory.offload.graph import Graph, Output
from hp_memory.offload.users import Use, is_ref_input


@dataclass(slots=True)
class ReplaceInfo:
    """Users that read one reload.

    Args:
        replace_start_node: position of the last kernel before the gap.
        replace_rest_nodes: the uses after the gap, in execution order.
    """

    replace_start_node: int
    replace_rest_nodes: list[Use]

    @property
    def gap(self) -> int:
        """Kernels from the last use before the gap to the first one after it."""
        return self.replace_rest_nodes[0].node - self.replace_start_node


@dataclass(slots=True)
class OffloadInfo:
    """One tensor that is saved once and reloaded for each entry of ``replace_info_list``.

    ``release_distance`` and ``prefetch_distance`` are set where they are computed per tensor (adaptive distances).
    """

    data_node: Output
    replace_info_list: list[ReplaceInfo] = field(default_factory=list)
    release_distance: int | None = None
    prefetch_distance: int | None = None


@dataclass(slots=True)
class Skipped:
    """A candidate that stays on the device: its gaps, and why."""

    data_node: Output
    gaps: list[int]
    why: str


def filter_by_number(infos: list[OffloadInfo], select_num: int) -> list[OffloadInfo]:
    """The first ``select_num`` in first-use order; nothing is sorted by size or distance."""
    return infos[:select_num]


def filter_by_percentage(infos: list[OffloadInfo], percentage: int) -> list[OffloadInfo]:
    """floor(n * percentage / 100) entries, evenly spaced from the first on."""
    if percentage >= 100:
        return infos
    count = len(infos) * percentage // 100
    return [infos[k * len(infos) // count] for k in range(count)]


def drop_ref_input_ranges(graph: Graph, infos: list[OffloadInfo]) -> tuple[list[OffloadInfo], list[Skipped]]:
    """Drop groups in which a user's output shares the buffer of the input that would be replaced.

    This comes after the filters, so a dropped candidate has used up one of ``select_num`` places.
    """
    kept: list[OffloadInfo] = []
    dropped: list[Skipped] = []
    for info in infos:
        groups = [group for group in info.replace_info_list if not replaces_ref_input(graph, group)]
        if groups:
            info.replace_info_list = groups
            kept.append(info)
        else:
            gaps = [group.gap for group in info.replace_info_list]
            dropped.append(Skipped(info.data_node, gaps, "a later user's output shares its buffer"))
    return kept, dropped


def replaces_ref_input(graph: Graph, group: ReplaceInfo) -> bool:
    return any(is_ref_input(graph.nodes[use.node], use.index) for use in group.replace_rest_nodes)
