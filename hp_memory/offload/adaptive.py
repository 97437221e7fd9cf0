"""Adaptive distances of the peak strategy: how many kernels a transfer takes, bounded by the memory profile."""

from __future__ import annotations

import math

import numpy as np

from hp_memory.offload.graph import Graph
from hp_memory.offload.info import OffloadInfo
from hp_memory.offload.profile import aligned
from hp_memory.offload.settings import OffloadSettings


def kernels_during(nbytes: int, bandwidth_gbps: float, kernel_time_us: float) -> int:
    """Kernels that run while ``nbytes`` are copied at ``bandwidth_gbps`` (1e9 bytes per second); at least one."""
    return max(1, math.ceil(nbytes / (bandwidth_gbps * 1000) / kernel_time_us))


def set_adaptive_distances(
    graph: Graph, infos: list[OffloadInfo], settings: OffloadSettings, values: np.ndarray
) -> None:
    """Fill in each datum's distances. ``values``: the memory profile with the chosen data away; reloads are added."""
    limit = max(settings.threshold, int(values.max()))
    for info in infos:
        nbytes = aligned(graph.nbytes(info.data_node))
        if settings.adaptive_release:
            last = info.replace_info_list[-1].replace_start_node
            kernels = kernels_during(nbytes, settings.d2h_bandwidth_gbps, settings.kernel_time_us)
            info.release_distance = min(kernels, len(graph.nodes) - 1 - last)
        if settings.adaptive_prefetch:
            first = info.replace_info_list[0].replace_rest_nodes[0].node
            kernels = kernels_during(nbytes, settings.h2d_bandwidth_gbps, settings.kernel_time_us)
            fitting = fitting_prefetch(values, first, min(kernels, first), nbytes, limit)
            info.prefetch_distance = max(settings.prefetch_distance, fitting)


def fitting_prefetch(values: np.ndarray, first_use: int, wanted: int, size: int, limit: int) -> int:
    """The largest distance up to ``wanted`` for which the reloaded copy still fits; at least one."""
    distance = 0
    while distance < wanted and values[first_use - 1 - distance] + size <= limit:
        distance += 1
    distance = max(1, distance)
    values[first_use - distance : first_use] += size
    return distance
