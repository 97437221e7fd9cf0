"""Which operations of a replay somebody needs, and the storages they read.

An operation that runs again is *live* if something it makes is

* saved by an operation that runs again (backward's node takes it from the replay),
* saved by a region that doesn't run again, and made again (that region's backward takes it from the replay),
* read by a live operation, or by the host,
* or if it writes into something that is one of these.

All others are dead: views, reshapes, pads and casts between saved regions, whose results only saved regions take, and
those don't run. Going through the forward backwards, every operation's readers are known before it is met, so one pass
finds the smallest set that is closed under these rules. Storages stand for tensors: a view is its base.

Everything is computed for many choices of replayed regions at once: a value that depends on the choice is an array of
booleans with one entry per choice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hp_memory.estimate.tracing.record import BARE, HOST_READ, LayerTrace


@dataclass(frozen=True)
class Choices:
    """Some choices of replayed regions of one layer.

    Attributes:
        replayed: for each region that may be replayed, in which choices it is.
        boundary: in which choices anything is: there the operations between regions run again too.
    """

    replayed: Mapping[str, np.ndarray]
    boundary: np.ndarray

    def again(self, region: str) -> np.ndarray:
        """In which choices a region's operations run again."""
        if region == BARE:
            return self.boundary
        found = self.replayed.get(region)
        return np.zeros_like(self.boundary) if found is None else found

    def __len__(self) -> int:
        return len(self.boundary)


def choice(replayed: Collection[str]) -> Choices:
    """The single choice that replays these regions; without any there is no boundary."""
    yes = np.ones(1, bool)
    return Choices(dict.fromkeys(replayed, yes), np.array([bool(replayed)]))


def every_choice(regions: Sequence[str]) -> Choices:
    """All subsets of these regions: bit i of a choice's number says that region i is replayed."""
    return choices_of(regions, np.arange(1 << len(regions)))


def choices_of(regions: Sequence[str], masks: np.ndarray) -> Choices:
    """Some of them, by their numbers."""
    return Choices({region: (masks >> i & 1).astype(bool) for i, region in enumerate(regions)}, masks > 0)


def made_in(trace: LayerTrace, number: int) -> str:
    """The region whose run makes a storage; a checkpoint makes a backend's copy of an argument from that argument."""
    source = trace.copies.get(number)
    return trace.storages[number if source is None else source].region


@dataclass(frozen=True)
class Live:
    """What is live under some choices.

    Attributes:
        needed: for a storage, in which choices the replay reads its value for somebody.
        operations: for each operation of the forward, in which choices it runs again and is live.
    """

    needed: Mapping[int, np.ndarray]
    operations: tuple[np.ndarray, ...]


def live(trace: LayerTrace, choices: Choices) -> Live:
    """The closure of the rules above."""
    never = np.zeros(len(choices), bool)
    needed: dict[int, np.ndarray] = {}

    def need(number: int, when: np.ndarray) -> None:
        needed[number] = needed.get(number, never) | when

    for item in trace.saved:
        again = choices.again(item.region)
        need(item.storage, again | choices.again(made_in(trace, item.storage)))
    forward, sources = trace.of_phase("forward"), hidden_sources(trace)
    found = []
    for op in reversed(forward):
        wanted = choices.boundary if op.name == HOST_READ else never
        for number in op.writes:
            wanted = wanted | needed.get(number, never)
        wanted = wanted & choices.again(op.region)
        found.append(wanted)
        for number in op.reads:
            for source in (number, *sources.get(number, ())):
                need(source, wanted)
    return Live(needed, tuple(reversed(found)))


def hidden_sources(trace: LayerTrace) -> dict[int, tuple[int, ...]]:
    """What a copy that the backend made may have been copied from: dispatch sees neither the view nor the copy.

    Where it isn't an argument of the region, whatever the same region made before and nothing else reads is taken.
    """
    if "hidden sources" not in trace.memo:
        trace.memo["hidden sources"] = _hidden_sources(trace)
    return trace.memo["hidden sources"]


def _hidden_sources(trace: LayerTrace) -> dict[int, tuple[int, ...]]:
    forward = trace.of_phase("forward")
    read = {number for op in forward for number in op.reads}
    unread: dict[str, list[int]] = {}
    found: dict[int, tuple[int, ...]] = {}
    for op in forward:
        for number in op.reads:
            if number in trace.copies:
                source = trace.copies[number]
                found[number] = (source,) if source is not None else tuple(unread.get(op.region, ()))
        unread.setdefault(op.region, []).extend(n for n in op.writes if n not in read)
    return found
