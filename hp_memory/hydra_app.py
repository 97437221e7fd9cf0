"""Runs a command as a Hydra app, and turns Hydra's and OmegaConf's complaints into ConfigErrors."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hp_memory import config
from hp_memory.errors import ConfigError, HPMemoryError
from hp_memory.paths import config_dir


def run(command: str, args: list[str], body: Callable[[Any], int]) -> int:
    """Composes, checks and runs ``command``; with Hydra's showing flags (``--cfg``, ``--help``) only shows.

    Returns:
        The worst exit code among the jobs of a sweep.

    Raises:
        ConfigError: for any override, file or value that the command's config can't take.
    """
    # Hydra's parser takes flags only before the overrides or behind them, people write them in between.
    args = sorted(args, key=lambda arg: "=" in arg or arg.startswith("~"))
    flags = get_args_parser().parse_args(args)
    if not (flags.help or flags.hydra_help):
        for job in jobs(flags.overrides, flags.multirun):
            compose(command, job)
    codes: list[int] = []
    refused: list[HPMemoryError] = []

    def task(cfg: DictConfig) -> None:
        # Hydra would print a traceback of its own: our errors leave by this list.
        try:
            codes.append(body(to_object(cfg)))
        except HPMemoryError as error:
            refused.append(error)

    sys.argv = [f"hp-memory {command}", *args]
    hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=command)(task)()
    if refused:
        raise refused[0]
    return max(codes, default=0)


def jobs(overrides: list[str], sweep: bool) -> Iterable[list[str]]:
    """The overrides of each job: one, or with ``sweep`` one for every combination of listed values."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as error:
        raise ConfigError("override", " ".join(overrides), _first_line(error)) from error
    if not sweep:
        return [overrides]
    return BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]


def compose(command: str, overrides: list[str]) -> DictConfig:
    """The command's config with these overrides.

    Raises:
        ConfigError: in place of whatever Hydra or OmegaConf raises.
    """
    config.register()
    # A command may compose while Hydra runs it.
    running, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
            cfg = hydra.compose(command, overrides=overrides)
        _refuse_added_keys(cfg, "")
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _translate(error, command, overrides) from error
    finally:
        GlobalHydra.instance().hydra = running
    return cfg


def _refuse_added_keys(node: DictConfig, prefix: str) -> None:
    """Hydra lets ``+key=value`` add keys that no dataclass has, and nobody would ever read them."""
    schema = OmegaConf.get_type(node)
    known = [f.name for f in dataclasses.fields(schema)] if dataclasses.is_dataclass(schema) else list(node)
    for key in node:
        path = f"{prefix}{key}"
        if key not in known:
            raise ConfigError(path, str(node[key]), "no such key", [f"{prefix}{k}" for k in known], meant=path)
        child = None if OmegaConf.is_missing(node, key) else node[key]
        if isinstance(child, DictConfig):
            _refuse_added_keys(child, f"{path}.")


def to_object(cfg: DictConfig) -> Any:
    """The config as its dataclasses, every value present.

    Raises:
        ConfigError: where a mandatory value is missing or can't be resolved.
    """
    missing = sorted(OmegaConf.missing_keys(cfg))
    if missing:
        raise ConfigError(missing[0], "???", "is mandatory and has no value")
    try:
        return OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error.full_key or "config"), "", _first_line(error)) from error


def _translate(error: Exception, command: str, overrides: list[str]) -> ConfigError:
    text = str(error)
    if isinstance(error, ValueError) and not isinstance(error, OmegaConfBaseException):
        return ConfigError("override", " ".join(overrides), _first_line(error))
    group = re.search(r"(?:Could not find|In '.*': Could not find) '([\w/.-]+)'", text)
    if group and "/" in group.group(1):
        name, _, option = group.group(1).rpartition("/")
        return ConfigError(name, option, "no such option in this group", options(name))
    unknown = re.search(r"(?:Key|Could not (?:override|append)) '([^']*)'", text)
    where = getattr(error.__cause__, "full_key", None) or getattr(error, "full_key", None)
    if unknown and ("not in" in text or "Could not" in text):
        key = str(where or unknown.group(1))
        return ConfigError(key, _value_of(key, overrides), "no such key", _siblings(command, key), meant=key)
    key = str(where or "override")
    return ConfigError(key, _value_of(key, overrides), _first_line(error.__cause__ or error))


def options(group: str) -> list[str]:
    """The names a config group can be set to."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path

    loader = ConfigLoaderImpl(create_config_search_path(str(config_dir())))
    return sorted(loader.get_group_options(group))


def _siblings(command: str, key: str) -> list[str]:
    """The keys that exist beside ``key`` in the command's schema, with their full paths."""
    prefix, _, _ = key.rpartition(".")
    node = OmegaConf.structured(config.SCHEMAS[command])
    for part in filter(None, prefix.split(".")):
        node = node.get(part) if isinstance(node, DictConfig) and part in node else None
    names = list(node) if isinstance(node, DictConfig) else []
    return [f"{prefix}.{n}" if prefix else str(n) for n in names]


def _value_of(key: str, overrides: list[str]) -> str:
    for override in overrides:
        name, _, value = override.partition("=")
        if name.lstrip("+~") == key:
            return value
    return ""


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0]
