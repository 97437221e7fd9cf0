"""Executes a plan on abstract buffers: finds what reads a freed buffer, or a host copy before it exists.

A tensor owns the buffer its producer writes until the plan frees it, and is handed the buffer of a reload by an assign:
a free takes whatever the tensor owns at that time. Views, in-place results, shared outputs and branches of a
ConditionSwitch are other names of a buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

from hp_memory.offload.buffers import shared_input
from hp_memory.offload.graph import CONDITION_SWITCH, Output, ParameterRef
from hp_memory.offload.operations import ASSIGN, D2H, DEVICE, FREE, H2D, PRE, WRITE_BACK, Input, Moved, Operation
from hp_memory.offload.optimizer import HyperOffloadPlan


@dataclass(frozen=True, slots=True)
class UseAfterFree:
    """A kernel, a copy or the graph's outputs read a buffer that is gone.

    Args:
        data: the tensor whose free took the buffer.
        buffer: whose memory it was.
        read: the name under which it is read.
        reader: position of the kernel that reads it, or that the copy follows; the number of kernels for an output.
        freed: slot of the free.
    """

    data: Moved
    buffer: Input
    read: Input
    reader: int
    freed: int


@dataclass(frozen=True, slots=True)
class ReloadBeforeSave:
    """A reload that runs before the copy-out of its tensor."""

    reload: Operation


@dataclass(frozen=True, slots=True)
class Findings:
    """What goes wrong when a plan is executed, in order; ``freed_twice`` counts frees of what was free already."""

    uses: list[UseAfterFree]
    early_reloads: list[ReloadBeforeSave]
    freed_twice: int


def execute(plan: HyperOffloadPlan) -> Findings:
    """Run every kernel and operation once, in the plan's order."""
    return _Machine(plan).run()


class _Machine:
    def __init__(self, plan: HyperOffloadPlan) -> None:
        self.plan = plan
        self.alias: dict[Input, Input] = {}
        self.owned: dict[Moved, Input | None] = {}
        self.freed: dict[Input, tuple[Moved, int]] = {}
        self.on_host: set[Moved] = set()
        self.findings = Findings([], [], 0)
        self.freed_twice = 0

    def run(self) -> Findings:
        self.after(PRE)
        for position in range(len(self.plan.graph.nodes)):
            self.kernel(position)
            self.after(position)
        for output in self.plan.outputs:
            self.read(output, len(self.plan.graph.nodes))
        return Findings(self.findings.uses, self.findings.early_reloads, self.freed_twice)

    def kernel(self, position: int) -> None:
        node, inputs = self.plan.graph.nodes[position], self.plan.inputs_of(position)
        for source in inputs[:1] if node.op == CONDITION_SWITCH else inputs:
            self.read(source, position)
        marked = node.view or node.inplace or node.unmarked_view
        if not (marked or node.ref_outputs or node.op == CONDITION_SWITCH):
            return
        for index in range(len(node.output_bytes)):
            shared = shared_input(node, index)
            if shared is not None:
                self.alias[Output(position, index)] = self.buffer(inputs[shared])

    def buffer(self, name: Input) -> Input:
        """The memory that a name stands for, whether it is there or gone."""
        if isinstance(name, ParameterRef):
            return ParameterRef(name.name)
        return self.alias.get(name, name)

    def read(self, name: Input, reader: int) -> None:
        buffer = self.buffer(name)
        if buffer in self.freed:
            data, slot = self.freed[buffer]
            self.findings.uses.append(UseAfterFree(data, buffer, name, reader, slot))

    def after(self, position: int) -> None:
        for operation in self.plan.operations.after(position):
            self.step(operation, position)

    def step(self, operation: Operation, position: int) -> None:
        data = operation.data
        if operation.op in (D2H, WRITE_BACK):
            self.read(data, position)
            self.on_host.add(data)
        elif operation.op == H2D:
            if isinstance(data, Output) and data not in self.on_host:
                self.findings.early_reloads.append(ReloadBeforeSave(operation))
        elif operation.op == ASSIGN:
            self.owned[data] = operation.copy if operation.side == DEVICE else None
        elif operation.op == FREE and operation.side == DEVICE:
            self.free(data, position)

    def free(self, data: Moved, position: int) -> None:
        # A remote parameter owns nothing on the device until a load is assigned to it.
        start = None if isinstance(data, ParameterRef) else self.buffer(data)
        buffer = self.owned.get(data, start)
        if buffer is None or buffer in self.freed:
            self.freed_twice += 1
        else:
            self.freed[buffer] = (data, position)
