"""What a callback's ``plan:`` may say, and the plan it means for a model. No MindSpore here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hp_memory.errors import ConfigError
from hp_memory.layout import ActivationPlan, LayoutSettings, ModelFingerprint, build_plan, from_dict
from hp_memory.runs.paths import config_dir

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
    if isinstance(request, str):
        return _named(request, mark, path) if Path(request).suffix not in _SUFFIXES else _file(request, mark, path)
    if "schema" in request:
        return _of_this_model(from_dict(request), mark, path)
    return build_plan(layout_settings(request, path), mark, path)


def layout_settings(data: Mapping[str, Any], path: str) -> LayoutSettings:
    """A layout's settings from plain data; every key must exist.

    Raises:
        ConfigError: for an unknown key, a missing one or a value of the wrong type.
    """
    try:
        return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(LayoutSettings), dict(data)))
    except OmegaConfBaseException as error:
        key = str(error.full_key or error.key or "")
        why = str(error).split("\n")[0]
        where = f"{path}.{key}" if key else path
        raise ConfigError(where, data.get(key, ""), why, LayoutSettings.__dataclass_fields__) from error


def _file(name: str, mark: ModelFingerprint, path: str) -> ActivationPlan:
    file = Path(name)
    if not file.is_file():
        raise ConfigError(path, name, "there is no such file")
    data = json.loads(file.read_text()) if file.suffix == ".json" else OmegaConf.to_container(OmegaConf.load(file))
    if not isinstance(data, Mapping):
        raise ConfigError(path, name, "the file holds neither a layout nor a plan")
    return resolve(data, mark, path)


def _named(name: str, mark: ModelFingerprint, path: str) -> ActivationPlan:
    layouts, recipes = (_options(group) for group in ("layout", "recipe"))
    if name in layouts:
        return build_plan(layout_settings(OmegaConf.load(config_dir() / "layout" / f"{name}.yaml"), path), mark, path)
    if name not in recipes:
        raise ConfigError(path, name, "neither a recipe nor a layout has this name", [*recipes, *layouts])
    from hp_memory.config import app as hydra_app

    return build_plan(hydra_app.to_object(hydra_app.compose("train", [f"recipe={name}"])).layout, mark, path)


def _options(group: str) -> list[str]:
    folder = config_dir() / group
    return sorted(str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.yaml"))


def _of_this_model(plan: ActivationPlan, mark: ModelFingerprint, path: str) -> ActivationPlan:
    for name in ("family", "kinds", "digest", "regions"):
        theirs, ours = getattr(plan.fingerprint, name), getattr(mark, name)
        if theirs != ours:
            raise ConfigError(
                f"{path}.fingerprint.{name}", theirs, f"the plan is for another model; this one has {ours}"
            )
    return plan
