"""Which buffer each kernel reads and writes in a planned graph, and until when a buffer is needed."""

from __future__ import annotations

from dataclasses import dataclass

from hp_memory.offload.graph import CONDITION_SWITCH, Node, Output
from hp_memory.offload.operations import H2D, Input, Operation
from hp_memory.offload.optimizer import HyperOffloadPlan

END = 2**62  # a last use no kernel has: the buffer is a result of the graph


@dataclass(slots=True)
class Buffers:
    """``root``: what an output that owns no memory stands for. ``last_use``: position of a buffer's last reader."""

    root: dict[Input, Input]
    last_use: dict[Input, int]

    def of(self, tensor: Input) -> Input:
        return self.root.get(tensor, tensor)


def shared_input(node: Node, index: int) -> int | None:
    """The input whose buffer output ``index`` uses, or None where it has its own."""
    if node.view or node.inplace or node.unmarked_view:
        return 0 if node.inputs else None
    if node.op == CONDITION_SWITCH:
        return index + 1 if index + 1 < len(node.inputs) else None
    return next((shared for output, shared in node.ref_outputs if output == index), None)


def buffers_of(plan: HyperOffloadPlan) -> Buffers:
    root: dict[Input, Input] = {}
    last_use: dict[Input, int] = {}
    for position, node in enumerate(plan.graph.nodes):
        inputs = plan.inputs_of(position)
        for source in inputs:
            last_use[root.get(source, source)] = position
        for index in range(len(node.output_bytes)):
            shared = shared_input(node, index)
            if shared is not None:
                root[Output(position, index)] = root.get(inputs[shared], inputs[shared])
    for source in plan.outputs:
        last_use[root.get(source, source)] = END
    return Buffers(root, last_use)


def reloads_by_use(plan: HyperOffloadPlan, buffers: Buffers) -> dict[int, list[Operation]]:
    """Reloads whose last reader is the kernel at that position."""
    found: dict[int, list[Operation]] = {}
    for reload in plan.operations.of_kind(H2D):
        if reload in buffers.last_use:
            found.setdefault(buffers.last_use[reload], []).append(reload)
    return found
