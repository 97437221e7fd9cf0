"""What autograd holds after a forward, region by region, and how often each region ran.

Counted where tensors are packed: a base hook around everything, and the hooks of this package, which override it.
A tensor is held as long as the token that is packed beside it lives. The proof that these figures are right is an
independent one (reuse of freed storage, in the tests), since hooks can't check themselves.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from mindspore import Tensor

from hp_memory.activation import native
from hp_memory.activation.distributed import Part
from hp_memory.activation.frames import is_recomputing
from hp_memory.host.ticket import Ticket

REASONS = (
    "saved for backward",
    "input not rebuildable",
    "backend copied it",
    "block input",
    "output kept for replay",
    "not on the host",
)
"""Why a storage is held; of several reasons for one storage the first in this order is reported.

``not on the host``: of an offloaded region, and its copy out isn't complete, or it is back.
"""


@dataclass(frozen=True)
class Held:
    """One storage that the graph keeps alive. ``kind`` is MEASURED: a probe saw it. ``nbytes`` is the storage's."""

    region: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    storage: int
    reason: str


@dataclass
class Runs:
    """How often a region was called in forwards, ran its body, and was replayed with its body.

    ``spared`` counts the replays that had given all that was needed before they came to it, and ended.
    """

    forward: int = 0
    body: int = 0
    replays: int = 0
    spared: int = 0


class _Token:
    """Lives as long as what it stands for is held; ``tensor`` is what autograd was given, None for kept outputs."""

    __slots__ = ("__weakref__", "tensor")

    def __init__(self) -> None:
        self.tensor: Tensor | None = None

    def now(self, held: Held) -> Held | None:
        """``held`` at the address it has now, or None if somebody emptied the storage, as FSDP does between uses."""
        if self.tensor is None:
            return held
        storage = self.tensor.untyped_storage()
        if not storage.size():
            return None
        address = storage.data_ptr()
        return held if address == held.storage else replace(held, storage=address)


class Kept:
    """A packed tensor with the token of its entry."""

    __slots__ = ("tensor", "token")

    def __init__(self, tensor: Tensor, token: _Token) -> None:
        self.tensor = token.tensor = tensor
        self.token = token


@dataclass
class Observation:
    """Yielded by :func:`observe`. ``held`` is what lives now, or what lived when the first backward began."""

    runs: dict[str, Runs] = field(default_factory=dict)
    _entries: list = field(default_factory=list)
    _frozen: list[Held] | None = None

    @property
    def held(self) -> list[Held]:
        """One entry per storage, parameters excluded, in the order they were saved."""
        return self._frozen if self._frozen is not None else self._without_parameters()

    def freeze(self) -> None:
        """Fixes ``held`` as it is now; the first read of a backward does it by itself."""
        if self._frozen is None:
            self._frozen = self._without_parameters()

    def living(self) -> Iterator[Held]:
        """What lives at this moment, also during and after backwards: an entry per saving, parameters included."""
        for ref, held in self._entries:
            found = ref() if held.nbytes else None
            if type(found) is Ticket:
                if found.on_device:
                    # Back, it has another storage, and its old one may be somebody else's.
                    yield held if found.source is not None else replace(held, storage=-id(found))
            elif found is not None and (now := found.now(held)) is not None:
                yield now

    def moved(self, ticket: Ticket, tensor: Tensor, region: str) -> None:
        """Notes that ``tensor`` is held whenever its ticket says that the device holds it."""
        self._entries.append((weakref.ref(ticket), self._held(tensor, region, "not on the host")))

    def _without_parameters(self) -> list[Held]:
        excluded = native.parameter_storages()
        found: dict[int, Held] = {}
        for held in self.living():
            if held.storage in excluded:
                continue
            known = found.get(held.storage)
            if known is None or REASONS.index(held.reason) < REASONS.index(known.reason):
                found[held.storage] = held
        return list(found.values())

    def called(self, region: str, replaying: bool = False) -> None:
        """Counts a call that runs the body."""
        runs = self.runs.setdefault(region, Runs())
        runs.body += 1
        if replaying:
            runs.replays += 1
        else:
            runs.forward += 1

    def spared(self, regions: Iterable[str]) -> None:
        """Counts calls that a replay which ended early didn't come to."""
        for region in regions:
            self.runs.setdefault(region, Runs()).spared += 1

    def keep(self, tensor: Tensor, region: str, reason: str) -> _Token:
        """Notes that ``tensor`` is held from now on, as long as the returned token lives."""
        token = _Token()
        self._entries.append((weakref.ref(token), self._held(tensor, region, reason)))
        return token

    @staticmethod
    def _held(tensor: Tensor, region: str, reason: str) -> Held:
        storage = tensor.untyped_storage()
        if tensor.size and not storage.data_ptr():
            raise RuntimeError("tensors on the meta device have no storage to observe; the dry run counts those")
        shape, dtype = tuple(tensor.shape), str(tensor.dtype).lower()
        return Held(region, "MEASURED", shape, dtype, storage.nbytes(), storage.data_ptr(), reason)


class _Labels(threading.local):
    stack: tuple = (("outside regions", "saved for backward"),)


_labels = _Labels()
active: Observation | None = None
"""The running observation of this process; read on hot paths, so it is a plain module attribute."""


@contextlib.contextmanager
def label(region: str, reason: str = "saved for backward") -> Iterator[None]:
    """What is saved inside belongs to ``region``, for the observation's base hook."""
    before = _labels.stack
    _labels.stack = (*before, (region, reason))
    try:
        yield
    finally:
        _labels.stack = before


def _base_pack(tensor: Tensor) -> Any:
    if active is None:
        return native.detached(tensor)
    region, reason = _labels.stack[-1]
    return Kept(native.detached(tensor), active.keep(tensor, region, reason))


def base_unpack(packed: Any) -> Any:
    if active is not None:
        active.freeze()
    return packed.tensor if type(packed) is Kept else packed


def plain(region: str, body: Callable, args: tuple, kwargs: dict) -> Any:
    """Calls a body that isn't excluded here: replayed, or outside every checkpoint."""
    if active is None:
        return body(*args, **kwargs)
    active.called(region, is_recomputing())
    with label(region):
        return body(*args, **kwargs)


def kept_outputs(values: list, region: str) -> list | None:
    """Tokens for the outputs a record holds for replays, None while nobody observes."""
    if active is None:
        return None
    kept = (value.local if isinstance(value, Part) else value for value in values)
    return [active.keep(value, region, "output kept for replay") for value in kept if isinstance(value, Tensor)]


@contextlib.contextmanager
def observe() -> Iterator[Observation]:
    """Measures what the graph of the forwards run inside holds. One at a time per process.

    Works with or without wrappers; under ``checkpoint`` it makes the block inputs visible too. Read ``held`` between
    forward and backward, or after the backward: it is fixed when backward reads its first tensor.
    """
    global active
    if active is not None:
        raise RuntimeError("an observation is already running in this process; end it before starting another")
    active = Observation()
    try:
        with native.hooks(_base_pack, base_unpack):
            yield active
    finally:
        active = None
