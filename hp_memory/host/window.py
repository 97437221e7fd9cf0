"""Which tensors wait on the host, when they leave and when they come back.

A region's tensors leave when its forward has run (:meth:`Window.launch`). In backward the first tensor of a region
that is read starts the copies of the regions before it (:meth:`Window.read`): they are back when backward gets there.
A tensor whose copy out isn't complete when it is wanted simply stays: nothing waits for a copy that nobody needs.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import Parameter, Tensor

from hp_memory.amounts import bytes_of
from hp_memory.errors import PlanMismatch
from hp_memory.host.pool import Pool
from hp_memory.host.settings import HostSettings
from hp_memory.host.ticket import Group, Ticket
from hp_memory.host.transport import Outgoing, Transport, WhenNeeded

_MARK = "hp_memory_ticket"
_MOVES = frozenset({ms.float32, ms.float16, ms.bfloat16, ms.float64})


@dataclass
class Moves:
    """What a window did so far.

    Attributes:
        moved, moved_bytes: tensors that were sent to the host.
        returned_bytes: brought back.
        shared: tensors that several readers save, moved once.
        recalled: wanted before their copy out was complete, so that they never left.
        kept: tensors that stayed on the device, by reason.
        waited_out, waited_in: seconds that a forward waited for copies out, a backward for copies in.
        host_peak: most bytes on the host.
    """

    moved: int = 0
    moved_bytes: int = 0
    returned_bytes: int = 0
    shared: int = 0
    recalled: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    waited_out: float = 0.0
    waited_in: float = 0.0
    host_peak: int = 0

    def in_words(self) -> str:
        """One line for a log."""
        kept = "".join(f"; {count} kept: {reason}" for reason, count in sorted(self.kept.items()))
        return (
            f"{self.moved} tensors ({self.moved_bytes:,} bytes) moved to the host, at most {self.host_peak:,} bytes "
            f"there, {self.recalled} wanted before they had left{kept}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The same, JSON-ready."""
        return asdict(self) | {"kept": dict(self.kept)}


class _Leaving(NamedTuple):
    """A copy out under way. The source must stay until it is complete, whoever else has let go of it."""

    out: Outgoing
    source: Tensor
    ticket: weakref.ref[Ticket]


