"""Puts a plan into a model: wraps each block and each region once, and returns a receipt of what was done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

import mindspore as ms
from mindspore import nn

from hp_memory.activation import checkpoint_exclude_wrapper, checkpoint_wrapper, offload_wrapper, region
from hp_memory.errors import InstallError
from hp_memory.host.settings import HostSettings
from hp_memory.host.window import Window
from hp_memory.layout import ALWAYS_SAVED, ActivationPlan, LayerPlan
from hp_memory.models.sites import BlockSites, Site

How = Literal["boundary", "saved", "saved as one", "offloaded", "replayed", "named"]
_MARK, _WINDOW = "_hp_memory_receipt", "_hp_memory_window"


@dataclass(frozen=True)
class Wrappers:
    """What a place is wrapped with; called with the target and ``name=``.

    ``boundary`` is given ``early_stop=`` too, ``saved`` and ``offloaded`` ``save_output=``, and ``offloaded`` the
    ``window=`` of the model.
    """

    boundary: Callable[..., Any] = checkpoint_wrapper
    saved: Callable[..., Any] = checkpoint_exclude_wrapper
    named: Callable[..., Any] = region
    offloaded: Callable[..., Any] = offload_wrapper


NATIVE = Wrappers()


@dataclass(frozen=True)
class Wrapped:
    """One place that was wrapped: its path in the model, the regions it covers, and how."""

    path: str
    layer: int
    regions: tuple[str, ...]
    how: How


@dataclass
class Receipt:
    """What an installation really did.

    Attributes:
        plan_hash: hash of the plan that was applied.
        wrapped: every place that was wrapped, in forward order.
        not_applied: what the plan names and this model lacks, with the reason.
    """

    plan_hash: str
    wrapped: list[Wrapped] = field(default_factory=list)
    not_applied: dict[str, str] = field(default_factory=dict)

    def count(self, how: How) -> int:
        """How many places were wrapped this way."""
        return sum(w.how == how for w in self.wrapped)

    def in_words(self) -> str:
        """One line: the counts, then what could not apply."""
        kinds: tuple[How, ...] = ("boundary", "saved", "saved as one", "offloaded", "replayed", "named")
        counts = ", ".join(f"{self.count(k)} {k}" for k in kinds if self.count(k))
        absent = "".join(f"; no {name}: {why}" for name, why in self.not_applied.items())
        return f"plan {self.plan_hash}: wrapped {len(self.wrapped)} places ({counts}){absent}"

    def to_dict(self) -> dict[str, Any]:
        """The receipt as JSON-ready data."""
        return asdict(self)


def install(
    model: nn.Cell,
    plan: ActivationPlan,
    blocks: Sequence[BlockSites],
    wrappers: Wrappers = NATIVE,
    host: HostSettings | None = None,
) -> Receipt:
    """Applies ``plan`` to ``model`` in place.

    Everything is checked before the first change, so that a refusal leaves the model as it was.

    Args:
        model: the model; parameter names, checkpoint keys and ``cells_and_names`` stay what they are.
        plan: made for this model's fingerprint; a pipeline stage may hold only some of its layers.
        blocks: the region map: where each block and each of its regions is.
        wrappers: other wrappers than this package's own, or these with further options.
        host: how the plan's offloaded regions use the host; None for the defaults.

    Raises:
        InstallError: a second installation, a block the plan doesn't know, or a region without a place to wrap.
    """
    if getattr(model, _MARK, None) is not None:
        raise InstallError(f"plan {getattr(model, _MARK).plan_hash} is installed in this model already")
    if ms.get_context("mode") == ms.GRAPH_MODE:
        why = "set mindspore.set_context(mode=mindspore.PYNATIVE_MODE) first, or use a graph plan"
        raise InstallError(f"an activation plan works in PyNative, and MindSpore is in GRAPH_MODE: {why}")
    if not blocks:
        raise InstallError("the region map names no block: nothing would be wrapped")
    digest = getattr(model, "fingerprint_digest", plan.fingerprint.digest)
    if digest != plan.fingerprint.digest:
        raise InstallError(f"the plan is for model {plan.fingerprint.digest}, this one is {digest}")
    work = [(block, _layer_plan(plan, block)) for block in blocks]
    _refuse_shared_places(blocks)
    receipt = Receipt(plan.hash(), not_applied=dict(plan.fingerprint.absent))
    window = None
    if any(plan.offloads(layer.layer) for _, layer in work):
        window = Window.of(host or HostSettings())
        wrappers = replace(wrappers, offloaded=partial(wrappers.offloaded, window=window))
    for block, layer in work:
        receipt.wrapped += _install_block(block, layer, wrappers)
    object.__setattr__(model, _MARK, receipt)
    object.__setattr__(model, _WINDOW, window)
    return receipt


def receipt_of(model: nn.Cell) -> Receipt | None:
    """The receipt of the plan installed in ``model``, or None."""
    return getattr(model, _MARK, None)


def window_of(model: nn.Cell) -> Window | None:
    """Where the offloaded regions of ``model`` wait for backward; None without a plan that has any."""
    return getattr(model, _WINDOW, None)


def _layer_plan(plan: ActivationPlan, block: BlockSites) -> LayerPlan:
    if block.layer >= len(plan.layers) or plan.layers[block.layer].kind != block.kind:
        raise InstallError(f"{block.path} is layer {block.layer} ({block.kind}); the plan is for another model")
    layer = plan.layers[block.layer]
    placed = {r for site in block.sites for r in site.regions}
    missing = [r for r in plan.regions(block.layer) if r not in placed]
    if missing:
        raise InstallError(f"{block.path}: the region map has no place for {', '.join(missing)}")
    for site in block.sites:
        if not hasattr(site.owner, site.attr):
            raise InstallError(f"{site.path}: this model has no attribute {site.attr!r} there")
        if getattr(getattr(site.owner, site.attr), "_hp_part", None) is not None:
            raise InstallError(f"{site.path} is wrapped already: a region would be wrapped twice")
    return layer


def _refuse_shared_places(blocks: Sequence[BlockSites]) -> None:
    seen: dict[tuple[int, str], str] = {}
    for site in (s for block in blocks for s in block.sites):
        place = (id(site.owner), site.attr)
        if place in seen:
            raise InstallError(f"{site.path} and {seen[place]} are one place: a region would be wrapped twice")
        seen[place] = site.path


def _install_block(block: BlockSites, plan: LayerPlan, wrappers: Wrappers) -> list[Wrapped]:
    boundary = bool(plan.layout.replays([r for site in block.sites for r in site.regions]))
    merged = _merged_sites(block, plan) if boundary else ()
    done = []
    for site in block.sites:
        how = _how(site, plan, boundary, merged)
        if how is not None:
            _wrap(site, plan, how, wrappers)
            done.append(Wrapped(site.path, plan.layer, site.regions, how))
    if boundary:
        options = {"name": f"layers.{plan.layer}", "early_stop": plan.layout.early_stop}
        _replace(block.container, str(block.key), wrappers.boundary(_get(block), **options))
        done.insert(0, Wrapped(block.path, plan.layer, (), "boundary"))
    return done


def _merged_sites(block: BlockSites, plan: LayerPlan) -> tuple[Site, ...]:
    """The widest sites that lie within a span of the layout: each is excluded as one body."""
    inside = [
        site
        for site in block.sites
        if len(site.regions) > 1 and any(set(site.regions) <= set(s) for s in plan.layout.spans)
    ]
    return tuple(a for a in inside if not any(set(a.regions) < set(b.regions) for b in inside))


def _how(site: Site, plan: LayerPlan, boundary: bool, merged: Sequence[Site]) -> How | None:
    """How a site is wrapped; None for a site over several regions that isn't excluded as one."""
    if len(site.regions) > 1:
        return "saved as one" if site in merged else None
    action = plan.layout.action(site.regions[0])
    if action == "offload":
        return "offloaded"
    if not boundary or any(site.regions[0] in m.regions for m in merged):
        return "named"
    return "saved" if action == "save" else "replayed"


