"""One forward of a checkpointed call, and its replays."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mindspore import Tensor

from hp_memory.activation import elision, frames, native, observing, random_state, writing
from hp_memory.activation.distributed import Shell, can_be_made_again
from hp_memory.activation.ending import Ended, Ending
from hp_memory.activation.recipes import Slot, unpack
from hp_memory.activation.shading import Shade
from hp_memory.activation.trees import call_tensors, difference
from hp_memory.activation.watching import Watch
from hp_memory.errors import ReplayError

if TYPE_CHECKING:
    from hp_memory.activation.wrappers import Boundary


class Invocation(native.RecomputeHandle):
    """State of one checkpointed call: what its replay starts from and what it has to give.

    It is also MindSpore's recompute handle of the call, so that schedules which collect handles and fire them before
    backward (``handle.recompute(session_id)``) work with it.
    """

    def __init__(self, boundary: Boundary, args: tuple, kwargs: dict) -> None:
        override = native.early_stop_override()
        super().__init__(None, boundary.early_stop if override is None else override)
        self.boundary = boundary
        self.slots: list[weakref.ref] = []  # in the order the forward saved
        self.records: list = []  # excluded calls, in order
        self.named: list[str] = []  # observed: the regions that a replay runs again
        self.held_by_session = False
        self.saved: list[tuple] = []  # (shape, dtype) of what the forward saved, slot by slot
        self.operations: list[str | None] | None = None  # what saved each slot, if the forward was watched
        self.outputs: list | None = None  # (shape, dtype) of what the forward returned
        self.token = object()
        self.contexts = boundary.context_fn() if boundary.context_fn else None
        self.rng = random_state.here()
        self.amp = native.get_curr_amp_strategy()
        self.modes = [cell.training for cell in boundary.cells]
        self._keep_inputs(args, kwargs)
        collected = native.collector()
        if collected is not None:
            collected.append(self)

    # -- inputs ----------------------------------------------------------------------------------------------------

    def _keep_inputs(self, args: tuple, kwargs: dict) -> None:
        # MindSpore saves positional tensors as plain ones: distributed ones are put together again.
        self.shells: dict[int, Shell] = {}
        self.versions: tuple[tuple[Tensor, int], ...] = ()
        if native.hooks_active():
            # Somebody outside packs what is saved (an offload, an outer checkpoint, an observation): let it.
            self.shells = {i: Shell.of(value) for i, value in enumerate(args) if can_be_made_again(value)}
            args = tuple(value.to_local() if i in self.shells else value for i, value in enumerate(args))
            with observing.label(self.boundary.name, "block input"):
                self.input_node = native.InputSaver.apply(native.empty_trigger(), kwargs, *args)
            return
        self.wrap_original_inputs(*args, **kwargs)
        self.versions = tuple((tensor, tensor._version) for _, tensor in call_tensors(args, kwargs))

    def _inputs(self) -> tuple[list, dict]:
        for tensor, version in self.versions:
            if tensor._version != version:
                raise ReplayError(
                    f"an input of {self.boundary.name} was written in place between its forward and its replay; "
                    "clone it before the block, or write to the clone"
                )
        kwargs, *args = self.recover_inputs()
        for i, shell in self.shells.items():
            args[i] = shell.around(args[i])
        return args, kwargs

    # -- forward ---------------------------------------------------------------------------------------------------

    def forward(self, args: tuple, kwargs: dict) -> Any:
        """Runs the call, keeping slots in place of what it saves outside excluded regions."""
        frame, plan = frames.Frame(self, replaying=False), self.boundary.plan
        watched: contextlib.AbstractContextManager = contextlib.nullcontext()
        if plan.wants_watch:
            watched = frame.watch = Watch(frame, (tensor for _, tensor in call_tensors(args, kwargs)))
            self.operations = frame.watch.slot_operations
        else:
            frame.course = elision.Course(plan, self.records, frame.outputs)
        before = frames.enter(frame)
        try:
            with native.hooks(self._slot_maker(frame), unpack), watched, _first(self.contexts):
                out = self.boundary.fn(*args, **kwargs)
            if frame.watch is not None:
                elision.learn(frame.watch, self.records, plan, frame.outputs)
            elif frame.course is not None:
                frame.course.end()
            frames.check_unwritten([*frame.guarded, *frame.outputs.values()])
            _check_unchanged(frame.shared)
            for index, record in enumerate(self.records):
                record.move({leaf: out[0] for (i, leaf), out in frame.outputs.items() if i == index})
        finally:
            frames.leave(before)
            # These hold the graph, which holds the hooks, which hold the frame.
            frame.guarded.clear()
            frame.outputs.clear()
            frame.watch = frame.course = None
        self.outputs = _shapes(out)
        self.forward_completed = True
        return out

    def _slot_maker(self, frame: frames.Frame) -> Callable:
        slots, saved, token = self.slots, self.saved, self.token

        def pack(tensor: Any) -> Slot:
            if frame.watch is not None:
                frame.watch.saved(tensor)
                writing.mark_saved(tensor, token, self.boundary.name)
            elif frame.course is not None:
                frame.course.saved(tensor, token)
            slot = Slot(self, 1)
            slots.append(weakref.ref(slot))
            saved.append((tensor.shape, tensor.dtype))
            return slot

        return pack

    # -- replay ----------------------------------------------------------------------------------------------------

    def fill_on_demand(self, slot: Slot, session: Any) -> None:
        """Replays because backward reads ``slot`` and it is empty."""
        if session is None:
            self.held_by_session = False
            self.replay()
        else:
            if self.is_recomputed[session.session_id]:
                raise ReplayError(
                    f"recompute session {session.session_id!r} has already handed out this tensor of "
                    f"{self.boundary.name} for the last time; every backward but the last needs retain_on_unpack=True"
                )
            self.recompute(session.session_id)
        if slot.value is None:
            raise ReplayError(
                f"the replay of {self.boundary.name} did not reproduce a tensor its backward reads: "
                "control flow changed between forward and replay"
            )

    def recompute(self, recompute_key: Any) -> None:
        """Replays ahead of backward, once per session; also what schedules call on a collected handle."""
        if native.current_session() is not None:
            native.session_handles[recompute_key].add(self)
        if self.is_recomputed[recompute_key]:
            return
        self.held_by_session = True
        self.replay()
        self.is_recomputed[recompute_key] = True

    def clear_session(self, session_id: Any) -> None:
        """Drops what a session still holds of this call."""
        self.is_recomputed.pop(session_id, None)
        self.held_by_session = False
        self._empty_slots()

    def _empty_slots(self) -> None:
        for ref in (*self.slots, *(binding.slot for record in self.records for binding in record.bindings)):
            slot = ref()
            if slot is not None:
                slot.value = None

    def replay(self) -> None:
        """Runs the call again from its inputs and fills the slots that backward can still read."""
        args, kwargs = self._inputs()
        frame = frames.Frame(self, replaying=True)
        on_meta = any(tensor.is_meta for _, tensor in call_tensors(tuple(args), kwargs))
        frame.shade = shade = Shade(frame, self.boundary.plan.dead, on_meta)
        frame.ending = ending = Ending(self._needed() if self.early_stop else None, Invocation._run_again.__code__)
        try:
            finished = self._run_again(frame, shade, ending, args, kwargs)
            self._check_replay(frame, finished)
        except Exception as error:
            self._empty_slots()
            if frame.failure is not None and error is not frame.failure:
                raise frame.failure from error
            raise
        finally:
            frame.bound.clear()  # holds the replay's graph, which holds the hooks, which hold the frame
            # MindSpore may keep the replay's graph for longer, and with it the hooks (compiled functions do).
            frame.shade = frame.ending = frame.invocation = None

    def _run_again(self, frame: frames.Frame, shade: Shade, ending: Ending, args: list, kwargs: dict) -> bool:
        """False if the replay stopped early."""
        hooks = native.hooks(lambda tensor: frame.call._fill(frame, tensor), unpack)
        scope = shade.scope(self.operations is not None)
        before = frames.enter(frame)
        try:
            with _forward_state(self), native.replay_graph(), hooks, scope, contextlib.closing(ending):
                out = self.boundary.fn(*args, **kwargs)
        except (Ended, Exception):
            if not ending.raised:
                raise
            if observing.active is not None:
                observing.active.spared(self.named[frame.named :])
            return False
        finally:
            frames.leave(before)
        if self.outputs is not None and _shapes(out) != self.outputs:
            raise ReplayError(
                f"the replay of {self.boundary.name} returns {_shapes(out)}, its forward {self.outputs}: "
                "control flow changed between forward and replay"
            )
        return True

    def _fill(self, frame: frames.Frame, tensor: Any) -> Any:
        """Takes what a replay saves: for a slot, if backward can still read it."""
        i, shade, ending = frame.packed, frame.shade, frame.ending
        assert shade is not None, "every replay has one"
        assert ending is not None, "every replay has one"
        if i >= len(self.slots):
            raise ReplayError(
                f"the replay of {self.boundary.name} saves more tensors than its forward: "
                "control flow changed between forward and replay"
            )
        frame.packed = i + 1
        shade.check(tensor, "backward")
        self._check_saved(i, tensor, shade.last)
        values = native.detached(tensor)  # the tensor itself would close a circle through the replay's own graph
        slot = self.slots[i]()
        if slot is not None:
            slot.fill(values)
            frame.bound.append((tensor, tensor._version, None))
        if frames.current() is frame:  # else another thread saves this
            ending.progress(frame.packed, frame.cursor)
        return values

    def _check_saved(self, number: int, tensor: Any, operation: str | None) -> None:
        """What a replay saves must look like what the forward saved; if that was watched, by the same operation."""
        expected = self.operations[number] if self.operations is not None else None
        found = (tensor.shape, tensor.dtype)
        if found != self.saved[number] or (expected is not None and operation != expected):
            raise ReplayError(
                f"the replay of {self.boundary.name} saves {found} of {operation or 'an operation'} where its forward "
                f"saved {self.saved[number]} of {expected or 'an operation'} (saved tensor {number}): "
                "control flow changed between forward and replay"
            )

    def _needed(self) -> tuple[int, int]:
        """How many tensors a replay saves, and how many regions it calls, until every slot that lives is filled."""
        saved = max((i for i, slot in enumerate(self.slots, 1) if slot() is not None), default=0)
        bound = ((i, binding) for i, record in enumerate(self.records, 1) for binding in record.bindings)
        return saved, max((i for i, binding in bound if binding.slot() is not None), default=0)

    def _check_replay(self, frame: frames.Frame, finished: bool) -> None:
        if frame.failure is not None:
            raise frame.failure
        for tensor, version, region in frame.bound:
            if tensor._version != version:
                whose = f"excluded region {region.name}" if region else self.boundary.name
                raise ReplayError(
                    f"a tensor that {whose} saves is written in place afterwards, within the block; "
                    "clone it before the write"
                )
        if finished and (frame.packed, frame.cursor) != (len(self.slots), len(self.records)):
            raise ReplayError(
                f"the replay of {self.boundary.name} saved {frame.packed} tensors and called {frame.cursor} excluded "
                f"regions, its forward {len(self.slots)} and {len(self.records)}: "
                "control flow changed between forward and replay"
            )


def _shapes(out: Any) -> list:
    return [(tensor.shape, tensor.dtype) for _, tensor in call_tensors((out,), {})]


def _check_unchanged(shared: list) -> None:
    for before, now, region in shared:
        if difference(before, now) is not None:
            raise ReplayError(
                f"the {type(now).__name__} that excluded region {region.name} returns is changed by the block, and a "
                "replay is handed the changed one: return a dataclass, or change a copy"
            )


def _first(contexts: tuple | None) -> contextlib.AbstractContextManager:
    return contexts[0] if contexts else contextlib.nullcontext()


@contextlib.contextmanager
def _forward_state(invocation: Invocation) -> Iterator[None]:
    """Random state, mixed precision and train flags as they were in the forward, for the time of a replay."""
    cells = invocation.boundary.cells
    modes, rng = [cell.training for cell in cells], random_state.here()
    random_state.restore(invocation.rng)
    _set_modes(cells, modes, invocation.modes)
    try:
        with contextlib.ExitStack() as stack:
            if invocation.amp:
                stack.enter_context(native.amp_decorator(invocation.amp))
            if invocation.boundary.cell is not None and invocation.boundary.cell.mixed_precision_type is not None:
                stack.enter_context(native.cell_precision(invocation.boundary.cell.mixed_precision_type))
            if invocation.contexts:
                stack.enter_context(_again(invocation.contexts[1]))
            yield
    finally:
        _set_modes(cells, invocation.modes, modes)
        random_state.restore(rng)


def _set_modes(cells: tuple, now: list[bool], wanted: list[bool]) -> None:
    if now != wanted:
        for cell, mode in zip(cells, wanted, strict=True):
            cell.training = mode


def _again(context: Any) -> Any:
    """A context manager made by ``@contextmanager`` serves once; a second replay needs a new one."""
    return context._recreate_cm() if isinstance(context, contextlib._GeneratorContextManager) else context
