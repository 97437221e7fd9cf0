"""Reads MindSpore's final kernel graph (``actor_set/final_actor_set_kernel_graph_N.ir``) into a :class:`Graph`.

The number in front of a kernel's AID is its position in the execution order; the order of the text is not. Whatever
the reader doesn't know is an error with its line number.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from pathlib import Path

from hp_memory.offload.graph import Graph, Node, Output, Parameter, ParameterRef, Source, TensorType
from hp_memory.offload.graph_json import GraphFormatError
from hp_memory.offload.writes import is_view, written_inputs

RECORD = re.compile(r"%(\d+) = ([\w.:\-]+)\((.*?)\)(?: op control\(([^()]*)\))?\s*$", re.DOTALL)
REFERENCE = re.compile(r"%(\d+)\[(\d+)\]$")
PARAMETER = re.compile(r"%param_(.+)$")
GRAPH_INPUT = re.compile(r"param_(.+)$")
CONSTANT = re.compile(r"(?:\w+\(.*\)|\(.*\)|None|\[.*\])$", re.DOTALL)
DETAIL = re.compile(r"\t# ([\w ]+?) ?: ?(.*)$")
POSITION = re.compile(r"(\d+)_(.+)$")
ITEM = re.compile(r"<([^<>]*)>")
NO_TENSOR = re.compile(r"(Bool|Int\d+|Float\d+|None|Tuple\[(Bool|Int|Float)[\w*, ]*\])$")
TENSOR = re.compile(r"(?:Ref\[)?Tensor\[(\w+)\]\]?$")

BYTES = {
    "Bool": 1, "Int8": 1, "UInt8": 1, "Int16": 2, "UInt16": 2, "Float16": 2, "BFloat16": 2, "Int32": 4, "UInt32": 4,
    "Float32": 4, "Int64": 8, "UInt64": 8, "Float64": 8, "Complex64": 8, "Complex128": 16,
}  # fmt: skip

# A kernel that takes text: it stands in the dump without quotes, so only its references are read.
TAKES_TEXT = ("Print", "StringAssert", "Assert")
ANY_REFERENCE = re.compile(r"%param_[\w.]+|%\d+\[\d+\]")
# Lines of a dump with control flow: blocks of several kernel graphs and the actors between them.
CONTROL_FLOW = re.compile(
    r"(Base|Switch|Gather|Control) Block : |\[.*actors?:\d+\]|%\d+ = (Entrance|Switch|Gather)Actor\("
)
WHY_NOT_CONTROL_FLOW = (
    "the graph has control flow (if, while or for on a tensor): MindSpore makes several kernel graphs of it and plans "
    "each by itself. Decide with Python values, or jit the part without control flow and plan its dump"
)


@dataclass(slots=True)
class Record:
    """One line ``%ID = NAME(ARGUMENTS)`` with its details."""

    line: int
    name: str
    arguments: list[str]
    details: dict[str, str] = field(default_factory=dict)

    @property
    def is_kernel(self) -> bool:
        return ":" in self.name

    @property
    def kernel_name(self) -> str:
        """The name after the position in the AID."""
        match = POSITION.match(self.details["AID"])
        assert match is not None  # checked when positions were collected
        return match[2]

    def items(self, key: str, side: int) -> list[str]:
        """The ``<...>`` items of ``# shape`` or ``# type``; side 0 the inputs, 1 the outputs."""
        sides = self.details.get(key, "").split(" -> " if " -> " in self.details.get(key, "") else "->")
        return ITEM.findall(sides[side]) if side < len(sides) else []


def read_actor_set(path: str | Path) -> Graph:
    """Parse one dump.

    Raises:
        GraphFormatError: naming the file and the line that isn't understood.
    """
    reader = Reader(str(path))
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            reader.feed(number, line.rstrip("\n"))
    return reader.finish()


