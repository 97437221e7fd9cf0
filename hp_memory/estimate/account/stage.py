"""One rank of the pipeline: its layers with their layouts, and its memory at every step of the schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hp_memory.estimate.account import liveness
from hp_memory.estimate.account.held import HeldStorage, held, held_by
from hp_memory.estimate.account.host import on_host
from hp_memory.estimate.tracing.record import LayerTrace
from hp_memory.layout import Layout
from hp_memory.pipeline.schedule import COMPUTE, Op, Schedule, Step
from hp_memory.pipeline.simulate import Held, levels


@dataclass(frozen=True)
class Unit:
    """One layer (or end) of a chunk under its layout, in bytes per micro-batch.

    Attributes:
        name: ``layer 7 (moe)`` or ``head``.
        held: after its forward.
        replayed: after a replay ahead of backward: everything backward reads.
        waiting: between dx and dw, beside ``replayed``.
        forward, backward: working sets of the two, including what is held.
        parts: what ``held`` consists of: bytes by region and reason.
        moved: what waits on the host instead, and isn't in ``held``.
    """

    name: str
    layer: int | None
    held: int
    replayed: int
    waiting: int
    forward: liveness.Peak
    backward: liveness.Peak
    parts: Mapping[tuple[str, str], int]
    moved: int = 0

    @property
    def by_region(self) -> dict[str, int]:
        """What ``held`` consists of, by region; the block's input and what lies between regions have names too."""
        found: dict[str, int] = {}
        for (region, _), nbytes in self.parts.items():
            found[region] = found.get(region, 0) + nbytes
        return found

    @property
    def working_forward(self) -> int:
        """The working set of the forward."""
        return self.forward.nbytes

    @property
    def working_backward(self) -> int:
        """The working set of replay and backward."""
        return max(self.backward.nbytes, self.replayed)

    @property
    def gradients(self) -> int:
        """The part of the backward's working set that isn't saved tensors."""
        return max(self.backward.nbytes - self.replayed, 0)


@dataclass(frozen=True)
class Moment:
    """The most that a rank's activations take within one step of the schedule.

    Attributes:
        step: the schedule's step.
        nbytes: of all micro-batches in flight and of what runs.
        unit: where it happens.
        peak: the working set of that unit.
        after: what stays when the step is over.
    """

    step: Step
    nbytes: int
    unit: str
    peak: liveness.Peak
    after: int


def unit_of(trace: LayerTrace, name: str, layer: int | None, layout: Layout | None, least: int = 0) -> Unit:
    """A layer under a layout; ``None`` means that nothing is replayed (the ends of the model).

    ``least``: bytes of the smallest tensor that moves to the host.
    """
    replayed = frozenset(layout.replays(trace.regions)) if layout else frozenset()
    keep = bool(layout and layout.keep_outputs)
    entries = held(trace, layout) if layout else held_by(trace, replayed)
    away = on_host(trace, layout, entries, least) if layout else set()
    parts = parts_of(trace, (entry for entry in entries if entry.storage not in away))
    return Unit(
        name,
        layer,
        sum(parts.values()),
        liveness.saved_bytes(trace, replayed, keep),
        liveness.gradients_for_dw(trace),
        liveness.forward_peak(trace, replayed, keep),
        liveness.backward_peak(trace, replayed, keep),
        parts,
        trace.nbytes(away),
    )


def parts_of(trace: LayerTrace, entries: Iterable[HeldStorage]) -> dict[tuple[str, str], int]:
    """Held bytes by region and reason."""
    parts: dict[tuple[str, str], int] = {}
    for entry in entries:
        region = "block input" if entry.reason == "block input" else entry.region or "between regions"
        key = (region, entry.reason)
        parts[key] = parts.get(key, 0) + trace.storages[entry.storage].nbytes
    return parts


def moments(schedule: Schedule, rank: int, chunks: dict[int, Sequence[Unit]]) -> list[Moment]:
    """The peak within each compute step of a rank, in order.

    A whole backward frees layer by layer from the last; a split one keeps everything until dw.
    """
    amounts = {c: _held(units) for c, units in chunks.items()}
    after = levels(schedule, rank, lambda chunk, _: amounts[chunk])
    found, before = [], 0.0
    prefired: set[tuple[int, int]] = set()
    for step, level in zip(schedule.only(COMPUTE).rows[rank], after, strict=True):
        own = _own(step, amounts[step.chunk], prefired)
        others = int(before) - own
        found.append(_within(step, others, chunks[step.chunk], (step.chunk, step.micro) in prefired, int(level)))
        if step.op == "R":
            prefired.add((step.chunk, step.micro))
        before = level
    return found


def _held(units: Sequence[Unit]) -> Held:
    replayed = sum(u.replayed for u in units)
    return Held(sum(u.held for u in units), replayed, replayed + sum(u.waiting for u in units))


def _own(step: Step, amounts: Held, prefired: set[tuple[int, int]]) -> int:
    """What this step's own micro-batch held before the step."""
    if step.op == "F":
        return 0
    if step.op == "W":
        return int(amounts.after_dx)
    return int(amounts.replayed if (step.chunk, step.micro) in prefired else amounts.forward)


def _within(step: Step, others: int, units: Sequence[Unit], prefired: bool, after: int) -> Moment:
    best: Moment | None = None
    for i, unit in enumerate(units):
        own = sum(getattr(units[j], amount) for j, amount in demand(step.op, prefired, len(units), i))
        # While a layer runs its neighbour's tensors are on their way: out behind a forward, in ahead of a backward.
        own += units[i - 1].moved if i and step.op in ("F", "R", "B", "BW") else 0
        if best is None or others + own > best.nbytes:
            peak = unit.forward if step.op == "F" else unit.backward
            best = Moment(step, others + own, unit.name, peak, after)
    assert best is not None
    return best


def demand(op: Op, prefired: bool, count: int, i: int) -> list[tuple[int, str]]:
    """What a micro-batch takes while unit ``i`` of ``count`` runs ``op``: pairs (unit, attribute of ``Unit``).

    The search adds up the same pairs, so that what it is told fits is what the timeline shows.
    """
    ahead, later = range(i), range(i + 1, count)
    if op == "F":
        return [(i, "working_forward"), *((j, "held") for j in ahead)]
    if op == "R":
        return [*((j, "replayed") for j in (*ahead, i)), *((j, "held") for j in later)]
    if op == "BW":
        stay = "replayed" if prefired else "held"
        return [(i, "working_backward"), *((j, stay) for j in ahead)]
    everyone = [(j, "replayed") for j in (i, *later)]
    everyone += [(j, "replayed" if prefired or op == "W" else "held") for j in ahead]
    waiting = [(j, "waiting") for j in (range(count) if op == "W" else later)]
    return [*everyone, *waiting, (i, "gradients")]
