"""What an invocation remembers of one call of an excluded region, so that its replays needn't run the body."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from mindspore import Parameter, Tensor, nn

from hp_memory.activation import moving, native, observing, random_state
from hp_memory.activation.distributed import Part, can_be_made_again
from hp_memory.activation.frames import Frame
from hp_memory.activation.shading import StandIn
from hp_memory.activation.trees import Mapping, Path, map_tensors, resolve
from hp_memory.activation.writing import Write
from hp_memory.errors import ReplayError

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

    number: int


class Face(NamedTuple):
    """What Python sees of an output beside its values: a subclass of Tensor, attributes (with a Leaf for a tensor)."""

    cls: type
    attributes: dict


class Record:
    """One call of an excluded region in a forward: what it returned and wrote, and what a replay has to bring."""

    __slots__ = ("bindings", "faces", "notes", "region", "rng", "tokens", "tree", "values", "writes")

    def __init__(self, region: Region, bindings: list[Binding], parts: Parts, values: list) -> None:
        self.region = region
        self.bindings = bindings
        self.tree = parts.tree  # the output with a Leaf for each tensor
        self.faces = parts.faces
        self.values = values  # of the leaves: a tensor, the Part of a distributed one, Moved, Passed, or a StandIn
        self.writes: list[Write] = []
        self.notes = parts.notes  # attributes that the body gave to its inputs
        self.rng = random_state.here()  # where the body left the generator
        self.tokens = observing.kept_outputs(values, region.name)

    @property
    def leaves(self) -> int:
        return len(self.values)

    def drop(self, leaf: int, until: int) -> None:
        """Lets go of an output that no replay needs; see ``marks.Ghost`` for ``until``."""
        value = self.values[leaf]
        if isinstance(value, Tensor) and self.region.save_output is not True:
            self.values[leaf] = StandIn(value, until)
            self.tokens = observing.kept_outputs(self.values, self.region.name)

    def restore(self, leaf: int, output: Tensor) -> None:
        """Keeps an output after all that was dropped in this forward."""
        if type(self.values[leaf]) is StandIn:
            self.values[leaf] = without_graph(output)
            self.tokens = observing.kept_outputs(self.values, self.region.name)

    def move(self, outputs: dict[int, Tensor]) -> None:
        """Sends the outputs that a replay needs to the host, if that is where this region waits.

        Args:
            outputs: by leaf, as the region returned them: another reader may have sent one there already.
        """
        window = self.region.window
        if window is None:
            return
        for leaf, value in enumerate(self.values):
            if isinstance(value, Tensor):
                self.values[leaf] = moving.offered(window, outputs.get(leaf, value), self.region.name) or value
        moving.launch(window, self.values)
        self.tokens = observing.kept_outputs(self.values, self.region.name)

    def hand_out(self, frame: Frame, args: tuple, kwargs: dict) -> Any:
        """The output for a replay, in new containers, after what the body did to its arguments."""
        for write in self.writes:
            write.again(args, kwargs)
        values = [self._given(value, frame, args, kwargs) for value in self.values]

        def leaf(at: Leaf) -> Tensor:
            return values[at.number]

        for index, face in self.faces.items():
            values[index].__class__ = face.cls
            values[index].__dict__.update(map_tensors(face.attributes, leaf, Leaf))
        for path, noted in self.notes:
            resolve(path, args, kwargs).__dict__.update(map_tensors(noted, leaf, Leaf))
        return map_tensors(self.tree, leaf, Leaf)

    def _given(self, value: Any, frame: Frame, args: tuple, kwargs: dict) -> Tensor:
        if type(value) is StandIn:
            assert frame.shade is not None, "only a replay is given stand-ins"
            return value.lend(frame.shade, self.region)
        if isinstance(value, Passed):
            return resolve(value.path, args, kwargs)
        if isinstance(value, (Part, moving.Moved)):
            return value.lend()
        # A new object each time: what one replay puts on it isn't for the next.
        return without_graph(value)


class Parts:
    """An output taken apart: the containers with a Leaf for each tensor, and the tensors, each once.

    Attributes:
        tree: the output's containers.
        notes: ``noted``, what the body put on its inputs, taken apart as well.
        outputs: the tensors by the index of their Leaf.
        faces: of the outputs that are more than a Tensor.
        shared: (object, copy) of those that are handed out as they are: the block may not change them.
    """

    def __init__(self, out: Any, noted: list[tuple[Path, dict]], region: str) -> None:
        self.outputs: list[Tensor] = []
        self.faces: dict[int, Face] = {}
        leaves: dict[int, Leaf] = {}

        def place(tensor: Tensor) -> Any:
            if isinstance(tensor, Parameter):
                return tensor
            if id(tensor) not in leaves:
                leaves[id(tensor)] = Leaf(len(self.outputs))
                self.outputs.append(tensor)
            return leaves[id(tensor)]

        mapping = Mapping(place)
        self.tree = mapping.of(out)
        self.notes = [(path, mapping.of(new)) for path, new in noted]
        for index, tensor in enumerate(self.outputs):  # which attributes may make longer
            if (tensor.__dict__ or type(tensor) is not Tensor) and not can_be_made_again(tensor):
                self.faces[index] = Face(type(tensor), mapping.of(dict(tensor.__dict__)))
        self.shared = mapping.shared
        for value in mapping.closed:
            refuse_hidden(value, region)


def refuse_hidden(value: Any, region: str) -> None:
    """Raises for what can be read once only, and for tensors in places where a replay can't put its own."""
    if isinstance(value, Iterator):
        raise ReplayError(
            f"excluded region {region} returns a {type(value).__name__}, which can be read only once, and a replay "
            "needs it again: return a list"
        )
    if any(isinstance(item, Tensor) and not isinstance(item, Parameter) for item in _referred(value)):
        raise ReplayError(
            f"excluded region {region} returns a {type(value).__name__} with a tensor inside, which can't be kept "
            "without its graph: return the tensor in a tuple, list, dict or plain object"
        )


def _referred(value: Any) -> Iterable[Any]:
    if isinstance(value, (nn.Cell, type, ModuleType)):
        return ()
    if isinstance(value, FunctionType):
        return [cell.cell_contents for cell in value.__closure__ or ()] + list(value.__defaults__ or ())
    if isinstance(value, partial):
        return [*value.args, *value.keywords.values()]
    return gc.get_referents(value)


def without_graph(tensor: Tensor) -> Tensor:
    """The values for a record, which must not own the graph that owns its slots."""
    values = native.detached(tensor)
    if tensor._requires_grad:
        values.requires_grad_()
    return values
