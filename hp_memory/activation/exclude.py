"""Excluded regions: the body runs in the forward only, a replay hands out what it returned."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn

from hp_memory.activation import elision, frames, native, observing
from hp_memory.activation.capture import Capture, Finding, Input, parameters_of
from hp_memory.activation.recipes import unpack
from hp_memory.activation.records import Binding, Passed, Record, take_apart, without_graph
from hp_memory.activation.trees import is_distributed, resolve, spell
from hp_memory.errors import ReplayError


class Region:
    """An excluded region: its body and what was asked of it. The records of every invocation point here."""

    def __init__(
        self, body: Callable, owner: nn.Cell | None, name: str, save_output: bool | None, remake_inputs: bool
    ) -> None:
        self.body = body
        self.owner = owner
        self.name = name
        self.save_output = save_output
        self.remake_inputs = remake_inputs
        self.findings: list[Finding] = []
        self._used: dict[tuple[int, str], tuple[nn.Cell, str]] | None = None

    def run(self, args: tuple, kwargs: dict) -> Any:
        """As this thread's frame asks: the body outside checkpoints and in a forward, the record in a replay."""
        frame = frames.current()
        if frame is None:
            return observing.plain(self.name, self.body, args, kwargs)
        if frame.replaying:
            return _replayed(frame, self, args, kwargs)
        if observing.active is not None:
            observing.active.called(self.name)
        return _saved(frame, self, args, kwargs)

    def parameters(self) -> list[tuple[nn.Cell, str]]:
        """Parameters the body may save: all of its owner's at first, later those it was seen to save."""
        return parameters_of(self.owner) if self._used is None else list(self._used.values())

    def uses_parameter(self, cell: nn.Cell, name: str) -> None:
        """Called when the body saves that parameter, or a cast of it."""
        if self._used is None:
            self._used = {}
        self._used[id(cell), name] = (cell, name)

    def settle_parameters(self) -> None:
        if self._used is None:
            self._used = {}


def _saved(frame: frames.Frame, region: Region, args: tuple, kwargs: dict) -> Any:
    if frame.inside is not None:
        raise ReplayError(
            f"excluded region {region.name} is called inside excluded region {frame.inside.name}: "
            "exclude only the outer one, its body is never replayed anyway"
        )
    capture = Capture(frame, region, args, kwargs)
    frame.inside = region
    try:
        with native.hooks(capture.pack, unpack):
            out = region.body(*args, **kwargs)
        _record(frame, region, capture, out)
    finally:
        frame.inside = None
        capture.close()
    return out


def _record(frame: frames.Frame, region: Region, capture: Capture, out: Any) -> None:
    invocation, inputs = frame.invocation, capture.inputs
    tree, outputs = take_apart(out)
    _refuse_distributed(outputs, region)
    bindings = [_bind(item, region) for item in inputs.values() if item.slot is not None and item.slot.uses]
    values = [Passed(inputs[id(t)].path) if id(t) in inputs else without_graph(t) for t in outputs]
    record, index = Record(region, bindings, tree, values), len(invocation.records)
    invocation.records.append(record)
    capture.settle()
    read = invocation.boundary.plan.needed(index, region, len(values)) if invocation.boundary.plan else None
    if read is not None:
        record.elide(read)
    for leaf, tensor in enumerate(outputs):
        if id(tensor) not in inputs:
            elision.mark(frame, tensor, index, leaf)
            if not isinstance(values[leaf], elision.StandIn):
                frame.guarded.append((tensor, tensor._version, region, "an output"))


def _refuse_distributed(outputs: list[Tensor], region: Region) -> None:
    if any(is_distributed(tensor) for tensor in outputs):
        raise ReplayError(
            f"excluded region {region.name} returns a distributed tensor, which can't be kept for a replay; "
            "return its to_local() and make the distributed tensor outside the region"
        )


def _bind(item: Input, region: Region) -> Binding:
    tensor = item.tensor
    if tensor._version != item.version or tensor.untyped_storage().data_ptr() != item.storage:
        raise ReplayError(
            f"excluded region {region.name} writes its input {spell(item.path)} in place and saves it: a replay only "
            "has the value from before; clone the input in the region, or don't exclude it"
        )
    return Binding(item.path, weakref.ref(item.slot), _layout(tensor))


def _layout(tensor: Tensor) -> tuple:
    return tensor.shape, tensor.stride(), tensor.dtype


def _replayed(frame: frames.Frame, region: Region, args: tuple, kwargs: dict) -> Any:
    record = _next_record(frame, region)
    for binding in record.bindings:
        slot = binding.slot()
        if slot is not None:
            tensor = _find(binding, region, args, kwargs)
            slot.fill(native.detached(tensor))
            frame.bound.append((tensor, tensor._version, region))
    # The body would have drawn from the generator here.
    native.set_rng_state(record.rng)
    return record.hand_out(frame, args, kwargs)


def _next_record(frame: frames.Frame, region: Region) -> Record:
    records, index = frame.invocation.records, frame.cursor
    if index >= len(records) or records[index].region is not region:
        expected = records[index].region.name if index < len(records) else "none"
        why = "the wrapper is made anew in each run" if expected == region.name else "control flow changed"
        raise ReplayError(
            f"the replay of {frame.invocation.boundary.name} calls excluded region {region.name} where its forward "
            f"called {expected} (call {index}): {why} between forward and replay"
        )
    frame.cursor = index + 1
    return records[index]


def _find(binding: Binding, region: Region, args: tuple, kwargs: dict) -> Tensor:
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
