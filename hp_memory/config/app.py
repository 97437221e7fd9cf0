"""From a command line to the configs of its jobs: composed once, and refused before anything starts."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hp_memory.config import overrides, own_files, unread
from hp_memory.config import schema as config
from hp_memory.config.complaints import first_misfit, in_words, translate
from hp_memory.config.estimate import OF_YAML
from hp_memory.errors import ConfigError
from hp_memory.layout import LayoutSettings
from hp_memory.runs.paths import config_dir, make_folder

# What the mandatory values take; the commands that read them check them.
ACCEPTED = {
    "to": ("mindformers-2.0", "mindformers-2.1", "mindformers-callback", "mindformers-graph"),
    "budget": ("bytes with a unit, such as budget=58GiB",),
}


@dataclass(frozen=True)
class Jobs:
    """What a command line asks for: one config, or with ``-m`` several and the folder their common results go to."""

    configs: tuple[Any, ...]
    sweep: Path | None = None


def read(command: str, args: Sequence[str]) -> Jobs:
    """Composes and checks the config of each job; flags that only show something are served here, without jobs.

    Raises:
        ConfigError: for any flag, override, file or value that the command's config can't take.
    """
    config.register(command)
    # Hydra's parser takes flags only before the overrides or after them, people write them in between.
    args = sorted(args, key=lambda arg: "=" in arg or arg.startswith("~"))
    flags = _flags(command, args)
    if flags.help or flags.hydra_help:
        return _shown_by_hydra(command, args)
    configs = [checked(command, job) for job in jobs(list(flags.overrides), flags.multirun)]
    if flags.cfg == "job":
        print(OmegaConf.to_yaml(configs[0], resolve=flags.resolve), end="")
        return Jobs(())
    if flags.cfg or flags.info:
        return _shown_by_hydra(command, args)
    sweep = None
    if flags.multirun:
        root = configs[0].run_root
        sweep = Path(root) / "sweeps" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        make_folder("run_root", root)
    return Jobs(tuple(to_object(cfg) for cfg in configs), sweep)


def _shown_by_hydra(command: str, args: Sequence[str]) -> Jobs:
    """Help and Hydra's views of itself: Hydra reads ``sys.argv`` and runs nothing."""
    before = sys.argv
    try:
        with own_files.for_hydra(args) as words:
            sys.argv = [f"hp-memory {command}", *words]
            hydra.main(version_base="1.3", config_path=str(config_dir()), config_name=command)(lambda cfg: None)()
    finally:
        sys.argv = before
    return Jobs(())


def _flags(command: str, args: Sequence[str]) -> argparse.Namespace:
    parser = get_args_parser()

    def refuse(message: str) -> NoReturn:
        raise ConfigError(command, " ".join(args), message)

    # argparse would print its usage and exit
    vars(parser)["error"] = refuse
    flags = parser.parse_args(args)
    if flags.experimental_rerun is not None:
        why = "unpickles a file, which can run anything; give the overrides again"
        raise ConfigError("--experimental-rerun", flags.experimental_rerun, why)
    for name in ("config_name", "config_path", "config_dir"):
        value = getattr(flags, name)
        if value is not None:
            why = "a command's configs are its own; put a file of yours into a folder that `hp-memory doctor` lists"
            raise ConfigError(f"--{name.replace('_', '-')}", value, why)
    return flags


def checked(command: str, job: Sequence[str]) -> DictConfig:
    """The command's config with the overrides of one job, all of which the command reads.

    Raises:
        ConfigError: for whatever can't be composed or would have no effect.
    """
    cfg = compose(command, job)
    unread.refuse(command, job, cfg)
    if cfg.get("yaml") is not None and not overrides.given("layout", job):
        cfg.layout = LayoutSettings(name=OF_YAML, default="save")
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
        with (
            own_files.for_hydra(words) as all_words,
            hydra.initialize_config_dir(str(config_dir()), version_base="1.3"),
        ):
            return hydra.compose(command, overrides=all_words)
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
        raise ConfigError(missing[0], "???", "is mandatory and has no value", ACCEPTED.get(missing[0], ()))
    try:
        return OmegaConf.to_object(cfg)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error.full_key or "config"), "", in_words(error)) from error


def plain_data(cfg: DictConfig) -> dict[str, Any]:
    """A composed config as dicts, lists and plain values."""
    found = OmegaConf.to_container(cfg)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items()}
