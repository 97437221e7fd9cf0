"""Adaptive distances of the peak strategy: how many kernels a copy takes, spread out, bounded by the memory profile.

The optimizer knows the bytes of a tensor from its kernel only: without kernel sizes a transfer takes no time here.
"""

from __future__ import annotations

import math

import numpy as np

from hp_memory.offload.graph import Graph, Node, Output
from hp_memory.offload.info import OffloadInfo
from hp_memory.offload.settings import OffloadSettings

NO_TIME = 1  # kernels that a copy of no bytes takes


def kernels_during(nbytes: int, bandwidth_gbps: float, kernel_time_us: float) -> int:
    """Kernels that run while ``nbytes`` are copied at ``bandwidth_gbps`` (1e9 bytes per second); at least one."""
    return max(1, math.ceil(nbytes / (bandwidth_gbps * 1000) / kernel_time_us))


def set_adaptive_distances(
    graph: Graph, infos: list[OffloadInfo], settings: OffloadSettings, values: np.ndarray
) -> None:
    """Fill in each tensor's distances. ``values``: the memory profile without the chosen tensors; copies are added."""
    if settings.adaptive_release:
        set_release_distances(graph, infos, settings, values)
    if settings.adaptive_prefetch:
        set_prefetch_distances(graph, infos, settings, values)


def set_release_distances(
    graph: Graph, infos: list[OffloadInfo], settings: OffloadSettings, values: np.ndarray
) -> None:
    """The kernels of each copy-out, counted from the tensor's last user of all, as MindSpore 2.10.0 does."""
    last = [info.replace_info_list[-1].replace_rest_nodes[-1].node for info in infos]
    wanted = [wanted_release(graph, info.data_node, after, settings) for info, after in zip(infos, last, strict=True)]
    end = max((after + kernels for after, kernels in zip(last, wanted, strict=True)), default=0)
    for info, after, kernels in zip(infos, last, wanted, strict=True):
        if end - after > 1:
            kernels += (end - after) // 2
        kernels = fitting(values, after, kernels, kernel_bytes(graph, info.data_node), settings.threshold, ahead=True)
        before_gap = info.replace_info_list[-1].replace_start_node
        if graph.nodes[info.data_node.node].is_tuple:
            info.release_distance = NO_TIME  # found at the kernel, looked for at its TupleGetItem
        else:
            info.release_distance = kernels or wanted_release(graph, info.data_node, before_gap, settings)


def wanted_release(graph: Graph, data: Output, last_use: int, settings: OffloadSettings) -> int:
    own = graph.nodes[data.node].release_distance
    return release_kernels(graph, data, last_use, settings) if own is None else own


def release_kernels(graph: Graph, data: Output, last_use: int, settings: OffloadSettings) -> int:
    """Kernels that a copy-out takes, as far as there are any after ``last_use``."""
    kernels = kernels_during(kernel_bytes(graph, data), settings.d2h_bandwidth_gbps, settings.kernel_time_us)
    return min(kernels, len(graph.nodes) - 1 - last_use)


def set_prefetch_distances(
    graph: Graph, infos: list[OffloadInfo], settings: OffloadSettings, values: np.ndarray
) -> None:
    """The kernels of each reload before its first user, not above the last kernel before the gap."""
    by_first_use = sorted(infos, key=first_use)
    wanted = [wanted_prefetch(graph, info, settings) for info in by_first_use]
    earliest = min((first_use(info) - kernels for info, kernels in zip(by_first_use, wanted, strict=True)), default=0)
    for info, kernels in zip(by_first_use, wanted, strict=True):
        first, before_gap = first_use(info), info.replace_info_list[0].replace_start_node
        if first - kernels > earliest:
            kernels += (first - kernels - earliest) // 2
        kernels = min(kernels, first - before_gap - 1)
        kernels = fitting(values, first, kernels, kernel_bytes(graph, info.data_node), settings.threshold, ahead=False)
        if not graph.nodes[info.data_node.node].is_tuple:
            info.prefetch_distance = kernels or None


def wanted_prefetch(graph: Graph, info: OffloadInfo, settings: OffloadSettings) -> int:
    own = graph.nodes[info.data_node.node].prefetch_distance
    if own is not None:
        return own
    nbytes = kernel_bytes(graph, info.data_node)
    return min(kernels_during(nbytes, settings.h2d_bandwidth_gbps, settings.kernel_time_us), first_use(info))


def first_use(info: OffloadInfo) -> int:
    return info.replace_info_list[0].replace_rest_nodes[0].node


def kernel_bytes(graph: Graph, data: Output) -> int:
    """Bytes of a tensor as its kernel states them; 0 where it doesn't."""
    node: Node = graph.nodes[data.node]
    return node.device_bytes[data.index] if node.device_bytes else 0


def fitting(values: np.ndarray, position: int, wanted: int, nbytes: int, limit: int, *, ahead: bool) -> int:
    """The largest distance up to ``wanted`` for which the profile fits with the copy in it; the copy is added."""

    def stretch(distance: int) -> slice:
        return slice(position, position + distance) if ahead else slice(max(0, position - distance), position)

    def fits(distance: int) -> bool:
        return max(int(values.max()), int(values[stretch(distance)].max(initial=0)) + nbytes) <= limit

    distance = wanted
    if not fits(wanted):
        low, high = 0, wanted
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        distance = low
    values[stretch(distance)] += nbytes
    return distance
