"""Graphs and plans as JSON. A reference is ``["name", output]``, or ``["name", 0, "load"]`` through a Load node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hp_memory.errors import HPMemoryError, nearest
from hp_memory.offload.graph import Graph, Node, Output, Parameter, ParameterRef, Source
from hp_memory.offload.operations import H2D, Input, Moved, Operation
from hp_memory.offload.optimizer import HyperOffloadPlan

GRAPH_KEYS = ("parameters", "nodes", "graph_outputs")
PARAMETER_KEYS = ("name", "bytes", "remote")
NODE_KEYS = (
    "name", "op", "inputs", "output_bytes", "view", "inplace", "ref_outputs", "enable_offload", "prefetch_distance",
    "release_distance", "device_bytes", "workspace_bytes",
)  # fmt: skip
MOST_BYTES = 2**50  # a pebibyte: no tensor of a device is larger


class GraphFormatError(HPMemoryError):
    """A graph file that can't be read."""


def graph_from_dict(data: Any, origin: str = "") -> Graph:
    """Read ``parameters``, ``nodes`` (in execution order) and ``graph_outputs``.

    Raises:
        GraphFormatError: a key is missing, unknown or of another type, a number out of range, or a node reads what
            doesn't exist yet.
    """
    return _GraphReader(origin).graph(data)


