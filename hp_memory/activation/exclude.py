"""Excluded regions: the body runs in the forward only, a replay hands out what it returned.

While the body runs, its saved tensors go through the region's own hook. An input that the replay can make again is
packed as an empty slot (directly, or as a strided view of it), everything else is kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from mindspore import Parameter, Tensor

from hp_memory.activation import elision, frames, native, observing
from hp_memory.activation.slots import Slot, View, unpack
from hp_memory.activation.trees import Path, call_tensors, map_tensors, resolve, spell, tensors
from hp_memory.errors import ReplayError

_SLOT = "hp_memory_slot"


class Region:
    """An excluded region: its body and what was asked of it. The records of every invocation point here."""

    __slots__ = ("body", "name", "remake_inputs", "save_output")

    def __init__(self, body: Callable, name: str, save_output: bool | None, remake_inputs: bool) -> None:
        self.body = body
        self.name = name
        self.save_output = save_output
        self.remake_inputs = remake_inputs


class _Input(NamedTuple):
    path: Path
    tensor: Tensor
    slot: Slot | None
    version: int
    address: int


class _Binding(NamedTuple):
    """Where a replay finds the tensor of a slot, and how it must look."""

    path: Path
    slot: weakref.ref
    layout: tuple


class _Passed(NamedTuple):
    """An output that is one of the inputs: a replay returns its own."""

    path: Path


class Record:
    """One call of an excluded region in a forward."""

    __slots__ = ("bindings", "elided", "leaves", "output", "region", "rng", "single", "tokens")

    def __init__(self, region: Region, output: Any, leaves: int, bindings: list[_Binding]) -> None:
        self.region = region
        self.output = output
        self.leaves = leaves
        self.bindings = bindings
        self.rng = native.get_rng_state()
        self.elided = False
        self.single = isinstance(output, Tensor)
        self.tokens = observing.kept_outputs(output, region.name)

    def elide(self, read: tuple[bool, ...]) -> None:
        """Drops the output leaves that no replay reads."""
        if self.region.save_output is True:
            return
        keep = iter(read)
        self.output = map_tensors(self.output, lambda leaf: self._thin(leaf, next(keep)), (Tensor, _Passed))
        self.tokens = observing.kept_outputs(self.output, self.region.name)

    def _thin(self, leaf: Any, read: bool) -> Any:
        if read or isinstance(leaf, _Passed):
            return leaf
        self.elided = True
        return elision.stand_in(leaf)

    def hand_out(self, frame: frames.Frame, args: tuple, kwargs: dict) -> Any:
        """The output for a replay, in new containers."""
        if self.single and not self.elided:
            return self.output

        def give(leaf: Any) -> Tensor:
            if isinstance(leaf, _Passed):
                return resolve(leaf.path, args, kwargs)
            return elision.lend(frame, leaf) if self.elided and leaf.data_ptr() == 0 and leaf.size else leaf

        return map_tensors(self.output, give, (Tensor, _Passed))


def run(region: Region, args: tuple, kwargs: dict) -> Any:
    """Calls the region as this thread's frame asks: the body outside checkpoints and in a forward, else its record."""
    frame = frames.current()
    if frame is None:
        return observing.plain(region.name, region.body, args, kwargs)
    if frame.replaying:
        return _replayed(frame, region, args, kwargs)
    if observing.active is not None:
        observing.active.called(region.name)
    return _saved(frame, region, args, kwargs)


def _saved(frame: frames.Frame, region: Region, args: tuple, kwargs: dict) -> Any:
    if frame.inside is not None:
        raise ReplayError(
            f"excluded region {region.name} is called inside excluded region {frame.inside.name}: "
            "exclude only the outer one, its body is never replayed anyway"
        )
    inputs = _mark(frame, region, args, kwargs)
    storages = _storages(inputs)
    frame.inside = region
    try:
        with native.hooks(_pack_hook(frame, region, storages), unpack):
            out = region.body(*args, **kwargs)
    finally:
        frame.inside = None
        # MindSpore keeps the hook with every saved tensor, and the hook would keep the inputs.
        storages.clear()
        for item in inputs.values():
            item.tensor._set_user_data(_SLOT, None)
    _record(frame, region, inputs, out)
    return out


def _mark(frame: frames.Frame, region: Region, args: tuple, kwargs: dict) -> dict[int, _Input]:
    """Puts a slot on every input that a replay of this block can make again; the rest gets none."""
    inputs: dict[int, _Input] = {}
    invocation = frame.invocation
    for path, tensor in call_tensors(args, kwargs):
        if id(tensor) in inputs or isinstance(tensor, Parameter):
            continue
        slot = None
        # A replay doesn't run the region that made this one, so it has to be kept; that frees its record from it.
        if region.remake_inputs and elision.produced(tensor, invocation.token) is None:
            slot = Slot(invocation, 0)
            tensor._set_user_data(_SLOT, slot)
        inputs[id(tensor)] = _Input(path, tensor, slot, tensor._version, tensor.data_ptr())
    return inputs


