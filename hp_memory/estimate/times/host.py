"""Copies to the host and back over a rank's step: two lanes beside compute, and what compute waits for them.

The rules are those of ``hp_memory.host.window``, layer by layer: a layer's tensors leave when its forward has run, and
a forward is at most one layer ahead of its copies; they start to come back when the backward of the layer behind it
starts, those of a chunk's last layer one step earlier. What is wanted back at once stays. Each lane has the whole link;
the two directions don't share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hp_memory.estimate.times.layer import LayerTime
from hp_memory.pipeline.simulate import Span

RETURNS = ("R", "B", "BW")


@dataclass(frozen=True)
class Moving:
    """One layer of a chunk: the bytes that leave per micro-batch, and its seconds."""

    nbytes: int
    time: LayerTime


@dataclass(frozen=True)
class Copy:
    """One layer's copy for one micro-batch."""

    lane: Literal["out", "in"]
    begin: float
    end: float
    nbytes: int


@dataclass
class HostCopies:
    """The copies of one rank's step, in the order in which they were asked for.

    Attributes:
        waits: seconds that compute waited for copies.
        moved: bytes that left.
        levels: (seconds, bytes on the host) whenever the latter changes.
    """

    copies: list[Copy] = field(default_factory=list)
    waits: float = 0.0
    moved: int = 0
    levels: list[tuple[float, int]] = field(default_factory=list)

    @property
    def peak(self) -> int:
        """The most bytes on the host."""
        return max((nbytes for _, nbytes in self.levels), default=0)


class _Rank:
    """One rank's clock, and when each lane is free."""

    def __init__(self, chunks: Mapping[int, Sequence[Moving]], bandwidth: float) -> None:
        self.chunks, self.bandwidth = chunks, bandwidth
        self.found = HostCopies()
        self.clock = self.out_free = self.in_free = 0.0
        self.back: dict[tuple[int, int, int], float] = {}  # when a layer's tensors are back
        self.gone: dict[tuple[int, int, int], float] = {}  # when their copy out is complete
        self.on_host = 0

    def wait_until(self, moment: float) -> None:
        self.found.waits += max(0.0, moment - self.clock)
        self.clock = max(moment, self.clock)

    def leave(self, at: tuple[int, int, int], nbytes: int) -> None:
        begin = max(self.clock, self.out_free)
        self.out_free = self.gone[at] = begin + nbytes / self.bandwidth
        self.found.copies.append(Copy("out", begin, self.out_free, nbytes))
        self.found.moved += nbytes
        self._host(nbytes)

    def ask(self, at: tuple[int, int, int]) -> None:
        """Starts the way back, unless it has begun or nothing left."""
        if at in self.back or at not in self.gone:
            return
        nbytes = self.chunks[at[0]][at[2]].nbytes
        begin = max(self.clock, self.in_free, self.gone[at])
        self.in_free = self.back[at] = begin + nbytes / self.bandwidth
        self.found.copies.append(Copy("in", begin, self.in_free, nbytes))

    def _host(self, change: int) -> None:
        self.on_host += change
        self.found.levels.append((self.clock, self.on_host))

    def forward(self, chunk: int, micro: int, stays: bool) -> None:
        """``stays``: this micro-batch's backward is next, so its last layer doesn't leave."""
        layers, behind = self.chunks[chunk], 0.0
        for i, layer in enumerate(layers):
            self.clock += layer.time.forward.total
            self.wait_until(behind)
            if layer.nbytes and not (stays and i == len(layers) - 1):
                self.leave((chunk, micro, i), layer.nbytes)
                behind = self.gone[chunk, micro, i]

    def backward(self, chunk: int, micro: int, op: str, replays: bool) -> None:
        layers = self.chunks[chunk]
        for i in range(len(layers) - 1, -1, -1):
            self.ask((chunk, micro, i))
            self.wait_until(self.back.get((chunk, micro, i), 0.0))
            if i:
                self.ask((chunk, micro, i - 1))
            time = layers[i].time
            self.clock += time.replay.total if replays or op == "R" else 0.0
            self.clock += time.dx.total if op in ("B", "BW") else 0.0
            self.clock += time.dw.total if op in ("W", "BW") else 0.0

    def free(self, chunk: int, micro: int) -> None:
        """The micro-batch's last backward is over: its host memory is free."""
        for i in range(len(self.chunks[chunk])):
            if self.gone.pop((chunk, micro, i), None) is not None:
                self._host(-self.chunks[chunk][i].nbytes)


def copies_of(spans: Sequence[Span], chunks: Mapping[int, Sequence[Moving]], bandwidth: float) -> HostCopies:
    """The copies of one rank.

    Args:
        spans: its compute steps, in order, as they would run without copies; a wait delays what follows, and a bubble
            takes the delay up.
        chunks: the layers of each of its chunks.
        bandwidth: bytes per second of each direction.
    """
    rank, prefired = _Rank(chunks, bandwidth), any(span.step.op == "R" for span in spans)
    split = any(span.step.op == "W" for span in spans)
    for span, following in zip(spans, [*spans[1:], None], strict=True):
        step, nxt = span.step, following.step if following else None
        rank.clock = max(rank.clock, span.start)
        returns = nxt is not None and nxt.op in RETURNS
        own = nxt is not None and returns and (nxt.chunk, nxt.micro) == (step.chunk, step.micro)
        if nxt is not None and returns and not own:
            rank.ask((nxt.chunk, nxt.micro, len(chunks[nxt.chunk]) - 1))
        if step.op == "F":
            rank.forward(step.chunk, step.micro, stays=own)
            continue
        rank.backward(step.chunk, step.micro, step.op, replays=not prefired and step.op in ("B", "BW"))
        if step.op == ("W" if split else "BW"):
            rank.free(step.chunk, step.micro)
    return rank.found
