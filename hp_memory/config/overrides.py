"""Overrides as they are typed, before Hydra composes them: entries of dictionaries, and what can't be left out."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException

from hp_memory.config import schema as config
from hp_memory.errors import ConfigError


def parse(overrides: Sequence[str]) -> list[Override]:
    """Hydra's view of each override.

    Raises:
        ConfigError: for one that can't be read.
    """
    parsed = []
    for text in overrides:
        try:
            parsed.append(OverridesParser.create().parse_override(text))
        except HydraException as error:
            raise ConfigError("override", text, _why_unreadable(text, error)) from error
        key = parsed[-1].key_or_group
        if not key:
            raise ConfigError("override", text, "an override is written key=value")
        if key.split(".")[0].split("/")[0] == "hydra":
            # hydra.searchpath, hydra.run.dir and the like would read configs from, or write into, other folders.
            raise ConfigError(key, text.partition("=")[2], "Hydra's own settings are fixed; set run_root or run_dir")
    return parsed


def _why_unreadable(text: str, error: HydraException) -> str:
    if "=" not in text:
        return "an override is written key=value"
    where = str(error).strip().split("\n")[0]
    return f"can't be read ({where}); text with other than plain letters is quoted twice: 'key=\"value\"'"


def given(group: str, overrides: Sequence[str]) -> bool:
    """Whether the overrides set this key, or one below it."""
    keys = [override.key_or_group.replace("/", ".") for override in parse(overrides)]
    return any(key == group or key.startswith(f"{group}.") for key in keys)


def prepare(command: str, overrides: Sequence[str]) -> list[str]:
    """The overrides as Hydra takes them: ``launch.env.X=1`` becomes ``++launch.env.X=1``, a new entry of a dictionary.

    Raises:
        ConfigError: for an override that can't be read, and for ``~key``: every setting is needed.
    """
    entries = tuple(dictionaries(config.SCHEMAS[command]))
    return [_prepared(override, entries) for override in parse(overrides)]


def typed(override: Override) -> str:
    """The override as it was typed."""
    assert override.input_line is not None
    return override.input_line


def _prepared(override: Override, entries: Sequence[str]) -> str:
    key, text = override.key_or_group, typed(override)
    path = next((path for path in entries if key == path or key.startswith(f"{path}.")), None)
    if override.type == OverrideType.DEL:
        if path is None or key == path:
            why = f"no setting can be left out; give it another value ({key}=...)"
            raise ConfigError("override", text, why)
        return text
    if path is None or override.type == OverrideType.ADD:
        return text
    entry, value = key[len(path) + 1 :], text.partition("=")[2]
    if "." in entry:  # the name of a region; Hydra would take the point for a level
        return f"++{path}={{{entry}:{value}}}"
    return f"++{text.lstrip('+')}"


def dictionaries(schema: type, prefix: str = "") -> Iterator[str]:
    """Paths of the settings that are dictionaries with names of the user's."""
    types = typing.get_type_hints(schema)
    for name in (field.name for field in fields(schema)):
        if is_dataclass(types[name]):
            yield from dictionaries(types[name], f"{prefix}{name}.")
        elif typing.get_origin(types[name]) is dict:
            yield f"{prefix}{name}"