def _storages(inputs: dict[int, _Input]) -> dict[int, tuple]:
    """Storage address -> how to recognise a view of an input: its slot, dtype and place in the storage."""
    found = {}
    for item in inputs.values():
        if item.slot is not None and item.address:
            tensor = item.tensor
            found[tensor.untyped_storage().data_ptr()] = (item.slot, tensor.dtype, tensor.storage_offset())
    return found


def _pack_hook(frame: frames.Frame, region: Region, storages: dict[int, tuple]) -> Callable:
    invocation, guarded = frame.invocation, frame.guarded

    def pack(tensor: Tensor) -> Any:
        slot = tensor._get_user_data(_SLOT)
        if type(slot) is Slot and slot.invocation is invocation:
            slot.uses += 1
            return slot
        base = storages.get(tensor.untyped_storage().data_ptr()) if storages else None
        if base is not None and base[1] == tensor.dtype:
            slot, _, offset = base
            slot.uses += 1
            return View(slot, tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset() - offset)
        guarded.append((tensor, tensor._version, region, "a tensor saved by the body"))
        return _kept(tensor, region)

    return pack


def _kept(tensor: Tensor, region: Region) -> Any:
    observation = observing.active
    if observation is None:
        return tensor.data
    return observing.Kept(tensor.data, observation.keep(tensor, region.name, "saved for backward"))


def _record(frame: frames.Frame, region: Region, inputs: dict[int, _Input], out: Any) -> None:
    invocation = frame.invocation
    bindings = [_bind(item, region) for item in inputs.values() if item.slot is not None and item.slot.uses]
    leaves = tensors(out)
    index = len(invocation.records)
    plan = invocation.boundary.plan
    read = plan.needed(index, region, len(leaves)) if plan else None
    for leaf, tensor in enumerate(leaves):
        if id(tensor) in inputs:
            continue
        elision.mark(tensor, invocation.token, index, leaf)
        if read is None or read[leaf]:
            frame.guarded.append((tensor, tensor._version, region, "an output"))

    def template(tensor: Tensor) -> Any:
        passed = inputs.get(id(tensor))
        return _Passed(passed.path) if passed else _detached(tensor)

    record = Record(region, map_tensors(out, template), len(leaves), bindings)
    invocation.records.append(record)
    if read is not None:
        record.elide(read)


def _bind(item: _Input, region: Region) -> _Binding:
    tensor = item.tensor
    if tensor._version != item.version or tensor.data_ptr() != item.address:
        raise ReplayError(
            f"excluded region {region.name} writes its input {spell(item.path)} in place and saves it: a replay only "
            "has the value from before; clone the input in the region, or don't exclude it"
        )
    return _Binding(item.path, weakref.ref(item.slot), _layout(tensor))


def _layout(tensor: Tensor) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype


def _detached(tensor: Tensor) -> Tensor:
    """The values without the graph: the record must not own the graph that owns its slots."""
    values = tensor.data
    if tensor._requires_grad:
        values.requires_grad_()
    return values


def _replayed(frame: frames.Frame, region: Region, args: tuple, kwargs: dict) -> Any:
    record = _next_record(frame, region)
    for binding in record.bindings:
        slot = binding.slot()
        if slot is not None:
            tensor = _find(binding, region, args, kwargs)
            slot.fill(tensor.data)
            frame.bound.append((tensor, tensor._version, region))
    # The body would have drawn from the generator here.
    native.set_rng_state(record.rng)
    return record.hand_out(frame, args, kwargs)


def _next_record(frame: frames.Frame, region: Region) -> Record:
    records, index = frame.invocation.records, frame.cursor
    if index >= len(records) or records[index].region is not region:
        expected = records[index].region.name if index < len(records) else "none"
        raise ReplayError(
            f"the replay of {frame.invocation.boundary.name} calls excluded region {region.name} where its forward "
            f"called {expected} (call {index}): control flow changed between forward and replay"
        )
    frame.cursor = index + 1
    return records[index]


def _find(binding: _Binding, region: Region, args: tuple, kwargs: dict) -> Tensor:
    try:
        tensor = resolve(binding.path, args, kwargs)
    except (LookupError, TypeError):
        tensor = None
    if not isinstance(tensor, Tensor) or _layout(tensor) != binding.layout:
        raise ReplayError(
            f"the replay did not reproduce input {spell(binding.path)} of excluded region {region.name}: "
            f"expected a tensor with (shape, strides, dtype) {binding.layout}"
        )
    return tensor
