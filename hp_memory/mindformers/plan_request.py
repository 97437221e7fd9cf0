"""What a callback's ``plan:`` may say, and the plan it means for a model. No MindSpore here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hp_memory.config import own_files
from hp_memory.errors import ConfigError
from hp_memory.host.settings import HostSettings
from hp_memory.layout import (
    ActivationPlan,
    LayerOverride,
    LayoutSettings,
    ModelFingerprint,
    build_plan,
    from_dict,
    plan_file,
)
from hp_memory.layout.layers import format_layers
from hp_memory.layout.regions import ALWAYS_SAVED

Settings = TypeVar("Settings", LayoutSettings, HostSettings)
_SUFFIXES = (".json", ".yaml", ".yml")


def resolve(request: str | Mapping[str, Any], mark: ModelFingerprint, path: str = "plan") -> ActivationPlan:
    """The complete plan for the model with fingerprint ``mark``.

    Args:
        request: a layout's settings (``{name: ..., default: ..., save: [...]}``) or a whole plan as a run saved it,
            both inline or as the path of a JSON or YAML file; or the name of a recipe or of a layout.
        mark: the model.
        path: where the request stands in the config, for errors.

    Raises:
        ConfigError: for a name, file or key that doesn't exist, and for a plan made for another model.
    """
    said = _said(request, path)
    if isinstance(said, ActivationPlan):
        return _of_this_model(said, mark, path)
    return build_plan(said, mark, path)


def layout_of(request: str | Mapping[str, Any], mark: ModelFingerprint, path: str = "plan") -> LayoutSettings:
    """The same as a layout's settings, for commands that make plans of their own; arguments and errors as there."""
    said = _said(request, path)
    settings = as_settings(_of_this_model(said, mark, path)) if isinstance(said, ActivationPlan) else said
    build_plan(settings, mark, path)
    return settings


def as_settings(plan: ActivationPlan) -> LayoutSettings:
    """Settings that mean this plan for its own model: an override for every run of layers with one layout."""
    groups: dict[tuple, list[int]] = {}
    for layer in plan.layers:
        regions = plan.regions(layer.layer)
        actions = tuple(layer.layout.action(region) for region in regions)
        groups.setdefault((layer.kind, layer.layout.default, actions, layer.layout.spans), []).append(layer.layer)
    overrides = []
    for (kind, default, actions, spans), ids in groups.items():
        regions = plan.fingerprint.regions[kind]
        lists: dict[str, Any] = {}
        for region, action in zip(regions, actions, strict=True):
            if action != default and region not in ALWAYS_SAVED:
                lists.setdefault(action, []).append(region)
        as_one = [[span[0], span[-1]] for span in spans]
        for chosen in format_layers(ids).split(", "):
            if default != "save":
                overrides.append(LayerOverride(chosen, default, **lists, as_one=as_one))
            elif lists or as_one:
                overrides.append(LayerOverride(chosen, **lists, as_one=as_one))
    keeps = any(layer.layout.keep_outputs for layer in plan.layers)
    stops = all(layer.layout.early_stop for layer in plan.layers)
    return LayoutSettings("plan", "save", layers=overrides, keep_outputs=keeps, early_stop=stops)


def _said(request: str | Mapping[str, Any], path: str) -> LayoutSettings | ActivationPlan:
    if isinstance(request, str):
        return _named(request, path) if Path(request).suffix not in _SUFFIXES else _file(request, path)
    if "schema" in request:
        return from_dict(request, path)
    return layout_settings(request, path)


def layout_settings(data: Mapping[str, Any], path: str) -> LayoutSettings:
    """A layout's settings from plain data; every key must exist.

    Raises:
        ConfigError: for an unknown key, a missing one or a value of the wrong type.
    """
    return _typed(LayoutSettings, data, path)


def host_settings(data: Mapping[str, Any], path: str) -> HostSettings:
    """The host's settings from plain data; errors as for a layout's, and for values that can't be."""
    settings = _typed(HostSettings, data, path)
    settings.validate(path)
    return settings


def _typed(schema: type[Settings], data: Mapping[str, Any], path: str) -> Settings:
    try:
        return cast(Settings, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), dict(data))))
    except OmegaConfBaseException as error:
        key = str(error.full_key or error.key or "")
        why = str(error).split("\n")[0]
        where = f"{path}.{key}" if key else path
        raise ConfigError(where, data.get(key, ""), why, [f.name for f in fields(cast(Any, schema))]) from error


def _file(name: str, path: str) -> LayoutSettings | ActivationPlan:
    file = Path(name)
    if not file.is_file():
        raise ConfigError(path, name, "there is no such file")
    data = plan_file.parse(file, path) if file.suffix == ".json" else _data_of(file)
    if not isinstance(data, Mapping):
        raise ConfigError(path, name, "the file holds neither a layout nor a plan")
    return _said(data, path)


def _data_of(file: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(file))


def _named(name: str, path: str) -> LayoutSettings:
    layouts, recipes = own_files.options("layout"), own_files.options("recipe")
    if name in layouts:
        return layout_settings(_data_of(layouts[name]), path)
    if name not in recipes:
        raise ConfigError(path, name, "neither a recipe nor a layout has this name", [*recipes, *layouts])
    from hp_memory.config import app as hydra_app

    return hydra_app.to_object(hydra_app.compose("train", [f"recipe={name}"])).layout


def _of_this_model(plan: ActivationPlan, mark: ModelFingerprint, path: str) -> ActivationPlan:
    for name in ("family", "kinds", "digest", "regions"):
        theirs, ours = getattr(plan.fingerprint, name), getattr(mark, name)
        if theirs != ours:
            raise ConfigError(
                f"{path}.fingerprint.{name}", theirs, f"the plan is for another model; this one has {ours}"
            )
    return plan
