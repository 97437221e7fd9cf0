"""What the body of an excluded region saves for backward: recognised as something to make again, or kept.

Most packs end at the first look (the input itself: one user-data read and one type check) or at the second (the graph
nodes that led to it). Only then a storage's address is asked for, which waits for all that was dispatched, and only
where it told something before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mindspore import Parameter, Tensor, nn

from hp_memory.activation import marks, moving, native, observing
from hp_memory.activation.frames import Frame
from hp_memory.activation.geometry import view_of
from hp_memory.activation.recipes import Copy, OfParameter, Slot, View
from hp_memory.activation.trees import Path, call_tensors
from hp_memory.activation.weights import FOLLOWED, SAME_ORDER, axes_of

if TYPE_CHECKING:
    from hp_memory.activation.exclude import Region

_MARK = "hp_memory_input"
_FARTHEST = 8  # graph nodes between a saved tensor and what it is made of


class _Mark:
    """What an input carries while the body runs. Emptied afterwards: aliases made by the body carry it on."""

    __slots__ = ("capture", "slot", "version")

    def __init__(self, capture: Capture, slot: Slot, version: int) -> None:
        self.capture: Capture | None = capture
        self.slot: Slot | None = slot
        self.version = version  # a later one isn't what a replay brings


class Input(NamedTuple):
    """One tensor argument of an excluded call. ``slot`` is None where a replay can't make it again."""

    path: Path
    tensor: Tensor
    slot: Slot | None
    version: int
    node: tuple[int, int] | None
    storage: int | None
    attributes: dict | None


@dataclass(frozen=True)
class Finding:
    """What became of one tensor that a region saves for backward; ``nbytes`` is 0 where nothing is kept."""

    region: str
    what: str
    how: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int


