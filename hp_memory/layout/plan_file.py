"""``plan.json``, the activation plan of a run directory: spelled, read and checked here only."""

from __future__ import annotations

import json
from pathlib import Path

from hp_memory.errors import ConfigError
from hp_memory.layout.plan import ActivationPlan, from_dict

NAME = "plan.json"


def text(plan: ActivationPlan) -> str:
    """What the file says."""
    return json.dumps(plan.to_dict(), indent=1)


def read(file: Path, path: str = "plan") -> ActivationPlan:
    """The plan in ``file``; ``path`` says where the file is named, for errors.

    Raises:
        ConfigError: for a file that isn't JSON, or a plan that isn't complete or of another schema version.
    """
    return from_dict(parse(file, path), path)


def parse(file: Path, path: str) -> dict:
    """What a JSON file holds: a plan, or a layout's settings.

    Raises:
        ConfigError: for anything that isn't one JSON object.
    """
    try:
        data = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(path, str(file), f"can't be read: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(path, str(file), "holds neither a layout nor a plan")
    return data
