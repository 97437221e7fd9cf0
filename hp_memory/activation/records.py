"""What an invocation remembers of one call of an excluded region, so that its replays needn't run the body."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

from mindspore import Tensor

from hp_memory.activation import elision, native, observing
from hp_memory.activation.frames import Frame
from hp_memory.activation.trees import Path, map_tensors, resolve

if TYPE_CHECKING:
    from hp_memory.activation.exclude import Region


class Binding(NamedTuple):
    """Where a replay finds the tensor of a slot, and how it must look."""

    path: Path
    slot: weakref.ref
    layout: tuple


class Passed(NamedTuple):
    """An output that is one of the inputs: a replay returns its own."""

    path: Path


class Leaf(NamedTuple):
    """A place in the output: which of the record's values stands there. One tensor may stand in several places."""

    index: int


class Record:
    """One call of an excluded region in a forward: what it returned, and what a replay has to bring."""

    __slots__ = ("bindings", "region", "rng", "tokens", "tree", "values")

    def __init__(self, region: Region, bindings: list[Binding], tree: Any, values: list) -> None:
        self.region = region
        self.bindings = bindings
        self.tree = tree  # the output with a Leaf for each tensor
        self.values = values  # of the leaves: a tensor, Passed, or elision.StandIn
        self.rng = native.get_rng_state()  # where the body left the generator
        self.tokens = observing.kept_outputs(values, region.name)

    @property
    def leaves(self) -> int:
        return len(self.values)

    def elide(self, read: tuple[bool, ...]) -> None:
        """Drops the output tensors that no replay reads."""
        if self.region.save_output is True or all(read):
            return
        for index, value in enumerate(self.values):
            if not read[index] and isinstance(value, Tensor):
                self.values[index] = elision.StandIn(value)
        self.tokens = observing.kept_outputs(self.values, self.region.name)

    def hand_out(self, frame: Frame, args: tuple, kwargs: dict) -> Any:
        """The output for a replay, in new containers."""

        def given(value: Any) -> Tensor:
            if isinstance(value, elision.StandIn):
                return value.lend(frame, self.region)
            return resolve(value.path, args, kwargs) if isinstance(value, Passed) else value

        values = [given(value) for value in self.values]
        return map_tensors(self.tree, lambda leaf: values[leaf.index], Leaf)


def take_apart(out: Any) -> tuple[Any, list[Tensor]]:
    """An output as (the containers with a Leaf for each tensor, the tensors), each tensor once."""
    leaves: dict[int, Leaf] = {}
    outputs: list[Tensor] = []

    def place(tensor: Tensor) -> Leaf:
        if id(tensor) not in leaves:
            leaves[id(tensor)] = Leaf(len(outputs))
            outputs.append(tensor)
        return leaves[id(tensor)]

    return map_tensors(out, place), outputs


def without_graph(tensor: Tensor) -> Tensor:
    """The values for a record, which must not own the graph that owns its slots."""
    values = native.detached(tensor)
    if tensor._requires_grad:
        values.requires_grad_()
    return values
