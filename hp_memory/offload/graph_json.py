"""Graphs and plans as JSON. A reference is ``["name", output]``, or ``["name", 0, "load"]`` through a Load node."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hp_memory.errors import HPMemoryError
from hp_memory.offload.graph import Graph, Node, Output, Parameter, ParameterRef, Source
from hp_memory.offload.operations import H2D, Input, Operation
from hp_memory.offload.optimizer import HyperOffloadPlan


class GraphFormatError(HPMemoryError):
    """A graph file that can't be read."""


def graph_from_dict(data: dict[str, Any], origin: str = "") -> Graph:
    """Read ``parameters``, ``nodes`` (in execution order) and ``graph_outputs``.

    Raises:
        GraphFormatError: a key is missing, or a node reads what doesn't exist yet.
    """
    try:
        parameters = {p["name"]: Parameter(p["name"], p["bytes"], p.get("remote", False)) for p in data["parameters"]}
        positions: dict[str, int] = {}
        nodes = []
        for record in data["nodes"]:
            nodes.append(node_from_dict(record, positions, parameters))
            positions[record["name"]] = len(nodes) - 1
        outputs = tuple(source_from_list(ref, positions, parameters) for ref in data["graph_outputs"])
    except (KeyError, TypeError) as error:
        raise GraphFormatError(f"{origin or 'graph'}: missing or malformed {error}") from error
    return Graph(nodes, parameters, outputs, origin)


def node_from_dict(record: dict[str, Any], positions: dict[str, int], parameters: dict[str, Parameter]) -> Node:
    return Node(
        name=record["name"],
        op=record["op"],
        inputs=tuple(source_from_list(ref, positions, parameters) for ref in record["inputs"]),
        output_bytes=tuple(record["output_bytes"]),
        view=record.get("view", False),
        inplace=record.get("inplace", False),
        ref_outputs=tuple((int(output), shared) for output, shared in record.get("ref_outputs", {}).items()),
        enable_offload=record.get("enable_offload"),
        prefetch_distance=record.get("prefetch_distance"),
        release_distance=record.get("release_distance"),
        device_bytes=None if record.get("device_bytes") is None else tuple(record["device_bytes"]),
        workspace_bytes=record.get("workspace_bytes", 0),
    )


def source_from_list(ref: list[Any], positions: dict[str, int], parameters: dict[str, Parameter]) -> Source:
    if ref[0] in positions:
        return Output(positions[ref[0]], ref[1])
    if ref[0] in parameters:
        return ParameterRef(ref[0], load=len(ref) > 2 and ref[2] == "load")
    raise GraphFormatError(f"{ref[0]!r} is read before it exists")


def plan_to_dict(plan: HyperOffloadPlan) -> dict[str, Any]:
    """The inserted operations by slot, the inputs that changed and the graph's outputs.

    Copies of one datum are numbered from 0 in the order in which they run.
    """
    if plan.raises:
        return {"error": "h2d_without_user"}
    numbers = copy_numbers(plan)

    def ref(datum: Input) -> Any:
        if isinstance(datum, Operation):
            return {"h2d_of": ref(datum.data), "copy": numbers[datum]}
        if isinstance(datum, ParameterRef):
            return [datum.name, 0, *(["load"] if datum.load else [])]
        return [plan.graph.nodes[datum.node].name, datum.index]

    def entry(operation: Operation) -> dict[str, Any]:
        found = {"op": operation.op, "data": ref(operation.data)}
        found |= {key: getattr(operation, key) for key in ("stream", "event", "side")}
        numbered = operation if operation.op == H2D else operation.copy
        return found if numbered is None else found | {"copy": numbers[numbered]}

    return {
        "error": None,
        "pre": [entry(operation) for operation in plan.operations.pre],
        "after": [[entry(op) for op in plan.operations.after(k)] for k in range(len(plan.graph.nodes))],
        "inputs": {plan.graph.nodes[k].name: [ref(source) for source in changed] for k, changed in plan.inputs.items()},
        "graph_outputs": [ref(source) for source in plan.outputs],
    }


def copy_numbers(plan: HyperOffloadPlan) -> dict[Operation, int]:
    seen: Counter[Source] = Counter()
    numbers = {}
    for operation in plan.operations.of_kind(H2D):
        numbers[operation] = seen[operation.data]
        seen[operation.data] += 1
    return numbers
