"""A plan in MindFormers' own words: which settings of a version mean which regions. No MindSpore here.

MindFormers 2.0 excludes operations from a replay by a part of their name, for all replayed layers alike. MindFormers
2.1 excludes cells, methods and communication slots by their path, for the layers it is told. Neither can say all that
a plan can; what a version can't say is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.layout import ALWAYS_SAVED, ActivationPlan, LayerPlan
from hp_memory.layout.layers import format_layers
from hp_memory.mindformers import names as names_of
from hp_memory.mindformers.names import Use

HINT = "the callback can say it (to=mindformers-callback)"


def sections(plan: ActivationPlan, version: str, path: str = "layout") -> dict[str, Any]:
    """MindFormers' ``recompute``, ``recompute_comm`` and ``swap`` sections for this plan.

    Raises:
        ConfigError: naming the first thing that this version has no setting for.
    """
    work = [(layer, _replayed(plan, layer)) for layer in plan.layers]
    work = [(layer, replayed) for layer, replayed in work if replayed]
    # A replayed block with exceptions; a saved block of which parts are replayed is the other kind.
    whole = [layer for layer, _ in work if layer.layout.default == "recompute"]
    parts: dict[str, list[int]] = {}
    for layer, replayed in work:
        if layer not in whole:
            for name in _cover(plan, layer, replayed, version, path, "replay"):
                parts.setdefault(name, []).append(layer.layer)
    recompute: dict[str, Any] = {"mode": "select" if parts else "full" if whole else "None"}
    if whole:
        recompute["full_recompute_layer"] = _ranges(layer.layer for layer in whole)
    if parts:
        recompute["select_module"] = {name: _ranges(ids) for name, ids in parts.items()}
    excluded = _by_name(plan, whole, bool(parts), path) if version == "2.0" else _by_path(plan, whole, path)
    if excluded:
        recompute["exclude_op"] = excluded
    return {"recompute": recompute, "recompute_comm": {"enable": False}, "swap": _swap(plan, version, path)}


def _swap(plan: ActivationPlan, version: str, path: str) -> dict[str, Any]:
    """MindFormers' ``swap`` section: whole layers, or cells by their path, each a layer ahead of its backward."""
    whole: list[int] = []
    parts: dict[str, list[int]] = {}
    for layer in plan.layers:
        moved = plan.offloads(layer.layer)
        if not moved:
            continue
        _refuse_swap(plan, layer, version, path)
        if set(moved) | set(ALWAYS_SAVED) >= set(plan.regions(layer.layer)):
            whole.append(layer.layer)
        else:
            for name in _cover(plan, layer, moved, version, path, "replay"):
                parts.setdefault(name, []).append(layer.layer)
    if not whole and not parts:
        return {"enable": False}
    section: dict[str, Any] = {"enable": True, "default_prefetch": 1}
    if whole:
        section["layer_swap"] = [{"layers": _ranges(whole)}]
    if parts:
        section["op_swap"] = [{"op_name": name, "layers": _ranges(ids)} for name, ids in parts.items()]
    return section


def _refuse_swap(plan: ActivationPlan, layer: LayerPlan, version: str, path: str) -> None:
    where = f"{path}.offload"
    region = plan.offloads(layer.layer)[0]
    if _replayed(plan, layer):
        why = f"MindFormers {version} can't swap in layer {layer.layer}, which is replayed, {HINT}"
        raise ConfigError(where, region, why)
    if layer.kind == "mtp":
        raise ConfigError(where, region, f"MindFormers {version} swaps in no MTP layer, {HINT}")
    if layer.layer + 1 >= sum(kind != "mtp" for kind in plan.fingerprint.kinds):
        why = f"MindFormers {version} brings a layer back in the next one's backward: the last layer can't, {HINT}"
        raise ConfigError(where, region, why)


def _replayed(plan: ActivationPlan, layer: LayerPlan) -> tuple[str, ...]:
    return layer.layout.replays(plan.regions(layer.layer))


def _saved(plan: ActivationPlan, layer: LayerPlan) -> list[str]:
    return [r for r in plan.regions(layer.layer) if layer.layout.action(r) == "save"]


def _ranges(layers: Iterable[int]) -> list[str]:
    return format_layers(sorted(layers)).split(", ")


def _by_name(plan: ActivationPlan, whole: list[LayerPlan], parts: bool, path: str) -> list[str]:
    """2.0's ``exclude_op``: one list, which takes effect in every replayed layer that has such an operation."""
    wanted = {layer.layer: _names(plan, layer, path) for layer in whole}
    everywhere = set().union(*wanted.values())
    for layer in whole:
        if wanted[layer.layer] != everywhere & _operations_of(plan, layer):
            why = f"MindFormers 2.0 excludes the same operations in every replayed layer, {HINT}"
            raise ConfigError(f"{path}.layers", f"layer {layer.layer}", why)
    if parts and everywhere - {"topk"}:
        why = f"MindFormers 2.0 would exclude these in the layers that are replayed in part, too, {HINT}"
        raise ConfigError(f"{path}.save", sorted(everywhere), why)
    return sorted(everywhere)


def _names(plan: ActivationPlan, layer: LayerPlan, path: str) -> set[str]:
    saved = set(_saved(plan, layer)) - set(names_of.FOLLOWS_THE_ROUTER)
    if layer.layout.spans:
        raise ConfigError(
            f"{path}.as_one", layer.layout.spans[0], f"MindFormers 2.0 excludes operations one by one, {HINT}"
        )
    names: set[str] = set()
    for word, regions in names_of.OPERATIONS.items():
        here = set(regions) & set(plan.regions(layer.layer))
        if here and here <= saved:
            names.add(word)
            saved -= here
    if saved:
        region = min(saved, key=plan.regions(layer.layer).index)
        why = f"MindFormers 2.0 has no operation name that means {region} and nothing else, {HINT}"
        raise ConfigError(f"{path}.save", region, why, [r for regions in names_of.OPERATIONS.values() for r in regions])
    return names


def _operations_of(plan: ActivationPlan, layer: LayerPlan) -> set[str]:
    """The names that mean something in this layer."""
    here = set(plan.regions(layer.layer))
    return {word for word, regions in names_of.OPERATIONS.items() if here & set(regions)}


def _by_path(plan: ActivationPlan, whole: list[LayerPlan], path: str) -> dict[str, list[str]]:
    """2.1's ``exclude_op``: layers by path."""
    found: dict[str, list[int]] = {}
    for layer in whole:
        for name in _cover(plan, layer, _saved(plan, layer), "2.1", path, "save"):
            found.setdefault(name, []).append(layer.layer)
    return {name: _ranges(layers) for name, layers in found.items()}


def _cover(
    plan: ActivationPlan, layer: LayerPlan, regions: Sequence[str], version: str, path: str, use: Use
) -> list[str]:
    """The paths that together cover exactly ``regions``."""
    here = plan.regions(layer.layer)
    left, names = set(regions), []
    harmless = set(names_of.FOLLOWS_THE_ROUTER) if use == "replay" else set()
    for module in names_of.modules(version, use, here):
        covered = (set(module.regions) & set(here)) - harmless
        if covered and covered <= left:
            left -= covered
            names.append(f"{names_of.MTP_PREFIX}.{module.path}" if layer.kind == "mtp" else module.path)
    if left:
        region = min(left, key=list(regions).index)
        key = "recompute" if use == "replay" else "save"
        why = f"MindFormers {version} has no path to {use} {region} of layer {layer.layer} alone, {HINT}"
        raise ConfigError(f"{path}.{key}", region, why)
    return names