class Window:
    """The tensors of one model part that wait on the host.

    Args:
        transport: makes the copies.
        memory: bytes of host memory, see :class:`HostSettings` for this and the rest.
        min_bytes, prefetch, pending: likewise.
    """

    def __init__(self, transport: Transport, memory: int, min_bytes: int, prefetch: int, pending: int) -> None:
        self.pool = Pool(memory, transport.allocate)
        self.moves = Moves()
        self._transport = transport
        self._min_bytes, self._prefetch_by, self._pending = min_bytes, prefetch, pending
        self._leaving: deque[list[_Leaving]] = deque()  # by group
        self._groups: weakref.WeakValueDictionary[int, Group] = weakref.WeakValueDictionary()
        self._number = 0
        self._lock = threading.RLock()  # a backward may run beside a forward
        self._stretch = threading.local()

    @classmethod
    def of(cls, settings: HostSettings, path: str = "host") -> Window:
        """A window of the device that is set."""
        memory, least = bytes_of(settings.memory, f"{path}.memory"), bytes_of(settings.min_bytes, f"{path}.min_bytes")
        return cls(WhenNeeded(), memory, least, settings.prefetch, settings.pending)

    # -- out -------------------------------------------------------------------------------------------------------

    def offer(self, tensor: Tensor) -> Ticket | None:
        """A ticket for one more reader of ``tensor``, or None where it stays on the device."""
        with self._lock:
            known = _ticket_of(tensor)
            if known is not None and known.window is self:
                known.uses += 1
                self.moves.shared += 1
                return known
            reason = self._stays(tensor)
            buffer = self.pool.take(tensor.nbytes) if reason is None else None
            if buffer is None:
                self.moves.kept[reason or "the host's memory is used up"] += 1
                return None
            ticket = Ticket(self, tensor, buffer)
            ticket.uses = 1
            if tensor._grad_node is not None:
                tensor._set_user_data(_MARK, (weakref.ref(ticket), _value_of(tensor)))
            return ticket

    def _stays(self, tensor: Tensor) -> str | None:
        if isinstance(tensor, Parameter):
            return "a parameter"
        if tensor.dtype not in _MOVES:
            return "not floating point"
        if tensor.nbytes < max(self._min_bytes, 1):
            return "smaller than host.min_bytes"
        if tensor.is_meta:
            return "no device"
        return None

    def launch(self, tickets: list[Ticket]) -> None:
        """Starts the copies out of a region whose forward has run, but for tickets that are on their way already."""
        with self._lock:
            new = list(dict.fromkeys(ticket for ticket in tickets if ticket.group is None))
            self._retire()
            if not new:
                return
            self._number += 1
            group = Group(getattr(self._stretch, "key", None), self._number, new)
            self._groups[group.number] = group
            self._leaving.append([self._leave(ticket, group) for ticket in new])
        self._hold_back()

    def _leave(self, ticket: Ticket, group: Group) -> _Leaving:
        assert ticket.source is not None
        assert ticket.buffer is not None
        ticket.group = group
        self.moves.moved += 1
        self.moves.moved_bytes += ticket.buffer.nbytes
        self.moves.host_peak = max(self.moves.host_peak, self.pool.peak)
        ticket.out = self._transport.copy_out(ticket.source, ticket.buffer)
        ticket.buffer = None  # the copy has it
        return _Leaving(ticket.out, ticket.source, weakref.ref(ticket))

    def _hold_back(self) -> None:
        """Waits until no more than the allowed number of regions is on its way out."""
        began = time.perf_counter()
        while True:
            with self._lock:
                if len(self._leaving) <= self._pending:
                    break
                oldest = self._leaving.popleft()
            self._wait_for(oldest)
        self.moves.waited_out += time.perf_counter() - began

    def _retire(self) -> None:
        """Lets go of the sources whose copies are complete."""
        while self._leaving and all(leaving.out.done() for leaving in self._leaving[0]):
            for leaving in self._leaving.popleft():
                self._let_go(leaving)

    def _wait_for(self, leaving: list[_Leaving]) -> None:
        for item in leaving:
            item.out.wait()
        with self._lock:
            for item in leaving:
                self._let_go(item)

    def _let_go(self, leaving: _Leaving) -> None:
        ticket = leaving.ticket()
        if ticket is not None and not ticket.wanted and ticket.out is leaving.out:
            ticket.source = None

    def settle(self) -> None:
        """Waits for every copy out, and lets go of what has left: for a look at what a forward holds."""
        with self._lock:
            leaving = [item for group in self._leaving for item in group]
            self._leaving.clear()
        self._wait_for(leaving)

    # -- back ------------------------------------------------------------------------------------------------------

    def read(self, ticket: Ticket, keep: bool) -> Tensor:
        """See :meth:`Ticket.read`."""
        began = time.perf_counter()
        with self._lock:
            self._retire()
            self._want(ticket)
            if ticket.group is not None and not ticket.group.reached:
                ticket.group.reached = True
                self._want_before(ticket.group.key, ticket.group.number)
            back = ticket.back
            if back is None:
                assert ticket.source is not None
                return ticket.as_offered(ticket.source)
        flat = back.take()
        self.moves.waited_in += time.perf_counter() - began
        with self._lock:
            if not keep:
                ticket.left -= 1
                if ticket.left <= 0:
                    ticket.back = None
        return ticket.as_offered(flat)

    def _want(self, ticket: Ticket) -> None:
        """Makes sure that the tensor is on the device soon, and stays there until it is read."""
        if ticket.back is not None:
            return
        if ticket.source is not None:
            if not ticket.wanted:
                self.moves.recalled += 1
                ticket.wanted = True
                if ticket.out is not None and ticket.out.cancel():
                    ticket.out = None
            return
        assert ticket.out is not None
        ticket.back = ticket.out.back()
        ticket.left = ticket.uses
        self.moves.returned_bytes += ticket.out.buffer.nbytes

    def _want_before(self, key: object, number: int) -> None:
        """Starts the copies of the last groups of a stretch before group ``number``."""
        earlier = sorted((n for n, group in self._groups.items() if n < number and group.key == key), reverse=True)
        for n in earlier[: self._prefetch_by]:
            group = self._groups.get(n)
            for ticket in group.tickets() if group is not None else ():
                self._want(ticket)

    def refuse_idle(self) -> None:
        """Raises PlanMismatch if nothing at all has moved: asked after a first step."""
        if not self.moves.moved:
            kept = ", ".join(f"{count} {reason}" for reason, count in sorted(self.moves.kept.items()))
            raise PlanMismatch(
                f"the plan offloads regions, and nothing moved to the host in the first step: they saved "
                f"{kept or 'nothing'}"
            )

    # -- several micro-batches in flight ---------------------------------------------------------------------------

    @contextlib.contextmanager
    def stretch(self, key: object) -> Iterator[None]:
        """What leaves within belongs to the forward ``key``, of one micro-batch through one chunk.

        Only a read of that forward's tensors, or :meth:`ahead`, brings it back.
        """
        before = getattr(self._stretch, "key", None)
        self._stretch.key = key
        try:
            yield
        finally:
            self._stretch.key = before

    def ahead(self, key: object) -> None:
        """The backward of forward ``key`` is next: its last regions start to come back."""
        with self._lock:
            self._retire()
            self._want_before(key, self._number + 1)


def _ticket_of(tensor: Tensor) -> Ticket | None:
    """The ticket of this very tensor with this very value.

    The mark lies below Python's object and dies with the tensor: an address that is used again can't be taken for it.
    """
    found = tensor._get_user_data(_MARK)
    if type(found) is not tuple or tensor._grad_node is None:
        return None
    return found[0]() if found[1] == _value_of(tensor) else None


def _value_of(tensor: Tensor) -> tuple[int, int, int]:
    """A write through an index leaves another graph node (and another storage), other writes another version."""
    return tensor._grad_node._unique_id(), tensor._output_index, tensor._version