class Reader:
    """Line by line: a record may run over several lines, its details follow with a tab in front."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.records: dict[str, Record] = {}
        self.last: Record | None = None
        self.pending: list[str] = []
        self.started = 0
        self.parameters: dict[str, Parameter] = {}

    def fail(self, line: int, why: str) -> GraphFormatError:
        return GraphFormatError(f"{self.origin}:{line}: {why}")

    def feed(self, number: int, line: str) -> None:
        if CONTROL_FLOW.match(line):
            raise self.fail(number, WHY_NOT_CONTROL_FLOW)
        if self.pending and line.startswith(("\t#", "%")):
            self.end_record("\n".join(self.pending))  # text with a bracket that nothing closes
        if self.pending:
            self.add_record(line)
        elif line.startswith("%"):
            self.started = number
            self.add_record(line)
        elif line.startswith("\t#"):
            self.add_detail(number, line)
        elif line.strip():
            raise self.fail(number, f"neither a record nor a detail: {line.strip()[:60]!r}")

    def add_record(self, line: str) -> None:
        self.pending.append(line)
        text = "\n".join(self.pending)
        if text.count("(") + text.count("[") > text.count(")") + text.count("]"):
            return  # a constant with its values on the next lines
        self.end_record(text)

    def end_record(self, text: str) -> None:
        self.pending = []
        match = RECORD.match(text)
        if match is None:
            raise self.fail(self.started, f"not a record: {text[:60]!r}")
        identity, name, arguments, _ = match.groups()
        if identity in self.records:
            raise self.fail(self.started, f"%{identity} is defined twice")
        takes_text = name.split(":")[-1].rsplit("-op", 1)[0] in TAKES_TEXT
        listed = ANY_REFERENCE.findall(arguments) if takes_text else split_arguments(arguments)
        self.last = self.records[identity] = Record(self.started, name, listed)

    def add_detail(self, number: int, line: str) -> None:
        match = DETAIL.match(line)
        if match is None or self.last is None:
            raise self.fail(number, f"not a detail: {line.strip()[:60]!r}")
        self.last.details[match[1].strip()] = match[2].strip()

    def finish(self) -> Graph:
        if self.pending:
            raise self.fail(self.started, "the file ends inside this record")
        positions = self.kernel_positions()
        nodes = [self.node(self.records[identity], positions) for identity in positions]
        outputs = tuple(
            source
            for record in self.records.values()
            if record.name.endswith("_OutputActor")
            for source in (self.source(record, k, positions) for k in range(len(record.arguments)))
            if source is not None
        )
        self.check_order(nodes, list(positions))
        return Graph(nodes, self.parameters, outputs, self.origin)

    def kernel_positions(self) -> dict[str, int]:
        """Kernel ids in execution order, each with its position."""
        found: dict[int, str] = {}
        for identity, record in self.records.items():
            if not record.is_kernel:
                continue
            match = POSITION.match(record.details.get("AID", ""))
            if match is None:
                raise self.fail(record.line, "this kernel has no AID with its position")
            if int(match[1]) in found:
                raise self.fail(record.line, f"position {match[1]} is taken twice")
            found[int(match[1])] = identity
        # The graphs of a process are counted on: only the first one begins at 0.
        first = min(found, default=0)
        missing = next((k for k in range(first, first + len(found)) if k not in found), None)
        if missing is not None:
            raise GraphFormatError(f"{self.origin}: no kernel has position {missing}")
        return {found[first + k]: k for k in range(len(found))}

    def node(self, record: Record, positions: dict[str, int]) -> Node:
        op = record.name.split(":", 1)[1].rsplit("-op", 1)[0]
        kinds = record.items("type", 1)
        no_tensor = any(NO_TENSOR.match(kind) for kind in kinds)
        shapes = zip(record.items("shape", 1), kinds, strict=False)
        types = () if no_tensor else tuple(self.tensor_type(record, shape, dtype) for shape, dtype in shapes)
        sources = [self.source(record, k, positions) for k in range(len(record.arguments))]
        # Constants are no inputs of a Graph, so positions of shared buffers count the others only.
        given = [(k, source) for k, source in enumerate(sources) if source is not None]
        kept = [k for k, _ in given]
        shared = written_inputs(op)[: len(types)]
        return Node(
            name=record.kernel_name,
            op=op,
            inputs=tuple(source for _, source in given),
            output_bytes=tuple(nbytes_of(kind) or 0 for kind in types) or (0,),
            ref_outputs=tuple((out, kept.index(k)) for out, k in enumerate(shared) if k in kept),
            types=types,
            unmarked_view=is_view(op) and bool(kept),
            no_tensor=no_tensor,
            unknown_bytes=any(nbytes_of(kind) is None for kind in types),
        )

    def tensor_type(self, record: Record, shape: str, dtype: str) -> TensorType:
        tensor = TENSOR.match(dtype)
        if tensor is None or tensor[1] not in BYTES:
            raise self.fail(record.line, f"output type {dtype!r} is not known")
        numbers = re.fullmatch(r"\(([-\d, ]*)\)", shape)
        if numbers is None:
            raise self.fail(record.line, f"output shape {shape!r} is not known")
        dims = tuple(int(n) for n in numbers[1].split(",") if n.strip())
        return TensorType(tensor[1], dims)

    def source(self, record: Record, index: int, positions: dict[str, int]) -> Source | None:
        """What an argument reads: a kernel's output, a parameter, or None for a constant."""
        argument = record.arguments[index]
        if match := REFERENCE.match(argument):
            return self.output(record, index, match[1], int(match[2]), positions)
        if match := PARAMETER.match(argument):
            return self.parameter(record, index, match[1])
        if CONSTANT.match(argument):
            return None
        raise self.fail(record.line, f"argument {argument[:60]!r} is not understood")

    def output(self, reader: Record, index: int, identity: str, out: int, positions: dict[str, int]) -> Source | None:
        if identity in positions:
            return Output(positions[identity], out)
        record = self.records.get(identity)
        if record is None or out >= len(record.arguments):
            raise self.fail(reader.line, f"%{identity}[{out}] doesn't exist")
        if record.name.endswith("_HostDSActor"):
            given = GRAPH_INPUT.match(record.arguments[out])
            if given is None:
                raise self.fail(reader.line, f"{record.arguments[out]!r} is no input of the graph")
            return self.parameter(reader, index, given[1])
        return self.source(record, out, positions)  # an actor that passes its arguments on

    def parameter(self, record: Record, index: int, name: str) -> ParameterRef:
        if name not in self.parameters:
            shapes, types = record.items("shape", 0), record.items("type", 0)
            if index >= min(len(shapes), len(types)):
                raise self.fail(record.line, f"no shape for parameter {name!r}")
            kind = self.tensor_type(record, shapes[index], types[index])
            nbytes = nbytes_of(kind)
            self.parameters[name] = Parameter(name, nbytes or 0, type=kind, unknown_bytes=nbytes is None)
        return ParameterRef(name)

    def check_order(self, nodes: list[Node], identities: list[str]) -> None:
        for position, node in enumerate(nodes):
            for source in node.inputs:
                if isinstance(source, Output) and not self.readable(source, position, nodes):
                    raise self.fail(self.records[identities[position]].line, f"reads position {source.node} too early")

    @staticmethod
    def readable(source: Output, position: int, nodes: list[Node]) -> bool:
        made = nodes[source.node]
        return source.node < position and (made.no_tensor or source.index < len(made.output_bytes))


def nbytes_of(kind: TensorType) -> int | None:
    """Bytes of a tensor, None where a dimension is known at run time only."""
    return None if any(n < 0 for n in kind.shape) else math.prod(kind.shape) * BYTES[kind.dtype]


def split_arguments(text: str) -> list[str]:
    """Split at commas outside parentheses and brackets."""
    found, depth, start = [], 0, 0
    for k, letter in enumerate(text):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "," and depth == 0:
            found.append(text[start:k].strip())
            start = k + 1
    tail = text[start:].strip()
    return [*found, tail] if tail else found
