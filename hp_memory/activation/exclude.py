"""Excluded regions: the body runs in the forward only, a replay hands out what it returned."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn

from hp_memory.activation import frames, marks, native, observing, random_state, writing
from hp_memory.activation.capture import Capture, Finding, Input, node_of, parameters_of
from hp_memory.activation.distributed import Part, can_be_made_again, is_distributed
from hp_memory.activation.recipes import unpack
from hp_memory.activation.records import Binding, Parts, Passed, Record, without_graph
from hp_memory.activation.trees import Path, resolve, spell
from hp_memory.activation.writing import Given
from hp_memory.errors import ReplayError
from hp_memory.host.window import Window


class Region:
    """An excluded region: its body and what was asked of it. The records of every invocation point here."""

    def __init__(
        self,
        body: Callable,
        owner: nn.Cell | None,
        name: str,
        save_output: bool | None,
        remake_inputs: bool,
        window: Window | None = None,
    ) -> None:
        self.body = body
        self.owner = owner
        self.name = name
        self.save_output = save_output
        self.remake_inputs = remake_inputs
        self.window = window  # where what it saves waits for backward; None keeps it on the device
        self.findings: list[Finding] = []
        self.blind: set[Path] = set()  # inputs that the body was seen to write, maybe without a trace on the tensor
        self.foreign: set[tuple] = set()  # see Capture._of_storage
        self._used: dict[tuple[int, str], tuple[nn.Cell, str]] | None = None

    def run(self, args: tuple, kwargs: dict) -> Any:
        """As this thread's frame asks: the body outside checkpoints and in a forward, the record in a replay."""
        frame = frames.current()
        if frame is None:
            moves = self.window is not None and native.recording()
            return _alone(self, args, kwargs) if moves else observing.plain(self.name, self.body, args, kwargs)
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


def _alone(region: Region, args: tuple, kwargs: dict) -> Any:
    """Runs an offloaded region outside every checkpoint: what it saves moves, and nothing is replayed."""
    if observing.active is not None:
        observing.active.called(region.name)
    frame = frames.Frame(None, replaying=False)
    capture = Capture(frame, region, args, kwargs)
    try:
        with native.hooks(capture.pack, unpack):
            out = region.body(*args, **kwargs)
        frames.check_unwritten(frame.guarded)
        capture.settle()
    finally:
        capture.close()
        frame.guarded.clear()
    return out


def _saved(frame: frames.Frame, region: Region, args: tuple, kwargs: dict) -> Any:
    if frame.inside is not None:
        raise ReplayError(
            f"excluded region {region.name} is called inside excluded region {frame.inside.name}: "
            "exclude only the outer one, its body is never replayed anyway"
        )
    capture = Capture(frame, region, args, kwargs)
    given = Given(args, kwargs)
    frame.inside, frame.capture = region, capture
    try:
        with native.hooks(capture.pack, unpack):
            out = region.body(*args, **kwargs)
        given.refuse_change(region.name)
        _record(frame, region, capture, out)
    finally:
        frame.inside = frame.capture = None
        capture.close()
    return out


def _record(frame: frames.Frame, region: Region, capture: Capture, out: Any) -> None:
    inputs = capture.inputs
    noted = [(item.path, new) for item in inputs.values() if (new := _new_attributes(item))]
    parts = Parts(out, noted, region.name)
    _refuse_unknown_distributed(parts.outputs, region)
    written = [item for item in inputs.values() if _is_written(item, capture)]
    bindings = [_bind(capture, item) for item in inputs.values() if _is_saved(item)]
    values = [Passed(inputs[id(t)].path) if id(t) in inputs else _kept(t, region) for t in parts.outputs]
    record = Record(region, bindings, parts, values)
    record.writes = [_write(item, capture) for item in written]
    frame.call.records.append(record)
    frame.shared += [(was, now, region) for now, was in parts.shared]
    capture.settle()
    made = [(leaf, tensor) for leaf, tensor in enumerate(parts.outputs) if id(tensor) not in inputs]
    _learn(frame, capture, made, written)


def _learn(frame: frames.Frame, capture: Capture, made: list[tuple[int, Tensor]], written: list[Input]) -> None:
    """Tells the watch of the call, or lets what was learned decide about its outputs."""
    invocation, region = frame.call, capture.region
    index = len(invocation.records) - 1
    if frame.watch is not None:
        rewritten = {id(item) for item in written}
        given = [(i.tensor, id(i) in rewritten or _is_saved(i)) for i in capture.inputs.values()]
        frame.watch.called(index, given, made)
    for leaf, tensor in made:
        marks.put(tensor, marks.Made(invocation.token, (index, leaf), frame.watch))
        frame.outputs[index, leaf] = (tensor, tensor._version, region, "an output")
    if frame.course is not None:
        frame.course.called()


