"""The memory profile the peak strategy works on: bytes on the device at each kernel, from lifetimes alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hp_memory.offload.draft import Draft
from hp_memory.offload.graph import Output
from hp_memory.offload.users import UserInfo


def aligned(nbytes: int) -> int:
    """Bytes a buffer takes in MindSpore's memory pool: 32 more, rounded up to 512."""
    return (nbytes + 32 + 511) // 512 * 512


@dataclass(slots=True)
class MemoryProfile:
    """Bytes by kernel position, the aligned size of each datum, and the last kernel at which it is needed."""

    values: np.ndarray
    last_use: dict[Output, int]


def memory_profile(draft: Draft, user_infos: list[UserInfo]) -> MemoryProfile:
    """Parameters, and each datum from its producer to its last use.

    Views and kernels that work in place own no memory. Every input of a kernel that works in place lives as long as
    that kernel's output, and graph outputs live to the end.
    """
    graph = draft.graph
    last_use = last_uses(draft, user_infos)
    change = np.zeros(len(graph.nodes) + 1, dtype=np.int64)
    for position, node in enumerate(graph.nodes):
        if node.view or node.inplace:
            continue
        for index, nbytes in enumerate(node.output_bytes):
            size = aligned(nbytes)
            change[position] += size
            change[last_use.get(Output(position, index), position) + 1] -= size
    parameters = sum(aligned(parameter.nbytes) for parameter in graph.parameters.values())
    return MemoryProfile(np.cumsum(change[:-1]) + parameters, last_use)


def last_uses(draft: Draft, user_infos: list[UserInfo]) -> dict[Output, int]:
    """Last kernel at which each datum must be on the device; outputs of a tuple count as output 0, as in the users."""
    nodes = draft.graph.nodes
    origins = draft.origins(own_branch=False)
    last = {info.node: info.users[-1].node for info in user_infos}
    for source in draft.graph.outputs:
        data = origins.get(source, source)
        if isinstance(data, Output):
            last[Output(data.node, 0)] = len(nodes) - 1
    for position in range(len(nodes) - 1, -1, -1):
        if not nodes[position].inplace:
            continue
        until = last.get(Output(position, 0), position)
        for source in nodes[position].inputs:
            data = origins.get(source, source)
            if isinstance(data, Output):
                data = Output(data.node, 0)
                last[data] = max(last.get(data, data.node), until)
    return last
