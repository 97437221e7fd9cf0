"""A layer with its plan really installed, beside what the rules say it holds and replays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from hp_memory.estimate.account.held import held
from hp_memory.estimate.tracing.record import BARE, LayerTrace, Storage
from hp_memory.layout import REGIONS_OF_KIND, ActivationPlan, LayerPlan

Storages = tuple[tuple[tuple[int, ...], str, int], ...]


@dataclass(frozen=True)
class LayerCheck:
    """A layer with its plan installed: what the real wrappers held, beside what the rules say.

    Attributes:
        held: storages (shape, dtype, bytes) that the wrappers kept.
        replay_flops: FLOPs of the replay that ran.
        receipt: the installer's words.
    """

    kind: str
    layout: str
    held: Storages
    expected: Storages
    replay_flops: int
    expected_replay_flops: int
    receipt: str = field(default="", compare=False)

    @property
    def agrees(self) -> bool:
        """Whether both ways of counting found the same."""
        return self.held == self.expected and self.replay_flops == self.expected_replay_flops


def distinct_layouts(plan: ActivationPlan) -> list[LayerPlan]:
    """One layer for each kind and layout of the plan, dense ones first."""
    found: dict[tuple, LayerPlan] = {}
    for layer in plan.layers:
        actions = tuple(sorted(layer.layout.actions.items()))
        found.setdefault((layer.kind, layer.layout.default, actions, layer.layout.spans), layer)
    return sorted(found.values(), key=lambda p: ("dense", "moe", "mtp").index(p.kind))


def saved_regions(layer: LayerPlan) -> frozenset[str]:
    """The regions that a layer excludes from its replay; none where nothing is replayed."""
    regions = REGIONS_OF_KIND[layer.kind]
    saved = frozenset(r for r in regions if layer.layout.action(r) == "save")
    return saved if len(saved) < len(regions) else frozenset()


def compare(trace_: LayerTrace, plain: LayerTrace, layer: LayerPlan, installed: Any, receipt: str) -> LayerCheck:
    """What the wrappers kept in ``trace_``, beside what the rules say from the trace without a plan."""
    replayed = layer.layout.replays(plain.regions)
    kept = set(trace_.inputs[:1]) if replayed else set()
    kept |= {item.storage for item in ((*installed.saved, *installed.outputs) if replayed else trace_.saved)}
    found = [trace_.storages[n] for n in kept if trace_.activation(n)]
    # What a function keeps by itself is no wrapper's doing.
    by_rule = (entry for entry in held(plain, layer.layout) if entry.reason != "kept outside the hooks")
    wanted = [plain.storages[entry.storage] for entry in by_rule]
    return LayerCheck(
        layer.kind,
        layer.layout.name,
        _in_order(found),
        _in_order(wanted),
        trace_.flops("replay"),
        plain.flops("forward", (*replayed, BARE)) if replayed else 0,
        receipt,
    )


def _in_order(storages: Iterable[Storage]) -> Storages:
    return tuple(sorted((s.shape, s.dtype, s.nbytes) for s in storages))
