"""A graph while it is being rewritten: changed inputs beside the untouched nodes, and the operations queue."""

from __future__ import annotations

from collections.abc import Sequence

from hp_memory.offload.graph import CONDITION_SWITCH, Graph, Output, Source
from hp_memory.offload.operations import HyperOffloadOperations, Input, Operation


class Draft:
    """Nodes are never changed in place, so one graph can be planned many times."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.operations = HyperOffloadOperations()
        self.changed: dict[int, list[Input]] = {}
        self.outputs: list[Input] = list(graph.outputs)

    def inputs(self, position: int) -> Sequence[Input]:
        return self.changed.get(position) or self.graph.nodes[position].inputs

    def rewire(self, position: int, index: int, reload: Operation) -> None:
        if position not in self.changed:
            self.changed[position] = list(self.graph.nodes[position].inputs)
        self.changed[position][index] = reload

    def origins(self, *, own_branch: bool) -> dict[Input, Input]:
        """What the outputs of views stand for, views looked through; other tensors stand for themselves.

        A ConditionSwitch passes its inputs on as well. ``own_branch=False`` is how MindSpore 2.10.0 collects uses:
        every output counts as input 1. Its search for the last user takes input k+1 for output k.
        """
        found: dict[Input, Input] = {}
        for position, node in enumerate(self.graph.nodes):
            if not node.view and node.op != CONDITION_SWITCH:
                continue
            inputs = self.inputs(position)
            for index in range(len(node.output_bytes)):
                passed = 0 if node.view else 1 + index * own_branch
                if passed < len(inputs):
                    found[Output(position, index)] = found.get(inputs[passed], inputs[passed])
        return found

    def label(self, tensor: Source | Operation) -> str:
        return self.graph.label(source_of(tensor))


def source_of(tensor: Source | Operation) -> Source:
    """The activation or parameter that a tensor is: a reload stands for what it reloads."""
    while isinstance(tensor, Operation):
        tensor = tensor.data
    return tensor
