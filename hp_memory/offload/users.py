"""Who uses which tensor, and which tensors may be moved at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hp_memory.offload.draft import Draft
from hp_memory.offload.graph import CONDITION_SWITCH, Graph, Node, Output
from hp_memory.offload.operations import Input

COPY_TO_HOST = ("CopyToHost", "CopyToHostExt")
NOT_KERNELS = ("Load", "Depend", "MakeTuple", "TupleGetItem", "UpdateState", "Return")
NEVER_MOVED = ("MoveTo", "TensorMove", CONDITION_SWITCH)


class Use(NamedTuple):
    """Input ``index`` of the kernel at position ``node``."""

    node: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which a Use has no use for


@dataclass(slots=True)
class UserInfo:
    """A tensor and all its users in execution order; readers of a view of it are its users too."""

    node: Output
    users: list[Use] = field(default_factory=list)


def collect_all_node_users(draft: Draft, tuples: bool) -> list[UserInfo]:
    """Users of every kernel output, tensors in the order of their first use.

    Parameters don't count here, being a graph output is no use, and a ConditionSwitch uses only its condition.
    ``tuples``: kernels with several outputs count too, each use booked on output 0 as MindSpore 2.10.0 does; else
    they are left out.
    """
    nodes = draft.graph.nodes
    origins = draft.origins(own_branch=False)
    infos: dict[Output, UserInfo] = {}
    for position, node in enumerate(nodes):
        inputs = draft.inputs(position)
        for index, source in enumerate(inputs[:1] if node.op == CONDITION_SWITCH else inputs):
            data = booked_on(draft, source, origins)
            if data is None or (nodes[data.node].is_tuple and not tuples):
                continue
            info = infos.get(data)
            if info is None:
                info = infos[data] = UserInfo(data)
            info.users.append(Use(position, index))
    return list(infos.values())


def booked_on(draft: Draft, source: Input, origins: Mapping[Input, Input]) -> Output | None:
    """The tensor that MindSpore 2.10.0 takes a use for; None for a parameter.

    A use of any output of a tuple counts for output 0, unless it is read through a ConditionSwitch.
    """
    data = origins.get(source, source)
    if not isinstance(data, Output):
        return None
    if draft.graph.nodes[data.node].is_tuple and not passes_branch(draft, source):
        return Output(data.node, 0)
    return data


def passes_branch(draft: Draft, source: Input) -> bool:
    """Whether a tensor is read through a ConditionSwitch, for which the true output of a tuple is found."""
    nodes = draft.graph.nodes
    while isinstance(source, Output) and nodes[source.node].view:
        source = draft.inputs(source.node)[0]
    return isinstance(source, Output) and nodes[source.node].op == CONDITION_SWITCH


def is_ref_input(node: Node, index: int) -> bool:
    """Whether an output of the node shares the buffer of this input."""
    return any(index == shared for _, shared in node.ref_outputs)


def why_invalid(graph: Graph, info: UserInfo) -> str | None:
    """The reason this tensor may not be moved, or None.

    Size is no reason, and a producer that works in place is fine. View and inplace users are refused only together.
    """
    producer = graph.nodes[info.node.node]
    if producer.op in NOT_KERNELS or producer.op in NEVER_MOVED:
        return f"a {producer.op} is never moved"
    if producer.no_tensor:
        return "it is no tensor"
    if producer.enable_offload is False:
        return "enable_offload is false"
    if any(info.node.index == output for output, _ in producer.ref_outputs):
        return "it shares a buffer with an input of its producer"
    users = [graph.nodes[use.node] for use in info.users]
    if any(user.op in COPY_TO_HOST for user in users):
        return "it is copied to the host already"
    if any(user.view for user in users) and any(user.inplace for user in users):
        return "it has both view and inplace users"
    return None


def is_valid_offload_node(graph: Graph, info: UserInfo) -> bool:
    return why_invalid(graph, info) is None
