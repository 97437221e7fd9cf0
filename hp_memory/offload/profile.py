"""The memory profile the peak strategy works on: bytes on the device at each kernel, from lifetimes alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hp_memory.offload.draft import Draft
from hp_memory.offload.graph import Node, Output
from hp_memory.offload.users import UserInfo, booked_on


def aligned(nbytes: int) -> int:
    """Bytes a buffer takes in MindSpore's memory pool: 32 more, rounded up to 512."""
    return (nbytes + 32 + 511) // 512 * 512


def profile_bytes(node: Node, index: int) -> int:
    """Bytes that the profile counts for an output: what the device's kernel asks for, else the tensor's in the pool."""
    return node.device_bytes[index] if node.device_bytes else aligned(node.output_bytes[index])


@dataclass(slots=True)
class MemoryProfile:
    """Bytes by kernel position, the aligned size of each tensor, and the last kernel at which it is needed."""

    values: np.ndarray
    last_use: dict[Output, int]


def memory_profile(draft: Draft, user_infos: list[UserInfo]) -> MemoryProfile:
    """Parameters, each tensor from its producer to its last use, and each kernel's workspace while it runs.

    Views and kernels that work in place own no memory. Every input of a kernel that works in place lives as long as
    that kernel's output, and graph outputs live to the end.
    """
    graph = draft.graph
    last_use = last_uses(draft, user_infos)
    change = np.zeros(len(graph.nodes) + 1, dtype=np.int64)
    workspace = np.array([node.workspace_bytes for node in graph.nodes], dtype=np.int64)
    for position, node in enumerate(graph.nodes):
        if node.view or node.inplace:
            continue
        for index in range(len(node.output_bytes)):
            size = profile_bytes(node, index)
            change[position] += size
            change[last_use.get(Output(position, index), position) + 1] -= size
    parameters = sum(aligned(parameter.nbytes) for parameter in graph.parameters.values())
    return MemoryProfile(np.cumsum(change[:-1]) + workspace + parameters, last_use)


def last_uses(draft: Draft, user_infos: list[UserInfo]) -> dict[Output, int]:
    """Last kernel at which each tensor must be on the device; outputs of a tuple count as output 0, as in the users."""
    nodes = draft.graph.nodes
    origins = draft.origins(own_branch=False)
    last = {info.node: info.users[-1].node for info in user_infos}
    for source in draft.graph.outputs:
        if (data := booked_on(draft, source, origins)) is not None:
            last[data] = len(nodes) - 1
    for position in range(len(nodes) - 1, -1, -1):
        if not nodes[position].inplace:
            continue
        until = last.get(Output(position, 0), position)
        for source in nodes[position].inputs:
            if (data := booked_on(draft, source, origins)) is not None:
                last[data] = max(last.get(data, data.node), until)
    return last
