"""The graph an offload planner reads: kernels in execution order, parameters, graph outputs. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

CONDITION_SWITCH = "ConditionSwitch"


class Output(NamedTuple):
    """Output ``index`` of the kernel at position ``node`` of the execution order."""

    node: int
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which an Output has no use for


class ParameterRef(NamedTuple):
    """A graph parameter as an input. ``load``: it is read through a Load node, so the kernel can't write it."""

    name: str
    load: bool = False


Source = Output | ParameterRef


class TensorType(NamedTuple):
    """Element type and shape as the compiler prints them, e.g. ``Float32`` and ``(32, 64)``."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(slots=True)
class Node:
    """One kernel.

    Args:
        output_bytes: bytes of each output; two or more outputs make the kernel's result a tuple.
        view: the output is a view of input 0.
        inplace: the kernel writes into its first input.
        ref_outputs: pairs (output index, index of the input whose buffer it shares).
        enable_offload, prefetch_distance, release_distance: attributes of this node, None where not set.
        types: type of each output, empty where only bytes are known.
        device_bytes: bytes of each output as the device's kernel asks for them, where a dump or a backend says so.
        workspace_bytes: bytes the kernel needs while it runs.
        unmarked_view: every output is memory of input 0, but MindSpore's optimizer isn't told so and plans the kernel
            as an ordinary one.
        no_tensor: the output is a number or a tuple of numbers, which is never moved.
        unknown_bytes: an output's shape is known at run time only; its bytes are 0 here.
    """

    name: str
    op: str
    inputs: tuple[Source, ...]
    output_bytes: tuple[int, ...]
    view: bool = False
    inplace: bool = False
    ref_outputs: tuple[tuple[int, int], ...] = ()
    enable_offload: bool | None = None
    prefetch_distance: int | None = None
    release_distance: int | None = None
    types: tuple[TensorType, ...] = ()
    device_bytes: tuple[int, ...] | None = None
    workspace_bytes: int = 0
    unmarked_view: bool = False
    no_tensor: bool = False
    unknown_bytes: bool = False

    @property
    def is_tuple(self) -> bool:
        return len(self.output_bytes) > 1


@dataclass(slots=True)
class Parameter:
    """A weight or graph input. ``remote``: it lives on the host and is loaded for each use."""

    name: str
    nbytes: int
    remote: bool = False
    type: TensorType | None = None
    unknown_bytes: bool = False


@dataclass(slots=True)
class Graph:
    """Kernels in execution order; a node's position in ``nodes`` is its index everywhere in this package."""

    nodes: list[Node]
    parameters: dict[str, Parameter]
    outputs: tuple[Source, ...]
    origin: str = field(default="", compare=False)

    def label(self, source: Source) -> str:
        """A name for people: the kernel's name, with ``[k]`` for an output of a tuple."""
        if isinstance(source, ParameterRef):
            return source.name
        node = self.nodes[source.node]
        return f"{node.name}[{source.index}]" if node.is_tuple else node.name

    def unknown_bytes(self) -> str | None:
        """The first parameter or kernel whose bytes are known at run time only."""
        items: list[Parameter | Node] = [*self.parameters.values(), *self.nodes]
        return next((item.name for item in items if item.unknown_bytes), None)

    def nbytes(self, source: Source) -> int:
        if isinstance(source, ParameterRef):
            return self.parameters[source.name].nbytes
        return self.nodes[source.node].output_bytes[source.index]
