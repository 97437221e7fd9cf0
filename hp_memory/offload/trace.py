"""Compares a plan with the trace that MindSpore's optimizer prints (INFO log, submodule HYPER_OFFLOAD).

Kernels and data are matched by ``OffloadId``, the hash of a node's full name, so names of the log's own graph don't
matter. Operations of different tensors inside one slot have no order; those of one tensor have.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hp_memory.errors import HPMemoryError
from hp_memory.offload.ids import std_hash
from hp_memory.offload.operations import (
    ASSIGN,
    D2H,
    DEVICE,
    FREE,
    H2D,
    HOST,
    PRE,
    RECV,
    SEND,
    WRITE_BACK,
    Operation,
)
from hp_memory.offload.optimizer import HyperOffloadPlan

START, END = "HyperOffloadOperations Trace Start", "HyperOffloadOperations Trace End"
ORIGIN = re.compile(r"\[(\d+)\] \[Origin\] (.*)$")
ADDED = re.compile(r"\[Added\] (.*)$")
PRE_SECTION = "[Pre-Operations]:"
PRIMITIVE = re.compile(r"\[0\]: ValueNode<\w+> (?:PrimFunc_)?(\w+)")
NUMBER = re.compile(r"(EventId|StreamId|OffloadId): (\d+)")
SIDE = re.compile(r"ValueNode<UInt64Imm> (\d+)")
OPS = {
    "CopyToHost": D2H,
    "CopyToHostExt": WRITE_BACK,
    "CopyToDevice": H2D,
    "Send": SEND,
    "Receive": RECV,
    "Recv": RECV,
    "FreeData": FREE,
    "AssignData": ASSIGN,
}


class TraceFormatError(HPMemoryError):
    """A log without a trace, or with a line in it that isn't understood."""


@dataclass(frozen=True, slots=True)
class TracedOperation:
    """``data`` is the OffloadId of the tensor."""

    op: str
    data: int
    stream: int | None = None
    side: str | None = None

    def words(self) -> str:
        where = self.side if self.side else "" if self.stream is None else f"stream {self.stream}"
        return f"{self.op} {where}".strip()


@dataclass(slots=True)
class Trace:
    """Ids of the kernels in order, and the operations after each; slot -1 holds those before the first."""

    kernels: list[int] = field(default_factory=list)
    slots: dict[int, list[TracedOperation]] = field(default_factory=dict)

    def add(self, slot: int, operation: TracedOperation) -> None:
        self.slots.setdefault(slot, []).append(operation)


def parse_traces(lines: Iterable[str], origin: str = "log") -> list[Trace]:
    """Every trace in a log, one for each graph that was planned.

    Raises:
        TraceFormatError: no trace at all, an unfinished one, or a line in one that isn't understood.
    """
    traces: list[Trace] = []
    trace: Trace | None = None
    for number, line in enumerate(lines, 1):
        if START in line:
            trace = Trace()
        elif END in line and trace is not None:
            traces.append(trace)
            trace = None
        elif trace is not None:
            read_line(trace, line.rstrip(), f"{origin}:{number}")
    if trace is not None:
        raise TraceFormatError(f"{origin}: the trace doesn't end")
    if not traces:
        raise TraceFormatError(f"{origin}: no {START!r}: set GLOG_v=1 and MS_SUBMODULE_LOG_v for HYPER_OFFLOAD")
    return traces


def read_line(trace: Trace, line: str, where: str) -> None:
    if match := ORIGIN.search(line):
        if int(match[1]) != len(trace.kernels):
            raise TraceFormatError(f"{where}: kernel {match[1]} where {len(trace.kernels)} was due")
        trace.kernels.append(numbers(match[2]).get("OffloadId", 0))
    elif match := ADDED.search(line):
        trace.add(len(trace.kernels) - 1, traced_operation(match[1], where))
    elif PRE_SECTION not in line and "HYPER_OFFLOAD" in line:
        raise TraceFormatError(f"{where}: not understood: {line[-80:]!r}")


def traced_operation(text: str, where: str) -> TracedOperation:
    primitive = PRIMITIVE.search(text)
    found = numbers(text)
    if primitive is None or primitive[1] not in OPS or "OffloadId" not in found:
        raise TraceFormatError(f"{where}: not an operation: {text[:80]!r}")
    op = OPS[primitive[1]]
    flags = SIDE.findall(text) if op in (FREE, ASSIGN) else []
    side = (DEVICE, HOST)[int(flags[-1])] if flags else None
    return TracedOperation(op, found["OffloadId"], found.get("StreamId"), side)


def numbers(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in NUMBER.findall(text)}


def planned_trace(plan: HyperOffloadPlan) -> Trace:
    """The plan in the trace's terms."""
    trace = Trace([std_hash(node.name) for node in plan.graph.nodes])
    for slot in range(PRE, len(plan.graph.nodes)):
        for operation in plan.operations.after(slot):
            trace.add(slot, planned_operation(plan, operation))
    return trace


def planned_operation(plan: HyperOffloadPlan, operation: Operation) -> TracedOperation:
    name = plan.label(operation.data).split("[")[0]
    return TracedOperation(operation.op, std_hash(name), operation.stream, operation.side)


def differences(plan: HyperOffloadPlan, trace: Trace) -> list[str]:
    """What the run did otherwise than the plan, in words; empty where they agree."""
    expected = planned_trace(plan)
    names = {std_hash(node.name): node.name for node in plan.graph.nodes}
    names |= {std_hash(name): name for name in plan.graph.parameters}
    if expected.kernels != trace.kernels:
        return kernel_differences(expected.kernels, trace.kernels, names)
    found = []
    for slot in sorted(expected.slots.keys() | trace.slots.keys()):
        where = "before the first kernel" if slot == PRE else f"after kernel {slot} ({plan.graph.nodes[slot].name})"
        ours, real = by_datum(expected.slots.get(slot, [])), by_datum(trace.slots.get(slot, []))
        for data in sorted(ours.keys() | real.keys(), key=lambda d: names.get(d, str(d))):
            if ours.get(data) != real.get(data):
                found.append(f"{where}, {names.get(data, data)}: {words(ours, data)} planned, {words(real, data)} run")
    return found


def kernel_differences(planned: list[int], run: list[int], names: dict[int, str]) -> list[str]:
    if len(planned) != len(run):
        missing, extra = Counter(planned) - Counter(run), Counter(run) - Counter(planned)
        text = f"{len(planned)} kernels planned, {len(run)} run"
        lost = ", ".join(names.get(k, str(k)) for k in list(missing)[:3])
        return [f"{text}; not run: {lost or 'none'}; {sum(extra.values())} unknown ones run: another graph?"]
    first = next(k for k, (a, b) in enumerate(zip(planned, run, strict=True)) if a != b)
    return [f"kernel {first} is {names[planned[first]]} in the plan, {names.get(run[first], run[first])} in the run"]


def by_datum(operations: list[TracedOperation]) -> dict[int, list[TracedOperation]]:
    found: dict[int, list[TracedOperation]] = {}
    for operation in operations:
        found.setdefault(operation.data, []).append(operation)
    return found


def words(operations: dict[int, list[TracedOperation]], data: int) -> str:
    return ", ".join(operation.words() for operation in operations.get(data, [])) or "nothing"
