"""An activation plan: a layout for each layer of one model. Plain data that every consumer reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.layout.layers import format_layers, select_layers
from hp_memory.layout.layout import Layout, make_layout
from hp_memory.layout.regions import ALWAYS_SAVED, GROUPS, Action, Kind, expand
from hp_memory.layout.settings import LayerOverride, LayoutSettings

SCHEMA = 3
_READ = (2, SCHEMA)  # 2 has no offload, and says the rest in the same way
_EARLIER = {1: "its regions router, attention.qkv and shared_experts have been split since"}


@dataclass(frozen=True)
class ModelFingerprint:
    """What a plan must know of a model, and what tells two models apart.

    Attributes:
        family: ``reference`` or the model family's name in MindFormers.
        kinds: the kind of each layer, MTP layers last.
        regions: for each kind, the regions its blocks have, in forward order.
        digest: hash over everything that fixes the parameters' shapes.
        absent: regions that the family has at other parallel sizes, each with the reason why not at these. A layout
            may name them; the plan says that they are absent.
    """

    family: str
    kinds: tuple[Kind, ...]
    regions: Mapping[Kind, tuple[str, ...]]
    digest: str
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LayerPlan:
    """One layer's layout, restricted to the regions this layer has."""

    layer: int
    kind: Kind
    layout: Layout


@dataclass(frozen=True)
class ActivationPlan:
    """A layout for each global layer id of the model with this fingerprint."""

    fingerprint: ModelFingerprint
    layers: tuple[LayerPlan, ...]
    schema: int = SCHEMA

    def regions(self, layer: int) -> tuple[str, ...]:
        """The regions of a layer, in forward order."""
        return self.fingerprint.regions[self.layers[layer].kind]

    def offloads(self, layer: int) -> tuple[str, ...]:
        """The regions of a layer whose saved tensors wait on the host."""
        return self.layers[layer].layout.offloads(self.regions(layer))

    def in_words(self) -> str:
        """The plan layer by layer; layers that have the same layout share a line."""
        lines: dict[tuple[str, str], list[int]] = {}
        for plan in self.layers:
            words = f"{plan.layout.name}: {plan.layout.in_words(self.regions(plan.layer))}"
            lines.setdefault((plan.kind, words), []).append(plan.layer)
        text = [f"layer {format_layers(ids)} ({kind}): {words}" for (kind, words), ids in lines.items()]
        text += [f"no {region}: {why}" for region, why in self.fingerprint.absent.items()]
        return "\n".join(text)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data; ``from_dict`` reads it back."""
        mark = self.fingerprint
        return {
            "schema": self.schema,
            "fingerprint": {
                "family": mark.family,
                "kinds": list(mark.kinds),
                "regions": {kind: list(regions) for kind, regions in mark.regions.items()},
                "digest": mark.digest,
                "absent": dict(mark.absent),
            },
            "layers": [
                {
                    "layer": p.layer,
                    "kind": p.kind,
                    "layout": p.layout.name,
                    "default": p.layout.default,
                    "actions": dict(p.layout.actions),
                    "spans": [list(s) for s in p.layout.spans],
                    "keep_outputs": p.layout.keep_outputs,
                    "early_stop": p.layout.early_stop,
                }
                for p in self.layers
            ],
        }

    def hash(self) -> str:
        """16 hex digits that are equal on two ranks exactly if their plans are."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()[:16]


