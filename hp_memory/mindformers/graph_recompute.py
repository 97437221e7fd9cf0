"""A plan as static recompute settings: what ``Cell.recompute`` and ``Primitive.recompute`` do when a graph is compiled.

MindSpore 2.10 has no ``Cell.recompute(False)``: a region is excluded by excluding every primitive in it. A region that
computes with functions instead of primitives can't be excluded and is refused. Python wrappers and hooks have no effect
in a compiled graph, so this is all of a plan that a graph can hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mindspore import nn

from hp_memory.errors import InstallError
from hp_memory.install import How, Receipt, Wrapped
from hp_memory.layout import ALWAYS_SAVED, ActivationPlan, Layout, ModelFingerprint, expand, refuse_offload
from hp_memory.layout.regions import REGIONS, Kind
from hp_memory.models.sites import BlockSites, Site

NOT_A_CELL = "no cell of its own in this graph model"


def blocks_of(network: nn.Cell, layers: str, cells: Mapping[str, str]) -> tuple[BlockSites, ...]:
    """The blocks below ``layers`` and those of their regions that are cells.

    Args:
        network: any network that holds the blocks.
        layers: where the list of blocks is, e.g. ``model.decoder.layers``.
        cells: region, or group of regions that one cell computes -> path of the cell below a block.

    Raises:
        ConfigError: for a name that means no region.
        InstallError: if there is no list of cells there.
    """
    meant = {path: _decided_by(expand(name, "cells")) for name, path in cells.items()}
    owner: Any = network
    for part in layers.split("."):
        owner = getattr(owner, part, None)
    if not isinstance(owner, nn.Cell) or not owner._cells:
        raise InstallError(f"{layers}: {type(network).__name__} has no list of blocks there")
    return tuple(_block(owner, key, f"{layers}.{key}", meant) for key in owner._cells)


def _decided_by(regions: tuple[str, ...]) -> tuple[str, ...]:
    """One cell is saved or replayed as a whole: as a whole where a part of it must be saved."""
    return tuple(region for region in regions if region in ALWAYS_SAVED) or regions


def _block(container: nn.Cell, key: str, path: str, cells: Mapping[str, tuple[str, ...]]) -> BlockSites:
    block = container._cells[key]
    in_order = sorted(cells.items(), key=lambda item: REGIONS.index(item[1][0]))
    sites = tuple(site for name, regions in in_order for site in _site(block, path, regions, name))
    kind: Kind = "moe" if any("router.choose" in site.regions for site in sites) else "dense"
    return BlockSites(int(key), kind, container, key, path, sites)


def _site(block: nn.Cell, path: str, regions: tuple[str, ...], name: str) -> list[Site]:
    *parents, attr = name.split(".")
    owner: Any = block
    for parent in parents:
        owner = getattr(owner, parent, None)
    return [Site(regions, owner, attr, f"{path}.{name}")] if isinstance(getattr(owner, attr, None), nn.Cell) else []


def fingerprint(blocks: Sequence[BlockSites], family: str) -> ModelFingerprint:
    """What a plan must know of a graph model: its regions are those that are cells."""
    regions: dict[Kind, tuple[str, ...]] = {}
    for block in blocks:
        regions.setdefault(block.kind, _regions(block))
    present = {region for names in regions.values() for region in names}
    absent = {region: NOT_A_CELL for region in REGIONS if region not in present}
    return ModelFingerprint(family, tuple(block.kind for block in blocks), regions, f"graph {len(blocks)}", absent)


def _regions(block: BlockSites) -> tuple[str, ...]:
    return tuple(region for site in block.sites for region in site.regions)


def _is_saved(site: Site, layout: Layout) -> bool:
    replayed = layout.replays(site.regions)
    if replayed and len(replayed) < len(site.regions):
        saved = next(region for region in site.regions if region not in replayed)
        raise InstallError(f"{site.path} is one cell: {saved} can't be saved while {replayed[0]} is replayed")
    return not replayed


def apply(network: nn.Cell, plan: ActivationPlan, blocks: Sequence[BlockSites]) -> Receipt:
    """Sets static recompute in place, before anything is compiled.

    Raises:
        InstallError: for a network that is compiled already, a saved region that can't be excluded, or one cell whose
            regions the plan treats differently.
    """
    if any(getattr(cell, "compile_cache", None) for _, cell in network.cells_and_names()):
        raise InstallError("the network is compiled already: recompute settings would have no effect")
    refuse_offload(plan, "a compiled graph moves data by HyperOffload's settings only (offload:)", "plan")
    work = [(block, plan.layers[block.layer].layout) for block in blocks]
    saved = {
        site.path: _primitives(site)
        for block, layout in work
        if layout.replays(_regions(block))
        for site in block.sites
        if _is_saved(site, layout)
    }
    receipt = Receipt(plan.hash(), not_applied=dict(plan.fingerprint.absent))
    for block, layout in work:
        if not layout.replays(_regions(block)):
            continue
        block.container._cells[block.key].recompute()
        receipt.wrapped.append(Wrapped(block.path, block.layer, (), "boundary"))
        for site in block.sites:
            for primitive in saved.get(site.path, ()):
                primitive.recompute(False)
            how: How = "saved" if site.path in saved else "replayed"
            receipt.wrapped.append(Wrapped(site.path, block.layer, site.regions, how))
    return receipt


def _primitives(site: Site) -> list[Any]:
    cells = [cell for _, cell in getattr(site.owner, site.attr).cells_and_names()]
    found = [p for cell in cells for p in cell._primitives.values() if p is not None]
    if not found:
        why = "it computes with functions, and only primitives can be excluded from static recompute"
        raise InstallError(f"{site.path} ({site.regions[0]}) can't be saved in a graph: {why}")
    return found
