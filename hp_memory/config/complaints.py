"""Hydra's and OmegaConf's complaints as ConfigErrors: with the whole path, the value, and what is accepted."""

from __future__ import annotations

import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hp_memory.config import own_files
from hp_memory.config import schema as config
from hp_memory.errors import ConfigError

# OmegaConf's words, and words for people who never heard of its classes.
_IN_WORDS = (
    (r"(?:field '.*'|.*child .*) is not Optional", "must have a value, null isn't one"),
    (r"Incompatible value 'None' for field of type .*", "must have a value, null isn't one"),
    (r"Invalid type assigned: NoneType is not a subclass of .*", "must have a value, null isn't one"),
    (
        r"Config group override must be a string or a list\. Got NoneType",
        "must be the name of an option, null isn't one",
    ),
    (r"Invalid value assigned: \w+ is not a ListConfig, list or tuple\.", "must be a list: [a, b]"),
    (r"Cannot merge \w+ with ListConfig", "must be a list: [a, b]"),
    (
        r"(?:Invalid type assigned|Merge error): (\w+) is not a subclass of \w+\. value: .*",
        r"must be a mapping {{key: value}}, not \1",
    ),
    (r"Cannot merge (?:ListConfig|\w+Node) with DictConfig", "must be a mapping {{key: value}}"),
    (r"Value '(.*)' of type '(\w+)' could not be converted to Integer", "must be a whole number"),
    (r"Value '(.*)' of type '(\w+)' could not be converted to Float", "must be a number"),
    (r"Value '(.*)' (?:of type '\w+' could not be converted to|is not a valid) [Bb]ool.*", "must be true or false"),
    (r"Cannot convert '(\w+)' to string: .*", r"must be one word or number, not a \1"),
)


def in_words(error: BaseException) -> str:
    """The first line of an error, without the names of OmegaConf's classes where that can be helped."""
    line = str(error).strip().split("\n")[0]
    for pattern, words in _IN_WORDS:
        match = re.fullmatch(pattern, line)
        if match:
            return match.expand(words).replace("{{", "{").replace("}}", "}")
    return line


def translate(error: Exception, command: str, overrides: Sequence[str]) -> ConfigError:
    """The ConfigError for what Hydra or OmegaConf raised while it composed ``command``."""
    text = str(error)
    if isinstance(error, ValueError) and not isinstance(error, OmegaConfBaseException):
        null = next((o for o in overrides if re.fullmatch(r"[+\w/]+=null", o)), "")
        key, value = null.split("=") if null else ("override", " ".join(overrides))
        return ConfigError(key, value, in_words(error))
    group = re.search(r"(?:Could not find|In '.*': Could not find) '([\w/.-]+)'", text)
    if group and "/" in group.group(1):
        name, _, option = group.group(1).rpartition("/")
        return ConfigError(name, option, "no such option in this group", options(name))
    twice = re.search(r"Multiple values for (\S+)\. To override a value use", text)
    if twice:
        key = twice.group(1)
        return ConfigError(key, value_of(f"+{key}", overrides), f"is set already; write {key}=... without the plus")
    unknown = re.search(r"(?:Key|Could not (?:override|append)) '([^']*)'", text)
    where = getattr(error.__cause__, "full_key", None) or getattr(error, "full_key", None)
    if unknown and ("not in" in text or "Could not" in text):
        key = str(where or unknown.group(1))
        return ConfigError(key, value_of(key, overrides), "no such key", siblings(command, key), meant=key)
    key = str(where or "override")
    value = value_of(key, overrides) if where else " ".join(overrides)
    return ConfigError(key, value, in_words(error.__cause__ or error))


def first_misfit(schema: type, data: Mapping[str, Any], prefix: str = "") -> ConfigError | None:
    """The first key or value in plain data that a structured config can't take, with its path.

    OmegaConf forgets where an item of a list stood.
    """
    types = typing.get_type_hints(schema)
    for name, value in data.items():
        path = f"{prefix}{name}"
        if name not in types:
            return ConfigError(path, value, "no such key", [f"{prefix}{f.name}" for f in fields(schema)], meant=path)
        found = _misfit_within(types[name], value, path)
        if found is None:
            try:
                OmegaConf.merge(OmegaConf.structured(schema), {name: value})
            except OmegaConfBaseException as error:
                full = f"{prefix}{error.full_key or name}"
                found = ConfigError(full, _at(data, str(error.full_key or name)), in_words(error))
        if found is not None:
            return found
    return None


def _misfit_within(kind: Any, value: Any, path: str) -> ConfigError | None:
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, Mapping):
        return first_misfit(kind, value, f"{path}.")
    item = typing.get_args(kind)[0] if typing.get_origin(kind) is list else None
    if isinstance(item, type) and is_dataclass(item) and isinstance(value, list):
        for i, each in enumerate(value):
            found = first_misfit(item, each, f"{path}[{i}].") if isinstance(each, Mapping) else None
            if found is not None:
                return found
    return None


def _at(data: Any, key: str) -> Any:
    """The value below ``key`` (``a.b[0]``), or all of it where the path leads nowhere."""
    for part in filter(None, re.split(r"[.\[\]]+", key)):
        try:
            data = data[int(part)] if isinstance(data, list) else data[part]
        except (LookupError, ValueError, TypeError):
            break
    return data


def options(group: str) -> list[str]:
    """The names a config group can be set to."""
    return list(own_files.options(group))


def siblings(command: str, key: str) -> list[str]:
    """The keys that exist beside ``key`` in the command's schema, with their full paths."""
    prefix, _, _ = key.rpartition(".")
    node = OmegaConf.structured(config.SCHEMAS[command])
    for part in filter(None, prefix.split(".")):
        node = node.get(part) if isinstance(node, DictConfig) and part in node else None
    names = list(node) if isinstance(node, DictConfig) else []
    return [f"{prefix}.{n}" if prefix else str(n) for n in names]


def value_of(key: str, overrides: Sequence[str]) -> str:
    """What the overrides set ``key`` to, as typed."""
    for override in overrides:
        name, _, value = override.partition("=")
        if name.lstrip("+~") == key.lstrip("+~"):
            return value
    return ""