def _wrap(site: Site, plan: LayerPlan, how: How, wrappers: Wrappers) -> None:
    regions = site.regions[0] if len(site.regions) == 1 else f"{site.regions[0]}..{site.regions[-1]}"
    name = f"layers.{plan.layer}/{regions}"
    target = getattr(site.owner, site.attr)
    if how in ("saved", "saved as one", "offloaded"):
        # None lets the wrapper find out by itself whether a replay reads the output. Routing decisions and split sizes
        # are read on the host, which it can't see, and are kept in any case.
        keep = True if plan.layout.keep_outputs or set(site.regions) & set(ALWAYS_SAVED) else None
        wrap = wrappers.offloaded if how == "offloaded" else wrappers.saved
        _replace(site.owner, site.attr, wrap(target, name=name, save_output=keep))
    else:
        _replace(site.owner, site.attr, wrappers.named(target, name=name))


def _get(block: BlockSites) -> nn.Cell:
    # A cell list keeps its cells by index, written as text.
    key = str(block.key)
    if isinstance(block.container, nn.Cell) and key in block.container._cells:
        return block.container._cells[key]
    return getattr(block.container, key)


def _replace(owner: object, attr: str, value: object) -> None:
    """Sets a wrapped Cell or callable where the original was, without MindSpore renaming parameters."""
    if isinstance(owner, nn.Cell) and attr in owner._cells:
        owner._cells[attr] = value
    else:
        object.__setattr__(owner, attr, value)
