"""Runs code on the meta device and writes down every operation, the storages it touches, and what autograd saves.

Addresses are null on the meta device, so a storage is known by a reference put on its tensors as user data. The
reference follows a tensor through packs and ``.data`` aliases; a view gets the reference of what it is a view of.

Kernels of the CPU wheel copy a view operand before they run, also on the meta device; kernels that take strides don't.
``views`` says which of the two is meant: ``copied`` for a comparison with what a CPU run holds, ``shared`` for Ascend.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import MsDispatchMode, Parameter, Tensor, mint, nn

from hp_memory.activation import is_recomputing, native, observing
from hp_memory.estimate.tracing import flops, record, shape_rules, values
from hp_memory.estimate.tracing.record import BARE, EXCHANGE, HOST_READ, LayerTrace, Op, Saved, Storage, Views

_KEY = "hp_memory_storage"

# Operations whose result is a view of their first tensor, beside all whose name ends in View.
_VIEWS = frozenset(
    {"Reshape", "View", "Transpose", "ExpandDims", "Squeeze", "AsStrided", "FlattenExt", "BroadcastTo", "StopGradient"}
)
_SAME_ORDER = frozenset({"Reshape", "View", "StopGradient", "ExpandDims", "Squeeze", "Contiguous"})
# The wheel broadcasts operands by tiling them; kernels that broadcast by strides make nothing here.
_BROADCASTS = frozenset({"Tile", "BroadcastTo"})


@dataclass(frozen=True)
class _Ref:
    """What a tensor is: its storage in one recording, and whether it lies there without gaps."""

    recorder: object
    storage: int
    contiguous: bool


class Recorder(MsDispatchMode):
    """A dispatch mode that fills a ``LayerTrace``. Use through ``record_layer``."""

    def __init__(self, trace: LayerTrace, views: Views, excluded: Collection[str]) -> None:
        super().__init__()
        self.trace, self.views, self.excluded = trace, views, excluded
        self.region = BARE
        self.backward = False
        self.inside = False
        self.arguments: tuple[Tensor, ...] = ()
        self._referred: dict[int, weakref.ref] = {}

    @property
    def phase(self) -> record.Phase:
        """Where the run is; a replay belongs to the backward in which it happens."""
        if not self.backward:
            return "forward"
        return "replay" if is_recomputing() else "backward"

    def __ms_dispatch__(self, func: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if self.inside:
            return func(*args, **(kwargs or {}))
        inputs = list(tensors(args))
        reads = [self.storage_of(t) for t in inputs]
        out = func(*args, **(kwargs or {}))
        results = list(tensors((out,)))
        for tensor in results:
            self._settle(func.name, inputs, reads, tensor)
        writes = tuple(self.storage_of(t) for t in results)
        work = flops.flops(func.name, [tuple(t.shape) for t in inputs], [tuple(t.shape) for t in results])
        self.trace.ops.append(Op(func.name, self.phase, self.region, tuple(reads), writes, work))
        out = self._unviewed(out) if self.views == "shared" and _looks_like_a_view(func.name) else out
        self._follow((*inputs, *tensors((out,))))
        return out

    def _follow(self, referred: Sequence[Tensor]) -> None:
        """Notes when Python's last reference to these tensors goes: until then their storages stay."""
        for tensor in referred:
            key, storage = id(tensor), self.storage_of(tensor)

            def gone(_: object, key: int = key, storage: int = storage) -> None:
                del self._referred[key]
                self.trace.released[storage] = len(self.trace.ops) - 1

            if key not in self._referred:
                self._referred[key] = weakref.ref(tensor, gone)

    def storage_of(self, tensor: Tensor) -> int:
        """The storage of a tensor; one that no recorded operation made is from before, or a copy the backend made."""
        ref = self._ref(tensor)
        if ref is None and isinstance(tensor, Parameter):
            ref = self.adopt(tensor, "parameter")
        elif ref is None and values.known(tensor):
            # A table that a kernel made in an earlier run and keeps.
            ref = self.adopt(tensor, "constant")
        elif ref is None:
            ref = self.adopt(tensor, "activation")
            self.trace.copies[ref.storage] = self._source_of(tensor)
        return ref.storage

    def _source_of(self, copy: Tensor) -> int | None:
        """The argument of the running region that the backend copied, told by its size; None for anything else."""
        same = (t for t in self.arguments if t.size == copy.size and t.dtype == copy.dtype)
        return next((self.storage_of(t) for t in same if self.knows(t)), None)

    def made_by_host(self, tensor: Tensor) -> None:
        """Gives a tensor that the host fills a storage."""
        self.adopt(tensor, "activation")

    def host_read(self, tensor: Tensor) -> None:
        """Notes that the host reads a tensor: a reader like an operation, which dispatch doesn't see."""
        self.trace.ops.append(Op(HOST_READ, self.phase, self.region, (self.storage_of(tensor),), ()))

    def exchanged(self, sent: Tensor, received: Tensor) -> None:
        """Notes a collective in place of the operation that made its result."""
        made = self.trace.ops.pop()
        self.trace.ops.append(Op(EXCHANGE, made.phase, made.region, (self.storage_of(sent),), made.writes))

    def knows(self, tensor: Tensor) -> bool:
        """Whether a recorded operation made this tensor, or it was announced."""
        return self._ref(tensor) is not None

    def has_gaps(self, tensor: Tensor) -> bool:
        """Whether this is a view that doesn't lie in one piece."""
        ref = self._ref(tensor)
        return ref is not None and not ref.contiguous

    def adopt(self, tensor: Tensor, kind: record.StorageKind) -> _Ref:
        """Gives a tensor a storage of its own."""
        storage = Storage(
            len(self.trace.storages),
            tuple(tensor.shape),
            str(tensor.dtype).lower(),
            tensor.nbytes,
            kind,
            self.region,
            self.phase,
        )
        self.trace.storages.append(storage)
        return self._refer(tensor, storage.number, True)

    def _ref(self, tensor: Tensor) -> _Ref | None:
        ref = tensor._get_user_data(_KEY)
        return ref if type(ref) is _Ref and ref.recorder is self else None

    def _refer(self, tensor: Tensor, storage: int, contiguous: bool) -> _Ref:
        ref = _Ref(self, storage, contiguous)
        tensor._set_user_data(_KEY, ref)
        return ref

    def _settle(self, name: str, inputs: Sequence[Tensor], reads: Sequence[int], out: Tensor) -> None:
        """Gives an operation's result its storage: a new one, or that of what it is a view of."""
        if self.knows(out):
            return
        if inputs and self._is_view(name, inputs[0], out):
            self._refer(out, reads[0], name not in _BROADCASTS and out.is_contiguous())
            if name in _SAME_ORDER:
                values.follow(inputs[0], out)
        else:
            self.adopt(out, "activation")

    def _is_view(self, name: str, source: Tensor, out: Tensor) -> bool:
        if name == "Contiguous":
            ref = self._ref(source)
            return ref is not None and ref.contiguous
        if name in _BROADCASTS:
            return self.views == "shared"
        if name in ("Reshape", "View", "FlattenExt"):
            # Reshaping what has gaps copies it.
            ref = self._ref(source)
            return ref is None or ref.contiguous
        return _looks_like_a_view(name)

    def _unviewed(self, out: Any) -> Any:
        """The same results as tensors of their own, so that no later operation copies them as view operands."""
        self.inside = True
        try:
            return self._clone(out)
        finally:
            self.inside = False

    def _clone(self, value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(self._clone(item) for item in value)
        ref = self._ref(value) if isinstance(value, Tensor) else None
        if ref is None:
            return value
        copy = mint.clone(value)
        copy._set_user_data(_KEY, ref)
        return copy

    def returned(self, region: str, out: Any) -> None:
        """Notes what one of a region's places returned."""
        numbers = tuple(self.storage_of(t) for t in tensors((out,)))
        self.trace.region_outputs[region] = (*self.trace.region_outputs.get(region, ()), *numbers)

    def is_made_again(self, tensor: Tensor) -> bool:
        """Whether a checkpoint makes this tensor again as a view of what a replay gives the running region.

        The checkpoint knows such a view by its address, which the meta device doesn't have.
        """
        storage = self.storage_of(tensor)
        mine = self.views == "shared" and any(self.storage_of(t) == storage for t in self.arguments)
        return mine and self.trace.storages[storage].region not in self.excluded

    def pack(self, tensor: Tensor) -> Tensor:
        """The saved-tensor hook: notes what is kept."""
        self.trace.saved.append(self.saved(tensor))
        return tensor.data

    def saved(self, tensor: Tensor, region: str | None = None) -> Saved:
        """A note that ``tensor`` is kept, by the region that runs now or another."""
        storage = self.storage_of(tensor)
        return Saved(
            storage, self.region if region is None else region, tuple(tensor.shape), storage in self.trace.copies
        )


def _looks_like_a_view(name: str) -> bool:
    return name.endswith("View") or name in _VIEWS or name in _BROADCASTS or name == "Contiguous"


def tensors(values: Any) -> Iterator[Tensor]:
    """Every tensor in nested tuples, lists and dicts."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors(value)
        elif isinstance(value, dict):
            yield from tensors(value.values())


class Mark:
    """Stands in for a callable and tells the recorder which region runs. Everything else is the callable's own."""

    def __init__(self, target: Callable, region: str) -> None:
        self.target, self.region = target, region

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        recorder = _active[-1] if _active else None
        if recorder is None:
            return self.target(*args, **kwargs)
        outside = recorder.region, recorder.arguments
        recorder.region, recorder.arguments = self.region, tuple(tensors((args, kwargs)))
        try:
            out = self.target(*args, **kwargs)
            if recorder.phase == "forward":
                recorder.returned(self.region, out)
        finally:
            recorder.region, recorder.arguments = outside
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


_active: list[Recorder] = []


def mark(owner: object, attr: str, region: str) -> None:
    """Puts a ``Mark`` where ``owner`` looks its attribute up, in front of a sub-cell too."""
    object.__setattr__(owner, attr, Mark(getattr(owner, attr), region))


@contextlib.contextmanager
def _recording(recorder: Recorder, hooks: type) -> Iterator[None]:
    _active.append(recorder)
    values.on_make.append(recorder.made_by_host)
    values.on_read.append(recorder.host_read)
    shape_rules.on_exchange.append(recorder.exchanged)
    before = native.hooks
    vars(native)["hooks"] = hooks
    contiguous = Tensor.contiguous
    if recorder.views == "shared":
        # What stands for a view lies in one piece and wouldn't be copied.
        Tensor.contiguous = lambda t: mint.clone(t) if recorder.has_gaps(t) else contiguous(t)
    try:
        with recorder, before(recorder.pack, lambda packed: packed):
            yield
    finally:
        vars(native)["hooks"], Tensor.contiguous = before, contiguous
        values.on_make.pop()
        values.on_read.pop()
        shape_rules.on_exchange.pop()
        _active.pop()


def _counting(recorder: Recorder, kept: list[Saved]) -> type:
    """The hooks of checkpoints and excluded regions, with a note of what they keep instead of dropping."""

    class Counting(native.hooks):
        def __init__(self, pack: Callable, unpack: Callable) -> None:
            def noting(tensor: Tensor) -> Any:
                packed = pack(tensor)
                if _is_kept(packed) and recorder.phase == "forward" and not recorder.is_made_again(tensor):
                    kept.append(recorder.saved(tensor))
                return packed

            super().__init__(noting, unpack)

    return Counting


def _is_kept(packed: Any) -> bool:
    return isinstance(packed, (Tensor, observing.Kept))


@dataclass(frozen=True)
class Installed:
    """What a layer with a plan in it kept: saved by excluded regions, and outputs that a replay hands out."""

    saved: tuple[Saved, ...]
    outputs: tuple[Saved, ...]


def record_layer(
    trace: LayerTrace,
    run: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    weights: Sequence[Parameter],
    constants: Sequence[Tensor] = (),
    views: Views = "shared",
    excluded: Collection[str] = (),
) -> Installed:
    """Runs ``run(*inputs)`` and its backward on the meta device, and fills ``trace``.

    Args:
        trace: an empty trace; parameters are filled in by the caller.
        run: forward of the layer; returns the hidden states.
        inputs: meta tensors, the hidden states (which get a gradient) first.
        weights: parameters that get a gradient.
        constants: tables and masks that belong to the model.
        excluded: regions that an installed plan saves.
    """
    # Operations that wait in a queue would hold their operands longer than the code does.
    ms.runtime.launch_blocking()
    kept: list[Saved] = []
    recorder = Recorder(trace, views, excluded)
    for tensor in (*weights, *constants):
        recorder.adopt(tensor, "parameter" if isinstance(tensor, Parameter) else "constant")
    trace.inputs = tuple(recorder.adopt(tensor, "input").storage for tensor in inputs)

    def forward(*args: Tensor) -> Tensor:
        out = run(*args)
        trace.outputs = tuple(recorder.storage_of(t) for t in tensors((out,)))
        recorder.backward = True
        return out

    with ms.DeviceCtx("meta"), _recording(recorder, _counting(recorder, kept)), _handles() as handles:
        step = ms.value_and_grad(forward, 0, ms.ParameterTuple(weights) if weights else None)
        _, gradients = step(*inputs)
        trace.weight_gradients = frozenset(recorder.storage_of(t) for t in (gradients[1] if weights else ()))
    attribute_backward(trace)
    outputs = [item for handle in handles for item in _kept_outputs(recorder, handle)]
    return Installed(tuple(kept), tuple(outputs))


@contextlib.contextmanager
def _handles() -> Iterator[list]:
    found: list = []
    token = native._recompute._recompute_handle_collector.set(found)
    try:
        yield found
    finally:
        native._recompute._recompute_handle_collector.reset(token)


def _kept_outputs(recorder: Recorder, invocation: Any) -> Iterator[Saved]:
    """Outputs of excluded regions that the checkpoint keeps for a replay; it puts a stand-in where it keeps none."""
    for entry in invocation.records:
        for value in entry.values:
            if isinstance(value, Tensor):
                yield recorder.saved(value, entry.region.name.rpartition("/")[2])


def attribute_backward(trace: LayerTrace) -> None:
    """Gives each backward operation the region whose saved tensors or parameters it reads.

    Others follow the one before.
    Backward runs the regions in reverse, so of several candidates the latest that isn't later is taken.
    """
    order = {region: i for i, region in enumerate(trace.regions)}
    readers: dict[int, set[str]] = {}
    for item in trace.saved:
        readers.setdefault(item.storage, set()).add(item.region)
    for op in trace.of_phase("forward"):
        for number in op.reads:
            if trace.storages[number].kind == "parameter":
                readers.setdefault(number, set()).add(op.region)
    current = BARE
    for i, op in enumerate(trace.ops):
        if op.phase != "backward":
            continue
        found = {r for number in op.reads for r in readers.get(number, ()) if r in order}
        ahead = [r for r in found if current == BARE or order[r] <= order[current]]
        if ahead or found:
            current = max(ahead or found, key=order.__getitem__)
        trace.ops[i] = Op(op.name, op.phase, current, op.reads, op.writes, op.flops)
    trace.memo.clear()


def constants_of(cell: nn.Cell) -> list[Tensor]:
    """Tensors that a Cell and its sub-cells hold as plain attributes: rotary tables, masks."""
    found = []
    for _, part in cell.cells_and_names():
        found += [v for v in vars(part).values() if isinstance(v, Tensor) and not isinstance(v, Parameter)]
    return found
