"""Whether what a layout replays makes the layer hold less."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hp_memory.estimate.account.held import held_by
from hp_memory.estimate.tracing.record import BARE, LayerTrace
from hp_memory.layout import ActivationPlan, Layout
from hp_memory.layout.regions import Kind


@dataclass(frozen=True)
class NotWorth:
    """Regions of one kind of layer that are replayed for nothing.

    Attributes:
        instead: bytes the layer would hold with them saved, no more than ``held``.
        flops: of their replay.
    """

    kind: str
    layout: str
    regions: tuple[str, ...]
    held: int
    instead: int
    flops: int

    def in_words(self) -> str:
        """One line."""
        less = "no less" if self.held == self.instead else f"{(self.held - self.instead) / 2**20:.1f} MiB more"
        return (
            f"{self.layout}, {self.kind} layers: replaying {', '.join(self.regions)} holds {less} than saving "
            f"{'it' if len(self.regions) == 1 else 'them'} and replays {self.flops / 1e12:.2f} TFLOPs a layer"
        )


def not_worth(trace: LayerTrace, layout: Layout) -> NotWorth | None:
    """The regions that could be saved instead without holding more; None if each replay pays.

    Regions are tried one by one, latest first, each beside those found before; then all of them at once.
    """
    replayed = layout.replays(trace.regions)
    before = bytes_held(trace, replayed, layout)
    if not replayed:
        return None
    left = list(replayed)
    for region in reversed(replayed):
        fewer = [r for r in left if r != region]
        if bytes_held(trace, fewer, layout) <= before:
            left = fewer
    if bytes_held(trace, (), layout) <= before:
        left = []
    if len(left) == len(replayed):
        return None
    wasted = tuple(r for r in replayed if r not in left)
    flops = trace.flops("forward", wasted if left else (*wasted, BARE))
    return NotWorth(trace.kind, layout.name, wasted, before, bytes_held(trace, left, layout), flops)


def bytes_held(trace: LayerTrace, replayed: tuple[str, ...] | list[str], layout: Layout) -> int:
    """What one layer holds with these regions replayed."""
    return trace.nbytes(entry.storage for entry in held_by(trace, replayed, layout.keep_outputs))


def not_worth_of(traces: Mapping[Kind, LayerTrace], plan: ActivationPlan) -> list[NotWorth]:
    """The same for each kind and layout of a plan, once."""
    found: dict[tuple, NotWorth | None] = {}
    for layer in plan.layers:
        key = (layer.kind, layer.layout.name, layer.layout.replays(traces[layer.kind].regions))
        if key not in found:
            found[key] = not_worth(traces[layer.kind], layer.layout)
    return [entry for entry in found.values() if entry is not None]