def from_dict(data: Mapping[str, Any], path: str = "plan") -> ActivationPlan:
    """Reads what ``ActivationPlan.to_dict`` wrote; ``path`` says where it stands, for errors.

    Raises:
        ConfigError: for data of another schema version, or of which something is missing.
    """
    schema = data.get("schema")
    if schema not in _READ:
        why = _EARLIER.get(schema, "this version can't read it") if isinstance(schema, int) else "not a schema version"
        raise ConfigError(f"{path}.schema", schema, f"{why}; make the plan again from its layout", _READ)
    try:
        return _from_dict(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(path, "", f"not a plan as a run saves it: {type(error).__name__} {error}") from error


def _from_dict(data: Mapping[str, Any]) -> ActivationPlan:
    mark = data["fingerprint"]
    fingerprint = ModelFingerprint(
        mark["family"],
        tuple(mark["kinds"]),
        {kind: tuple(regions) for kind, regions in mark["regions"].items()},
        mark["digest"],
        dict(mark["absent"]),
    )
    layers = tuple(
        LayerPlan(
            entry["layer"],
            entry["kind"],
            Layout(
                entry["layout"],
                entry["default"],
                dict(entry["actions"]),
                tuple(tuple(span) for span in entry["spans"]),
                entry["keep_outputs"],
                entry.get("early_stop", True),  # plans from before the setting
            ),
        )
        for entry in data["layers"]
    )
    return ActivationPlan(fingerprint, layers)


def refuse_offload(plan: ActivationPlan, why: str, path: str = "layout") -> None:
    """Raises ConfigError for the first region that moves to the host: ``why`` says what can't do that."""
    for layer in plan.layers:
        moved = plan.offloads(layer.layer)
        if moved:
            where = f"{path}.default" if layer.layout.default == "offload" else f"{path}.offload"
            raise ConfigError(where, moved[0], f"layer {layer.layer}: {why}", ("save", "recompute"))


def build_plan(settings: LayoutSettings, fingerprint: ModelFingerprint, path: str = "layout") -> ActivationPlan:
    """The complete plan that a layout config means for one model.

    Raises:
        ConfigError: for anything the config says that no layer of this model can take.
    """
    base, entries = _layout(settings, None, path)
    layouts = [base] * len(fingerprint.kinds)
    said_at = [""] * len(layouts)
    _refuse_unmatched(base, entries, range(len(layouts)), fingerprint, path)
    for i, override in enumerate(settings.layers):
        where = override.origin or f"{path}.layers[{i}]"
        chosen = select_layers(override.layers, fingerprint.kinds, f"{where}.layers")
        if all(getattr(override, name) is None for name in ("default", *_LISTS)):
            raise ConfigError(where, override.layers, "changes nothing", ("default", *_LISTS))
        layout, entries = _layout(settings, override, where)
        _refuse_unmatched(layout, entries, chosen, fingerprint, where)
        for layer in chosen:
            layouts[layer], said_at[layer] = layout, where
    _refuse_covered(settings, said_at, path)
    plan = ActivationPlan(
        fingerprint,
        tuple(
            LayerPlan(i, kind, layout.restrict(fingerprint.regions[kind]))
            for i, (kind, layout) in enumerate(zip(fingerprint.kinds, layouts, strict=True))
        ),
    )
    _refuse_of_replays(settings, plan, path)
    return plan


def _refuse_of_replays(settings: LayoutSettings, plan: ActivationPlan, path: str) -> None:
    """Settings of replays, in a plan without one."""
    if any(layer.layout.replays(plan.regions(layer.layer)) for layer in plan.layers):
        return
    for name, value, usual in (
        ("keep_outputs", settings.keep_outputs, False),
        ("early_stop", settings.early_stop, True),
    ):
        if value != usual:
            raise ConfigError(f"{path}.{name}", value, "has no effect where nothing is replayed")


def _refuse_covered(settings: LayoutSettings, said_at: Sequence[str], path: str) -> None:
    """``said_at`` is where the last word on each layer was said; what has it on no layer has no effect."""
    for i, override in enumerate(settings.layers):
        where = override.origin or f"{path}.layers[{i}]"
        if where not in said_at:
            raise ConfigError(where, override.layers, "has no effect: later entries cover all of its layers")


_Entries = dict[Action, Sequence[str]]
_LISTS = ("save", "recompute", "offload", "as_one")


def _layout(settings: LayoutSettings, override: LayerOverride | None, path: str) -> tuple[Layout, _Entries]:
    """The layout that the settings mean, or an override of them, and the names it lists for each action."""

    def pick(name: str) -> Any:
        value = getattr(override, name)
        return getattr(settings, name) if value is None else value

    if override is None:
        name, default = settings.name, settings.default
        lists = {name: getattr(settings, name) for name in _LISTS}
    else:
        name, default = f"{settings.name}+{override.layers}", pick("default")
        # If an override changes the default, the base layout's exceptions no longer apply.
        fresh = override.default is not None and override.default != settings.default
        lists = {n: (getattr(override, n) or []) if fresh else pick(n) for n in _LISTS}
    layout = make_layout(
        name, default, **lists, keep_outputs=settings.keep_outputs, early_stop=settings.early_stop, path=path
    )
    return layout, {"save": lists["save"], "recompute": lists["recompute"], "offload": lists["offload"]}


def _refuse_unmatched(
    layout: Layout, entries: _Entries, layers: Sequence[int], fingerprint: ModelFingerprint, path: str
) -> None:
    """Every name a layout lists must mean a region that at least one of the layers it is for has."""
    present = {region for layer in layers for region in fingerprint.regions[fingerprint.kinds[layer]]}
    wanted = [region for region in layout.actions if region not in ALWAYS_SAVED]
    if wanted and not present & set(wanted) and set(wanted) & set(fingerprint.absent):
        absent = next(region for region in wanted if region in fingerprint.absent)
        raise ConfigError(path, layout.name, f"has no effect: {fingerprint.absent[absent]}")
    known = present | set(fingerprint.absent)
    for action, names in entries.items():
        for i, name in enumerate(names):
            if not set(expand(name, path)) & known:
                accepted = [r for r in (*GROUPS, *_regions(fingerprint)) if set(expand(r, path)) & present]
                why = f"layers {format_layers(list(layers))} have no such region"
                raise ConfigError(f"{path}.{action}[{i}]", name, why, accepted)
    for span in layout.spans:
        if not {span[0], span[-1]} <= known:
            raise ConfigError(f"{path}.as_one", [span[0], span[-1]], "no layer it is for has both ends of this span")


def _regions(fingerprint: ModelFingerprint) -> tuple[str, ...]:
    """The regions that any layer of the model has, in the order of the forward."""
    return tuple(dict.fromkeys(region for regions in fingerprint.regions.values() for region in regions))
