"""MindFormers' recompute settings as a layout: PyNative's by layer and path, the graph Trainer's by stage."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.layout import LayerOverride, LayoutSettings, ModelFingerprint
from hp_memory.layout.layers import format_layers
from hp_memory.layout.regions import ALWAYS_SAVED
from hp_memory.mindformers import names as names_of
from hp_memory.mindformers.names import Module
from hp_memory.mindformers.trainer_yaml.document import Document
from hp_memory.pipeline.settings import PipelineSettings

_SPEC = re.compile(r"(\d+)(?:-(\d+))?")
MODES = ("None", "full", "select")


@dataclass(frozen=True)
class Recompute:
    """What a file makes of its layers.

    Attributes:
        layout: which regions are replayed and which aren't.
        modules: for layers with selected modules, the regions of each: MindFormers makes each a boundary of its own.
    """

    layout: LayoutSettings
    modules: Mapping[int, tuple[tuple[str, ...], ...]]


def recompute_of(document: Document, mark: ModelFingerprint, pipeline: PipelineSettings) -> Recompute:
    """The layout and the boundaries; what no region means is noted in the document."""
    if document.trainer == "graph":
        return Recompute(_settings(_graph_layers(document, mark, pipeline), mark), {})
    layers = _pynative_layers(document, mark)
    modules = {i: layer.boundaries(mark.regions[mark.kinds[i]]) for i, layer in enumerate(layers)}
    if any(layer.modules and layer.saved for layer in layers):
        document.notes.append("recompute.exclude_op in selected modules: estimated as one boundary per layer")
    return Recompute(_settings(layers, mark), {i: found for i, found in modules.items() if found})


class _Layer:
    """What becomes of one layer: replayed whole, or some of its regions; and what is saved of that."""

    def __init__(self) -> None:
        self.whole = False
        self.replayed: set[str] = set()
        self.saved: set[str] = set()
        self.spans: list[tuple[str, str]] = []
        self.modules: list[set[str]] = []

    def boundaries(self, regions: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        """The outermost of the selected modules, as MindFormers wraps them, in order; none where that isn't modelled.

        A layer that is replayed whole is one boundary, and so is one that a selected path means as a whole.
        """
        outer = [m for m in self.modules if not any(m < other for other in self.modules)]
        named = dict.fromkeys(tuple(r for r in regions if r in module) for module in outer)
        if self.whole or self.saved or tuple(regions) in named:
            return ()
        return tuple(sorted(named, key=lambda module: regions.index(module[0])))

    def key(self, regions: Sequence[str]) -> tuple:
        """What makes an override; the same for layers that have the same layout."""
        if self.whole:
            return ("recompute", _named(regions, self.saved), tuple(self.spans))
        return ("save", _named(regions, self.replayed - self.saved), ())


def _named(regions: Sequence[str], wanted: set[str]) -> tuple[str, ...]:
    return tuple(r for r in regions if r in wanted and r not in ALWAYS_SAVED)


def _settings(layers: list[_Layer], mark: ModelFingerprint) -> LayoutSettings:
    """One override for all layers of one kind that have the same layout."""
    groups: dict[tuple, list[int]] = {}
    for i, (layer, kind) in enumerate(zip(layers, mark.kinds, strict=True)):
        groups.setdefault((layer.key(mark.regions[kind]), kind), []).append(i)
    overrides = []
    for ((default, regions, spans), _), ids in groups.items():
        for chosen in format_layers(ids).split(", "):
            if default == "recompute":
                as_one = [list(span) for span in spans]
                overrides.append(LayerOverride(chosen, "recompute", save=list(regions), as_one=as_one))
            elif regions:
                overrides.append(LayerOverride(chosen, recompute=list(regions)))
    return LayoutSettings(name="yaml", default="save", layers=overrides)


def _pynative_layers(document: Document, mark: ModelFingerprint) -> list[_Layer]:
    layers = [_Layer() for _ in mark.kinds]
    mode = str(document.get("recompute.mode", "None"))
    if mode not in MODES:
        document.refuse("recompute.mode", mode, "no such mode", MODES)
        return layers
    if mode != "None":
        for i in _layers_at(document, ("recompute", "full_recompute_layer"), len(layers), mode == "full"):
            layers[i].whole = True
    if mode == "select":
        _select(document, mark, layers, ("recompute", "select_module"))
    elif document.get("recompute.select_module"):
        document.notes.append(f"recompute.select_module has no effect with recompute.mode: {mode}")
    if document.flag("recompute_comm.enable"):
        _select(document, mark, layers, ("recompute_comm", "select_module"))
    if mode != "None":
        _exclude(document, mark, layers)
    elif document.get("recompute.exclude_op"):
        document.refuse("recompute.exclude_op", "...", "has no effect: recompute.mode is None")
    return layers


def _layers_at(document: Document, keys: tuple[str, ...], count: int, needed: bool = True) -> list[int]:
    """Layer ids of range strings: ``["0-3", "8"]``."""
    specs: Any = document.data
    for key in keys:
        specs = specs.get(key) if isinstance(specs, Mapping) else None
    if not specs:
        if needed:
            document.refuse(keys, specs, "is missing: which layers?")
        return []
    if not isinstance(specs, (list, tuple)):
        document.refuse(keys, specs, "must be a list of layers", ('["0-3", "8"]',))
        return []
    found: list[int] = []
    for spec in specs:
        match = _SPEC.fullmatch(str(spec).strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if match is None or high < low:
            document.refuse(keys, spec, "not a layer or a range of layers", ("5", "0-19"))
        elif high >= count:
            document.refuse(keys, spec, f"the model has layers 0-{count - 1}")
        elif found and low <= found[-1]:
            document.refuse(keys, spec, "MindFormers wants ranges in ascending order")
        else:
            found += range(low, high + 1)
    return found


def _select(
    document: Document,
    mark: ModelFingerprint,
    layers: list[_Layer],
    keys: tuple[str, ...],
) -> None:
    """Paths with their layers; those of one layer add up."""
    select = document.get(".".join(keys))
    if not isinstance(select, Mapping) or not select:
        document.refuse(keys, select, "is missing: a path and its layers", ('{"self_attention": ["0-3"]}',))
        return
    for pattern in select:
        here = (*keys, str(pattern))
        ids = _layers_at(document, here, len(layers))
        regions = {i: _covered(document, here, mark, i) for i in ids}
        if ids and not any(found is not None for found in regions.values()):
            known = [module.path for module in names_of.MODULES if _takes(module, here)]
            why = "no region means this path" if keys[0] == "recompute" else "no exchange of tokens means this path"
            document.refuse(here, select[pattern], why, known, meant=str(pattern))
        for i, found in regions.items():
            if keys[0] == "recompute_comm" and layers[i].whole:
                continue
            for own in found or ():
                layers[i].replayed |= own
                layers[i].modules.append(own)


def _covered(
    document: Document,
    here: tuple[str, ...],
    mark: ModelFingerprint,
    layer: int,
) -> list[set[str]] | None:
    """For each path of a layer that a pattern matches, its regions; None where it matches nothing there."""
    kind = mark.kinds[layer]
    prefix = f"{names_of.MTP_PREFIX}." if kind == "mtp" else ""
    try:
        matches = re.compile(here[-1]).fullmatch
    except re.error as error:
        document.refuse(here, here[-1], f"isn't a regular expression: {error}")
        return []
    if kind == "mtp" and matches(names_of.MTP_PREFIX):
        return [set(mark.regions[kind])]
    found: list[set[str]] = []
    hit = False
    for module in _modules(here, mark.regions[kind]):
        own = set(module.regions) & set(mark.regions[kind])
        if (own or not module.regions) and matches(prefix + module.path):
            hit = True
            found += [own] if own else []
    parts = [part for part in names_of.FRAGMENTS if matches(prefix + part)] if here[0] == "recompute" else []
    left = [part for part in parts if not _inside(part, prefix, matches)]
    if left:
        why = f"{left[0]} is less than a region: replay {left[0].rpartition('.')[0]} whole"
        document.refuse(here, here[-1], why)
        return []
    return found if hit else None


def _inside(part: str, prefix: str, matches: Any) -> bool:
    """Whether a path above this one is matched too: MindFormers wraps that one only."""
    names = part.split(".")
    return any(matches(prefix + ".".join(names[:n])) for n in range(1, len(names)))


def _takes(module: Module, here: tuple[str, ...]) -> bool:
    """Whether the setting at ``here`` takes a path: cells to replay, exchanges of tokens, or anything to save."""
    if here[0] == "recompute_comm":
        return "alltoall" in module.path
    return here[1] == "exclude_op" or not module.save_only


def _modules(here: tuple[str, ...], regions: Sequence[str]) -> list[Module]:
    """The paths that a setting takes in a layer with these regions."""
    found = [module for module in names_of.MODULES if _takes(module, here) and module.exists(regions)]
    return found if here[1] == "exclude_op" else [*found, *(Module(name, ()) for name in names_of.EMPTY)]


def _exclude(document: Document, mark: ModelFingerprint, layers: list[_Layer]) -> None:
    names = document.get("recompute.exclude_op")
    if names is None:
        return
    if isinstance(names, Mapping):
        _exclude_paths(document, mark, layers, names)
    elif isinstance(names, (list, tuple)):
        _exclude_operations(document, mark, layers, names)
    else:
        document.refuse("recompute.exclude_op", names, "must be a list of operations (2.0) or paths with layers (2.1)")


def _exclude_operations(document: Document, mark: ModelFingerprint, layers: list[_Layer], names: Sequence[Any]) -> None:
    """2.0: parts of operations' names, for all that is replayed."""
    known = names_of.OPERATIONS
    for i, name in enumerate(names):
        meant = [regions for word, regions in known.items() if word in str(name).lower()]
        if not meant:
            document.refuse(("recompute", "exclude_op", str(i)), name, "no region means this operation", known)
        for regions in meant:
            for layer, kind in zip(layers, mark.kinds, strict=True):
                layer.saved |= set(regions) & set(mark.regions[kind])