class _GraphReader:
    """``where`` in its methods is the place in the file that an error names."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.parameters: dict[str, Parameter] = {}
        self.positions: dict[str, int] = {}
        self.nodes: list[Node] = []

    def fail(self, where: str, why: str) -> GraphFormatError:
        return GraphFormatError(f"{self.origin or 'graph'}: {where} {why}")

    def graph(self, data: Any) -> Graph:
        record = self.record(data, "the graph", GRAPH_KEYS, GRAPH_KEYS)
        for k, item in enumerate(self.items(record["parameters"], "parameters")):
            self.parameter(item, f"parameters[{k}]")
        for k, item in enumerate(self.items(record["nodes"], "nodes")):
            node = self.node(item, f"nodes[{k}]")
            self.positions[node.name] = len(self.nodes)
            self.nodes.append(node)
        outputs = self.items(record["graph_outputs"], "graph_outputs")
        sources = tuple(self.source(ref, f"graph_outputs[{k}]") for k, ref in enumerate(outputs))
        return Graph(self.nodes, self.parameters, sources, self.origin)

    def parameter(self, data: Any, where: str) -> None:
        record = self.record(data, where, PARAMETER_KEYS, ("name", "bytes"))
        name = self.fresh_name(record["name"], where)
        nbytes = self.number(record["bytes"], f"{where}.bytes", MOST_BYTES)
        self.parameters[name] = Parameter(name, nbytes, self.flag(record.get("remote", False), f"{where}.remote"))

    def node(self, data: Any, where: str) -> Node:
        record = self.record(data, where, NODE_KEYS, ("name", "op", "inputs", "output_bytes"))
        name = self.fresh_name(record["name"], where)
        inputs = self.items(record["inputs"], f"{where}.inputs")
        if not isinstance(record["op"], str):
            raise self.fail(f"{where}.op={record['op']!r}", "must be text")
        made = Node(
            name=name,
            op=record["op"],
            inputs=tuple(self.source(ref, f"{where}.inputs[{k}]") for k, ref in enumerate(inputs)),
            output_bytes=self.sizes(record["output_bytes"], f"{where}.output_bytes"),
            view=self.flag(record.get("view", False), f"{where}.view"),
            inplace=self.flag(record.get("inplace", False), f"{where}.inplace"),
            workspace_bytes=self.number(record.get("workspace_bytes", 0), f"{where}.workspace_bytes", MOST_BYTES),
        )
        if (made.view or made.inplace) and not made.inputs:
            raise self.fail(where, "is a view or works in place, but has no input")
        made.ref_outputs = self.shared(record.get("ref_outputs", {}), made, f"{where}.ref_outputs")
        self.attributes(made, record, where)
        return made

    def attributes(self, node: Node, record: Mapping[str, Any], where: str) -> None:
        """What a node may have or not: null counts as not set."""
        if record.get("enable_offload") is not None:
            node.enable_offload = self.flag(record["enable_offload"], f"{where}.enable_offload")
        for name in ("prefetch_distance", "release_distance"):
            if record.get(name) is not None:
                setattr(node, name, self.number(record[name], f"{where}.{name}", 2**63 - 1))
        if record.get("device_bytes") is not None:
            node.device_bytes = self.sizes(record["device_bytes"], f"{where}.device_bytes")
            if len(node.device_bytes) != len(node.output_bytes):
                raise self.fail(f"{where}.device_bytes", f"needs {len(node.output_bytes)} numbers, one for each output")

    def shared(self, data: Any, node: Node, where: str) -> tuple[tuple[int, int], ...]:
        if not isinstance(data, Mapping):
            raise self.fail(f"{where}={data!r}", "must be an object: output -> input whose buffer it shares")
        found = []
        for output, index in data.items():
            if not output.isdecimal() or int(output) >= len(node.output_bytes):
                raise self.fail(f"{where}: {output!r}", f"is no output: there are {len(node.output_bytes)}")
            found.append((int(output), self.number(index, f"{where}.{output}", len(node.inputs) - 1)))
        return tuple(found)

    def sizes(self, data: Any, where: str) -> tuple[int, ...]:
        items = self.items(data, where)
        if not items:
            raise self.fail(where, "is empty: a kernel has at least one output")
        return tuple(self.number(item, f"{where}[{k}]", MOST_BYTES) for k, item in enumerate(items))

    def source(self, ref: Any, where: str) -> Source:
        if not isinstance(ref, list) or not 2 <= len(ref) <= 3 or not isinstance(ref[0], str):
            raise self.fail(f"{where}={ref!r}", 'is no reference: ["name", output]')
        name, index = ref[0], ref[1]
        if name in self.positions:
            if len(ref) > 2:
                raise self.fail(f"{where}={ref!r}", "reads a kernel through a Load node, which parameters only have")
            node = self.positions[name]
            return Output(node, self.number(index, f"{where}[1]", len(self.nodes[node].output_bytes) - 1))
        if name in self.parameters:
            self.number(index, f"{where}[1]", 0)
            if ref[2:] not in ([], ["load"]):
                raise self.fail(f"{where}={ref!r}", 'may say "load" as its third item only')
            return ParameterRef(name, load=len(ref) > 2)
        raise self.fail(f"{where}={ref!r}", f"{name!r} is read before it exists")

    def record(self, data: Any, where: str, known: Sequence[str], needed: Sequence[str]) -> Mapping[str, Any]:
        if not isinstance(data, Mapping):
            raise self.fail(where, f"must be an object with {', '.join(needed)}")
        for key in data:
            if key not in known:
                hint = nearest(key, known)
                raise self.fail(where, f"has no key {key!r}{f'; did you mean {hint!r}?' if hint else ''}")
        missing = [key for key in needed if key not in data]
        if missing:
            raise self.fail(where, f"lacks {', '.join(missing)}")
        return data

    def fresh_name(self, name: Any, where: str) -> str:
        if not isinstance(name, str) or not name:
            raise self.fail(f"{where}.name={name!r}", "must be text")
        if name in self.positions or name in self.parameters:
            raise self.fail(f"{where}.name={name!r}", "is taken already")
        return name

    def items(self, data: Any, where: str) -> list[Any]:
        if not isinstance(data, list):
            raise self.fail(where, "must be a list")
        return data

    def flag(self, value: Any, where: str) -> bool:
        if not isinstance(value, bool):
            raise self.fail(f"{where}={value!r}", "must be true or false")
        return value

    def number(self, value: Any, where: str, most: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise self.fail(f"{where}={value!r}", f"must be a whole number from 0 to {most}")
        return value


def plan_to_dict(plan: HyperOffloadPlan) -> dict[str, Any]:
    """The inserted operations by slot, the inputs that changed and the graph's outputs.

    Copies of one tensor are numbered from 0 in the order in which they run.
    """
    if plan.raises:
        return {"error": "h2d_without_user"}
    numbers = copy_numbers(plan)

    def ref(tensor: Input) -> Any:
        if isinstance(tensor, Operation):
            return {"h2d_of": ref(tensor.data), "copy": numbers[tensor]}
        if isinstance(tensor, ParameterRef):
            return [tensor.name, 0, *(["load"] if tensor.load else [])]
        return [plan.graph.nodes[tensor.node].name, tensor.index]

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
    seen: Counter[Moved] = Counter()
    numbers = {}
    for operation in plan.operations.of_kind(H2D):
        numbers[operation] = seen[operation.data]
        seen[operation.data] += 1
    return numbers
