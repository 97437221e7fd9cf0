"""Runs a command as a Hydra app that refuses a bad config before anything starts."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hp_memory.config import overrides, unread
from hp_memory.config import schema as config
from hp_memory.config.complaints import first_misfit, in_words, translate
from hp_memory.errors import ConfigError, HPMemoryError
from hp_memory.runs.paths import config_dir, make_folder


def run(command: str, args: list[str], body: Callable[[Any], int]) -> int:
    """Composes, checks and runs ``command``; with Hydra's showing flags (``--cfg``, ``--help``) only shows.

    Returns:
        The worst exit code among the jobs of a sweep.

    Raises:
        ConfigError: for any override, file or value that the command's config can't take.
    """
    config.register(command)
    # Hydra's parser takes flags only before the overrides or behind them, people write them in between.
    args = sorted(args, key=lambda arg: "=" in arg or arg.startswith("~"))
    flags = _flags(command, args)
    if not (flags.help or flags.hydra_help):
        ready = dict(zip(flags.overrides, overrides.prepare(command, flags.overrides), strict=True))
        args = [ready.get(arg, arg) for arg in args]
        configs = [checked(command, job) for job in jobs(list(ready.values()), flags.multirun)]
        if flags.multirun:
            make_folder("run_root", configs[0].run_root)  # where Hydra notes the sweep
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


def _flags(command: str, args: Sequence[str]) -> argparse.Namespace:
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(command, " ".join(args), message)

    # argparse would print its usage and exit
    vars(parser)["error"] = refuse
    flags = parser.parse_args(args)
    for name in ("config_name", "config_path", "config_dir"):
        value = getattr(flags, name)
        if value is not None:
            why = f"a command's configs are its own; put a file of yours into {config_dir().resolve()}"
            raise ConfigError(f"--{name.replace('_', '-')}", value, why)
    return flags


def checked(command: str, job: Sequence[str]) -> DictConfig:
    """The command's config with the overrides of one job, all of which the command reads.

    Raises:
        ConfigError: for whatever can't be composed or would have no effect.
    """
    cfg = compose(command, job)
    unread.refuse(command, job, cfg)
    return cfg


def jobs(words: list[str], sweep: bool) -> Iterable[list[str]]:
    """The overrides of each job: one, or with ``sweep`` one for every combination of listed values."""
    parsed = overrides.parse(words)
    if not sweep:
        several = next((o for o in parsed if o.is_sweep_override()), None)
        if several is not None:
            why = "several values: add -m to run one after the other, or write a list: [a,b]"
            raise ConfigError(several.key_or_group, overrides.typed(several).partition("=")[2], why)
        return [words]
    return BasicSweeper.split_arguments(parsed, max_batch_size=None)[0]


def compose(command: str, words: Sequence[str]) -> DictConfig:
    """The command's config with these overrides.

    Raises:
        ConfigError: in place of whatever Hydra or OmegaConf raises.
    """
    config.register(command)
    words = overrides.prepare(command, words)
    try:
        cfg = _composed(command, words)
        _refuse_added_keys(cfg, "")
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise _misfit(command, words) or translate(error, command, words) from error
    return cfg


def _composed(command: str, words: Sequence[str]) -> DictConfig:
    # A command may compose while Hydra runs it.
    running, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
    try:
        with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
            return hydra.compose(command, overrides=list(words))
    finally:
        GlobalHydra.instance().hydra = running


def _misfit(command: str, words: Sequence[str]) -> ConfigError | None:
    """What the schema refuses, found by composing once more without it; None where the fault is another."""
    try:
        with config.without_types(command):
            plain = _composed(command, words)
        return first_misfit(config.SCHEMAS[command], plain_data(plain))
    except (HydraException, OmegaConfBaseException, ValueError):
        return None


def _refuse_added_keys(node: DictConfig, prefix: str) -> None:
    """Hydra lets ``+key=value`` add keys that no dataclass has, and nobody would ever read them."""
    schema = OmegaConf.get_type(node)
    known = [f.name for f in dataclasses.fields(schema)] if dataclasses.is_dataclass(schema) else list(node)
    for key in node:
        path = f"{prefix}{key!s}"
        if key not in known:
            raise ConfigError(path, str(node[key]), "no such key", [f"{prefix}{k}" for k in known], meant=path)
        child = None if OmegaConf.is_missing(node, key) else node[key]
        if schema is dict and OmegaConf.is_config(child):
            raise ConfigError(path, OmegaConf.to_container(child), "must be one value, not several")
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
        raise ConfigError(str(error.full_key or "config"), "", in_words(error)) from error


def plain_data(cfg: DictConfig) -> dict[str, Any]:
    """A composed config as dicts, lists and plain values."""
    found = OmegaConf.to_container(cfg)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}