def _exclude_paths(document: Document, mark: ModelFingerprint, layers: list[_Layer], paths: Mapping[str, Any]) -> None:
    """2.1: paths with their layers."""
    for pattern in paths:
        here = ("recompute", "exclude_op", str(pattern))
        hit = False
        for i in _layers_at(document, here, len(layers)):
            found = _covered(document, here, mark, i)
            hit = hit or found is not None
            regions = set().union(*(found or ()))
            if len(regions) > 1 and "gmm.up" in regions:
                layers[i].spans.append(("gmm.up", "gmm.down"))
            layers[i].saved |= regions
        if not hit and paths[pattern]:
            known = [module.path for module in names_of.MODULES]
            document.refuse(here, paths[pattern], "no region means this path", known, meant=str(pattern))


def _graph_layers(document: Document, mark: ModelFingerprint, pipeline: PipelineSettings) -> list[_Layer]:
    layers = [_Layer() for _ in mark.kinds]
    chosen = _graph_whole(document, mark, pipeline)
    for i in chosen:
        layers[i].whole = True
    for name in (
        "select_recompute",
        "select_comm_recompute",
        "select_recompute_exclude",
        "select_comm_recompute_exclude",
    ):
        value = document.get(f"recompute_config.{name}", False)
        # A layer that is replayed whole isn't replayed in part.
        if value is not False and not (
            name in ("select_recompute", "select_comm_recompute") and len(chosen) == len(layers)
        ):
            why = "single operations of the graph are no regions: only whole layers are modelled"
            document.refuse(f"recompute_config.{name}", value if isinstance(value, bool) else "...", why, (False,))
    return layers


