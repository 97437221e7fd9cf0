"""Which outputs of saved regions a replay needs: liveness over the operations of one forward. Plain data, no MindSpore.

A replay runs every operation outside saved regions again, and hands out what the regions returned. An output has to be
kept only if a *live* operation reads it. docs/activation.md has the rule and its proof.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Output = tuple[int, int]
"""(saved call, leaf): one tensor that a saved region returned."""

Value = int | Output
"""What an operation reads: what the operation of that number made, or an output of a saved region."""


@dataclass
class Operation:
    """One operation outside saved regions.

    Attributes:
        reads: the values among its operands.
        calls: saved regions that were called before it.
        live: it has to run on real values whatever becomes of its results: it writes in place, or draws, or indexes.
    """

    name: str
    reads: tuple[Value, ...]
    calls: int
    live: bool = False


@dataclass(frozen=True)
class Needs:
    """What the trace of a forward says about its saved regions' outputs.

    Attributes:
        readers: every output that has to be kept, and what reads it; None where something may read it unseen.
        until: of the others, how many saved calls precede the last dead operation that reads it, also indirectly.
        released: how many saved calls have been made when an output was given to something for the last time.
        dead: names of the operations that read outputs which aren't kept, and needn't have their values.
    """

    readers: dict[Output, str | None]
    until: dict[Output, int]
    released: dict[Output, int]
    dead: frozenset[str]


@dataclass
class Trace:
    """The operations of a forward outside saved regions, in order, and the values that are needed for themselves.

    Attributes:
        needed: value -> what needs it: a slot that backward reads, the host, a saved region that has it made again.
        taken: (saved call, value) for each value that a saved region was given.
        all_needed: why every output has to be kept, None if that can be told apart.
    """

    operations: list[Operation] = field(default_factory=list)
    needed: dict[Value, str | None] = field(default_factory=dict)
    taken: list[tuple[int, Value]] = field(default_factory=list)
    all_needed: str | None = None

    def add(self, name: str, reads: Sequence[Value], calls: int, live: bool = False) -> int:
        """Notes an operation; returns its number, by which later ones read what it makes."""
        self.operations.append(Operation(name, tuple(dict.fromkeys(reads)), calls, live))
        return len(self.operations) - 1

    def need(self, value: Value, reader: str | None) -> None:
        """Notes that the value itself has to be there in a replay."""
        self.needed.setdefault(value, reader)

    def settle(self, outputs: Sequence[Output]) -> Needs:
        """Goes through the operations backwards, then follows what isn't kept forwards to its last reader."""
        needed = dict(self.needed)
        if self.all_needed is not None:
            needed.update({output: None for output in outputs if output not in needed})
        alive = self._alive(needed)
        until, released, dead = self._follow(needed, alive)
        readers = {output: needed[output] for output in outputs if output in needed}
        return Needs(readers, until, released, frozenset(dead))

    def _alive(self, needed: dict[Value, str | None]) -> list[bool]:
        """Which operations are live; completes ``needed`` with what those read."""
        alive = [False] * len(self.operations)
        for number in reversed(range(len(self.operations))):
            operation = self.operations[number]
            if operation.live or number in needed:
                alive[number] = True
                for value in operation.reads:
                    needed.setdefault(value, operation.name)
        return alive

    def _follow(self, needed: dict, alive: list[bool]) -> tuple[dict[Output, int], dict[Output, int], set[str]]:
        sources: dict[Value, set[Output]] = {}
        until: dict[Output, int] = {}
        dead: set[str] = set()
        for number, operation in enumerate(self.operations):
            if alive[number]:
                continue
            found: set[Output] = set()
            for value in operation.reads:
                found |= _sources(value, sources, needed)
            sources[number] = found
            for output in found:
                until[output] = max(until.get(output, 0), operation.calls)
            if found:
                dead.add(operation.name)
        released = dict(until)
        for call, value in self.taken:
            for output in _sources(value, sources, needed):
                released[output] = max(released.get(output, 0), call + 1)
        return until, released, dead


def _sources(value: Value, sources: dict[Value, set[Output]], needed: dict) -> set[Output]:
    """The outputs without values that ``value`` is, or was made of."""
    if isinstance(value, int):
        return sources.get(value, set())
    return set() if value in needed else {value}