def _kept(tensor: Tensor, region: Region) -> Tensor | Part:
    if can_be_made_again(tensor):
        return Part(tensor)
    # What was written in place may be a buffer that lives longer than this call, and will be written again.
    return writing.copy_of(tensor, tensor._requires_grad) if tensor._version or region.blind else without_graph(tensor)


def _new_attributes(item: Input) -> dict | None:
    now = item.tensor.__dict__
    if not now:
        return None
    before = item.attributes or {}
    return {name: value for name, value in now.items() if before.get(name, item) is not value}


def _is_written(item: Input, capture: Capture) -> bool:
    """The body wrote into this input, or did so in a watched forward and may have done it again without a trace.

    Not into one that this call saves: a call that does both is refused in the watched forward, so another one wrote.
    """
    if _was_seen_written(item, capture):
        capture.region.blind.add(item.path)
        return True
    return item.path in capture.region.blind and capture.frame.watch is None and not _is_saved(item)


def _is_saved(item: Input) -> bool:
    return item.slot is not None and item.slot.uses > 0


def _was_seen_written(item: Input, capture: Capture) -> bool:
    return _has_moved(item) or item.tensor._version != item.version or item.storage in capture.touched


def _has_moved(item: Input) -> bool:
    """The tensor has another storage than before. Addresses, which wait, are asked for where a write was seen before.

    Elsewhere an index assignment is known by the graph node that it leaves.
    """
    if item.storage is None:
        return item.tensor._version == item.version and node_of(item.tensor) != item.node
    return item.tensor.untyped_storage().data_ptr() != item.storage


def _write(item: Input, capture: Capture) -> writing.Write:
    if not _has_moved(item):
        writing.refuse_saved(item.tensor, capture.frame.call.token, f"excluded region {capture.region.name}")
    return writing.Write(item.path, writing.copy_of(item.tensor, item.tensor._requires_grad), _has_moved(item))


def _refuse_unknown_distributed(outputs: list[Tensor], region: Region) -> None:
    for tensor in outputs:
        if is_distributed(tensor) and not can_be_made_again(tensor):
            raise ReplayError(
                f"excluded region {region.name} returns a distributed tensor of {type(tensor).__name__}, which has no "
                "from_local, device_mesh or placements: a replay couldn't be given one; return its to_local()"
            )


def _bind(capture: Capture, item: Input) -> Binding:
    frame, region, tensor = capture.frame, capture.region, item.tensor
    if _was_seen_written(item, capture):
        raise ReplayError(
            f"excluded region {region.name} writes its input {spell(item.path)} in place and saves it: a replay only "
            "has the value from before; clone the input in the region, or don't exclude it"
        )
    if frame.watch is not None:
        writing.mark_saved(tensor, frame.call.token, f"excluded region {region.name}")
    return Binding(item.path, weakref.ref(item.slot), _layout(tensor))


def _layout(tensor: Tensor) -> tuple:
    return tensor.shape, tensor.dtype


def _replayed(frame: frames.Frame, region: Region, args: tuple, kwargs: dict) -> Any:
    ending, shade = frame.ending, frame.shade
    assert ending is not None, "every replay has one"
    assert shade is not None, "every replay has one"
    ending.here()
    record = _next_record(frame, region)
    for binding in record.bindings:
        slot = binding.slot()
        if slot is not None:
            tensor = _find(binding, region, args, kwargs)
            shade.check(tensor, f"excluded region {region.name}")
            slot.fill(native.detached(tensor))
            frame.bound.append((tensor, tensor._version, region))
    ending.progress(frame.packed, frame.cursor)
    # The body would have drawn from the generator here.
    random_state.restore(record.rng)
    frame.inside = region
    try:
        return record.hand_out(frame, args, kwargs)
    finally:
        frame.inside = None


def _next_record(frame: frames.Frame, region: Region) -> Record:
    records, index = frame.call.records, frame.cursor
    if index >= len(records) or records[index].region is not region:
        expected = records[index].region.name if index < len(records) else "none"
        why = "the wrapper is made anew in each run" if expected == region.name else "control flow changed"
        raise ReplayError(
            f"the replay of {frame.call.boundary.name} calls excluded region {region.name} where its forward "
            f"called {expected} (call {index}): {why} between forward and replay"
        )
    frame.cursor = index + 1
    return records[index]


def _find(binding: Binding, region: Region, args: tuple, kwargs: dict) -> Tensor:
    try:
        tensor = resolve(binding.path, args, kwargs)
    except (LookupError, TypeError, AttributeError):
        tensor = None
    if not isinstance(tensor, Tensor) or _layout(tensor) != binding.layout:
        raise ReplayError(
            f"the replay did not reproduce input {spell(binding.path)} of excluded region {region.name}: "
            f"expected a tensor with (shape, dtype) {binding.layout}"
        )
    return tensor