def _graph_whole(document: Document, mark: ModelFingerprint, pipeline: PipelineSettings) -> list[int]:
    """Layers that ``recompute`` replays: all, none, or so many of each stage (and chunk), first ones first."""
    path = "recompute_config.recompute"
    value = document.get(path, False)
    decoder = sum(kind != "mtp" for kind in mark.kinds)
    if isinstance(value, bool):
        # MindFormers replays MTP layers as the last decoder layer.
        return list(range(len(mark.kinds))) if value else []
    try:
        chunks = pipeline.layers_of_chunks(decoder) if pipeline.stages > 1 else (tuple(range(decoder)),)
        counts = _counts(value, [len(chunk) for chunk in chunks], pipeline.stages)
    except ConfigError:
        return []  # the split is refused where it is read
    except ValueError as error:
        document.refuse(path, value, str(error), (True, False))
        return []
    found = [layer for chunk, count in zip(chunks, counts, strict=True) for layer in chunk[:count]]
    return found + (list(range(decoder, len(mark.kinds))) if counts[-1] == len(chunks[-1]) else [])


def _counts(value: Any, sizes: Sequence[int], stages: int) -> list[int]:
    """Replayed layers of each chunk, from input to output.

    Raises:
        ValueError: for a list of another shape.
    """
    shape = f"must be true, false, or a list with {stages} numbers of layers"
    if not isinstance(value, list):
        raise ValueError(shape)
    rows = len(sizes) // stages
    if all(isinstance(n, (int, bool)) for n in value):
        if len(value) != stages:
            raise ValueError(shape)
        return _dealt(value, sizes, stages)
    if len(value) != rows or any(not isinstance(row, (list, bool)) for row in value):
        raise ValueError(f"{shape}, or {rows} such lists, one for each chunk of a rank")
    found: list[int] = []
    for r, row in enumerate(value):
        own = sizes[r * stages : (r + 1) * stages]
        numbers = [row] * stages if isinstance(row, bool) else row
        if len(numbers) != stages or any(not isinstance(n, int) or n < 0 for n in numbers):
            raise ValueError(shape)
        found += [
            (size if n else 0) if isinstance(n, bool) else min(n, size) for n, size in zip(numbers, own, strict=True)
        ]
    return found


def _dealt(value: Sequence[Any], sizes: Sequence[int], stages: int) -> list[int]:
    """A stage's number dealt to its chunks in turn."""
    found = [0] * len(sizes)
    for stage, wanted in enumerate(value):
        own = range(stage, len(sizes), stages)
        left = sum(sizes[c] for c in own) if wanted is True else min(int(wanted), sum(sizes[c] for c in own))
        while left > 0:
            for chunk in own:
                if left and found[chunk] < sizes[chunk]:
                    found[chunk] += 1
                    left -= 1
    return found