class Capture:
    """The pack hook of one run of a body. MindSpore keeps it with every saved tensor: ``close`` empties it."""

    def __init__(self, frame: Frame, region: Region, args: tuple, kwargs: dict) -> None:
        self.frame = frame
        self.region = region
        self.remakes = region.remake_inputs and frame.invocation is not None
        self.moved: list[moving.Moved] = []
        self.findings: list[Finding] | None = [] if frame.watch is not None else None
        self.marks: list[_Mark] = []
        self.foreign: set[tuple] = set()
        self.packs = 0
        self.inputs = self._mark(args, kwargs)
        self.parameters = region.parameters()
        self.others: dict | None = None  # of parameters that no earlier call saved, by node
        self.touched: set[int] = set()  # storages that an operation was seen to write
        self.nodes: dict | None = None
        self.storages: dict | None = None

    def _mark(self, args: tuple, kwargs: dict) -> dict[int, Input]:
        """Puts a slot on every input that a replay of this block makes again."""
        inputs: dict[int, Input] = {}
        for path, tensor in call_tensors(args, kwargs):
            if id(tensor) in inputs or isinstance(tensor, Parameter):
                continue
            slot = None
            # A replay doesn't run the region that made this one: it has to be kept here. So its record needn't be.
            if self.remakes and marks.produced(tensor, self.frame.call.token) is None:
                slot = Slot(self.frame.call, 0)
                mark = _Mark(self, slot, tensor._version)
                self.marks.append(mark)
                tensor._set_user_data(_MARK, mark)
            asked = self.frame.watch is not None or path in self.region.blind
            storage = tensor.untyped_storage().data_ptr() if asked else None
            noted = dict(tensor.__dict__) if tensor.__dict__ else None
            inputs[id(tensor)] = Input(path, tensor, slot, tensor._version, node_of(tensor), storage, noted)
        return inputs

    def written(self, target: Tensor) -> None:
        """An operation of the body is about to write ``target`` in place."""
        self.touched.add(target.untyped_storage().data_ptr() or -1)

    def close(self) -> None:
        """Takes the marks off the inputs and lets go of them."""
        for item in self.inputs.values():
            if item.slot is not None:
                item.tensor._set_user_data(_MARK, None)
        for mark in self.marks:
            mark.capture = mark.slot = None
        self.storages = self.nodes = self.others = None
        self.inputs, self.parameters, self.moved = {}, [], []
        del self.frame

    def settle(self) -> None:
        """The body ended well: what it was seen to save is what to look for next time, and what moves starts to."""
        moving.launch(self.region.window, self.moved)
        self.region.settle_parameters()
        self.region.foreign |= self.foreign
        if self.findings is not None:
            self.region.findings = self.findings

    def pack(self, tensor: Tensor) -> Any:
        mark = tensor._get_user_data(_MARK)
        if type(mark) is _Mark and mark.capture is self and tensor._version == mark.version:
            slot = mark.slot
            assert slot is not None, "emptied together with `capture`"
            slot.uses += 1
            return self._note(slot, tensor, "made again by the replay")
        recipe = self._of_node(tensor) or self._of_storage(tensor)
        if recipe is not None:
            return self._note(recipe, tensor, _HOW[type(recipe)])
        return self._keep(tensor)

    def _of_storage(self, tensor: Tensor) -> Any:
        """A view of an input, or a parameter, told by the address.

        A place of the body whose tensor lay in no known storage once isn't asked again: what it saves is kept.
        """
        remade = tuple(item.slot is not None for item in self.inputs.values())
        place = (self.packs, tensor._grad_node.name() if tensor._grad_node is not None else None, remade)
        self.packs += 1
        if place in self.region.foreign:
            return None
        if self.storages is None:
            self.storages = self._by_storage()
        known = self.storages.get(tensor.untyped_storage().data_ptr())
        if known is None:
            self.foreign.add(place)
            return None
        if type(known) is not list:
            cell, name = known
            self.region.uses_parameter(cell, name)
            parameter = cell._params[name]
            if tensor.shape == parameter.shape and tensor.stride() == parameter.stride():
                return OfParameter(cell, name, tensor)
            geometry = view_of(tensor, parameter)
            return View(OfParameter(cell, name, parameter), geometry) if geometry is not None else None
        return self._view(tensor, known)

    @staticmethod
    def _view(tensor: Tensor, inputs: list[Input]) -> View | None:
        """``inputs`` share the storage of ``tensor``: it is a view of one only if it lies within that one."""
        for item in inputs:
            geometry = view_of(tensor, item.tensor) if tensor._version == item.version else None
            if geometry is not None and item.slot is not None:
                item.slot.uses += 1
                return View(item.slot, geometry)
        return None

    def _of_node(self, tensor: Tensor) -> Any:
        """A parameter, or a copy of one or of an input, identified by the graph nodes that led to it."""
        names, made_of = self._way_back(tensor)
        if made_of is None:
            return None
        if type(made_of) is not Input:
            cell, name = made_of
            axes = axes_of(tensor, names, cell._params[name].shape)
            if axes is None:
                return None
            self.region.uses_parameter(cell, name)
            return OfParameter(cell, name, tensor, axes)
        slot, same = made_of.slot, SAME_ORDER.issuperset(names) and made_of.tensor.size == tensor.size
        if slot is None or not same or made_of.tensor._version != made_of.version:
            return None
        slot.uses += 1
        return Copy(slot, tuple(tensor.shape))

    def _way_back(self, tensor: Tensor) -> tuple[list[str], Any]:
        """The nodes from a tensor to the parameter or input that it was made of, and that; None if it is neither."""
        names: list[str] = []
        node, output = tensor._grad_node, tensor._output_index
        while node is not None and len(names) <= _FARTHEST:
            key, parents = (node._unique_id(), output), node.next_functions
            made_of = self._by_node().get(key)
            if made_of is None and not parents:
                made_of = self._of_unused_parameter(key)
            if made_of is not None:
                return names, made_of
            name = node.name()
            if name not in FOLLOWED or not parents:
                break
            names.append(name)
            node, output = parents[0]
        return names, None

    def _by_node(self) -> dict:
        if self.nodes is None:
            self.nodes = _nodes_of(self.parameters)
            items = [item for item in self.inputs.values() if item.slot is not None]
            self.nodes |= {node: item for item in items if (node := node_of(item.tensor)) is not None}
        return self.nodes

    def _of_unused_parameter(self, leaf: tuple[int, int]) -> tuple[nn.Cell, str] | None:
        """A parameter that no earlier call saved (another expert's, in a region that serves several)."""
        if self.others is None:
            self.others = _nodes_of(parameters_of(self.region.owner))
        return self.others.get(leaf)

    def _by_storage(self) -> dict:
        """Addresses are null on the meta device, where nothing may be recognised by them."""
        inputs = [item for item in self.inputs.values() if item.slot is not None]
        same = [item for item in inputs if node_of(item.tensor) == item.node and item.tensor._version == item.version]
        known: dict = {}
        for item in same:
            known.setdefault(item.tensor.untyped_storage().data_ptr(), []).append(item)
        known.pop(0, None)
        for cell, name in self.parameters:
            parameter = cell._params[name]
            known[parameter.untyped_storage().data_ptr() or -id(parameter)] = (cell, name)
        return known

    def _note(self, recipe: Any, tensor: Tensor, how: str) -> Any:
        self._find(tensor, how, 0)
        return recipe

    def _keep(self, tensor: Tensor) -> Any:
        self.frame.guarded.append((tensor, tensor._version, self.region, "a tensor saved by the body"))
        moved = moving.offered(self.region.window, tensor, self.region.name)
        if moved is not None:
            self.moved.append(moved)
            return self._note(moved, tensor, "moves to the host")
        observation = observing.active
        if observation is None and self.findings is None:
            return native.detached(tensor)
        reason = self._reason(tensor)
        self._find(tensor, f"kept: {reason}", tensor.untyped_storage().nbytes())
        if observation is None:
            return native.detached(tensor)
        return observing.Kept(native.detached(tensor), observation.keep(tensor, self.region.name, reason))

    def _reason(self, tensor: Tensor) -> str:
        storage = tensor.untyped_storage().data_ptr()
        inputs = (item.tensor.untyped_storage().data_ptr() for item in self.inputs.values())
        if not self.remakes and storage in inputs:
            return "input not rebuildable"
        node = tensor._grad_node
        return "backend copied it" if node is not None and node.name() == "Contiguous" else "saved for backward"

    def _find(self, tensor: Tensor, how: str, nbytes: int) -> None:
        if self.findings is None:
            return
        number = f"saved tensor {len(self.findings)}"
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).lower()
        self.findings.append(Finding(self.region.name, number, how, shape, dtype, nbytes))


_HOW = {
    View: "made again as a view of an input",
    Copy: "made again as a copy of an input",
    OfParameter: "read from the parameter",
}


def node_of(tensor: Tensor) -> tuple[int, int] | None:
    """The graph node and output that made ``tensor``; a write through an index gives a tensor another one."""
    node = tensor._grad_node
    return (node._unique_id(), tensor._output_index) if node is not None else None


def owner_of(target: Any) -> nn.Cell | None:
    """The Cell whose parameters a body uses: the Cell itself, or the one a bound method belongs to."""
    owner = getattr(target, "__self__", target)
    return owner if isinstance(owner, nn.Cell) else None


def parameters_of(owner: nn.Cell | None) -> list[tuple[nn.Cell, str]]:
    """(cell, name) of every parameter of ``owner``: where to find it again, also after it was resharded."""
    if owner is None:
        return []
    cells = (cell for _, cell in owner.cells_and_names())
    return [(cell, name) for cell in cells for name, found in cell._params.items() if found is not None]


def _nodes_of(parameters: list[tuple[nn.Cell, str]]) -> dict:
    found = ((node_of(cell._params[name]), (cell, name)) for cell, name in parameters)
    return {node: what for node, what in found if node is not None}
