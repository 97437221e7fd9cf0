"""The desk for HyperOffload's settings: from a launcher to its workers, into MindSpore, and whether they are in force.

Launcher, callbacks, ``doctor`` and the ``offload`` command come here; what stands where is in ``places``.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from types import ModuleType
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.mindspore import compile_config
from hp_memory.offload.places import compile_config_of, environment_of, setting_of
from hp_memory.offload.settings import OffloadSettings

# What a launcher hands its workers: the settings as JSON. `hp_memory.offload.start` applies them in the worker.
SETTINGS_VARIABLE = "HP_MEMORY_OFFLOAD"
START = ("python", "-m", "hp_memory.offload.start")


@dataclass(frozen=True, slots=True)
class Applied:
    """What was set: environment variables (None: removed) and attributes of the compile configuration."""

    environment: dict[str, str | None]
    compile_config: dict[str, str]


def settings_from(data: Mapping[str, Any], path: str) -> OffloadSettings:
    """Offload settings from plain data.

    Raises:
        ConfigError: for a key that doesn't exist or a value that MindSpore would misread.
    """
    names = [field.name for field in fields(OffloadSettings)]
    for key in data:
        if key not in names:
            raise ConfigError(f"{path}.{key}", data[key], "no such key", names, meant=key)
    made = OffloadSettings(**data)
    made.validate(path)
    return made


def worker_environment(settings: OffloadSettings, own: Mapping[str, str], path: str) -> dict[str, str]:
    """A worker's further variables, with ``own`` ones of a launch among them; no more than those where nothing moves.

    Raises:
        ConfigError: an own variable contradicts the settings.
    """
    if settings.auto_offload == "none":
        refuse_without_effect(settings)
        return dict(own)
    wanted = {name: value for name, value in environment_of(settings).items() if value is not None}
    wanted[SETTINGS_VARIABLE] = json.dumps(asdict(settings))
    for name, value in wanted.items():
        if own.get(name, value) != value:
            raise ConfigError(f"{path}.{name}", own[name], f"contradicts the offload settings, which need {value}")
    return wanted | dict(own)


def refuse_without_effect(settings: OffloadSettings) -> None:
    """Refuse settings of a pass that is off."""
    default = OffloadSettings()
    for name in (field.name for field in fields(OffloadSettings)):
        if getattr(settings, name) != getattr(default, name):
            why = "has no effect with offload.auto_offload=none: choose weight, activation or all"
            raise ConfigError(f"offload.{name}", getattr(settings, name), why)


def worker_task(settings: OffloadSettings, task: Sequence[str], path: str) -> list[str]:
    """A launch's task, started so that the settings are set before its first line.

    Raises:
        ConfigError: a task that isn't a Python program.
    """
    if settings.auto_offload == "none" or not task:
        return list(task)
    if task[0] in ("python", "python3") and len(task) > 1 and (task[1] == "-m" or not task[1].startswith("-")):
        return [*START, *task[1:]]
    if task[0].endswith(".py"):
        return [*START, *task]
    why = "HyperOffload's settings reach `python SCRIPT`, `python -m MODULE` and `SCRIPT.py` only"
    raise ConfigError(path, list(task), f"{why}: MindSpore reads them in the worker's own process")


def settings_for_worker(environment: Mapping[str, str]) -> OffloadSettings | None:
    """What a launcher handed to this worker; None where it handed nothing."""
    text = environment.get(SETTINGS_VARIABLE)
    if text is None:
        return None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(SETTINGS_VARIABLE, text, f"is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise ConfigError(SETTINGS_VARIABLE, text, "must be a JSON object of offload settings")
    return settings_from(data, SETTINGS_VARIABLE)


def apply(settings: OffloadSettings) -> Applied:
    """Set environment and compile configuration. Make no ``nn.Cell`` before.

    Raises:
        ConfigError: a setting is wrong, MindSpore doesn't have it, or has read its settings already.
    """
    settings.validate("offload")
    attributes = compile_config_of(settings)
    module = compile_config_module()
    for name in attributes:
        if not hasattr(module, name):
            raise ConfigError(
                f"offload.{setting_of(name)}", name, f"this MindSpore's compile configuration has no {name}"
            )
    if settings.auto_offload != "none" and compile_config.in_force() is not None:
        why = "MindSpore reads its settings when the first nn.Cell is made, and one was: apply them before"
        raise ConfigError("offload.auto_offload", settings.auto_offload, why)
    done = Applied(environment_of(settings), attributes)
    set_all(module, done.environment, done.compile_config)
    return done


def refuse_out_of_force(settings: OffloadSettings, path: str) -> None:
    """Refuse settings of which MindSpore reads, or would read, something else.

    Raises:
        ConfigError: naming the first setting, what MindSpore reads and how to change it.
    """
    how = "start the worker with `hp-memory launch` or call hp_memory.offload.apply.apply before the first nn.Cell"
    for name, wanted in environment_of(settings).items():
        if os.environ.get(name) != wanted:
            why = f"MindSpore reads {name}={os.environ.get(name)!r} from the environment, not {wanted!r}: {how}"
            raise ConfigError(f"{path}.{setting_of(name)}", getattr(settings, setting_of(name)), why)
    read = compile_config.in_force()
    module = compile_config_module()
    for name, wanted in compile_config_of(settings).items():
        found = str(getattr(module, name)) if read is None else read.get(name)
        if found != wanted:
            why = f"MindSpore reads {name}={found}, not {wanted}: {how}"
            raise ConfigError(f"{path}.{setting_of(name)}", getattr(settings, setting_of(name)), why)


@contextmanager
def applied(settings: OffloadSettings) -> Iterator[Applied]:
    """For tests: apply, and put back what was there. What MindSpore has read by then stays read."""
    module = compile_config_module()
    environment = {name: os.environ.get(name) for name in environment_of(settings)}
    attributes = {name: getattr(module, name) for name in compile_config_of(settings) if hasattr(module, name)}
    try:
        yield apply(settings)
    finally:
        set_all(module, environment, attributes)


def set_all(module: ModuleType, environment: Mapping[str, str | None], attributes: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for name, text in attributes.items():
        setattr(module, name, text)


def compile_config_module() -> ModuleType:
    """The module object MindSpore reads. Its name under ``_extends`` imported as a module is a copy nobody reads."""
    from hp_memory.mindspore import private

    return private.compile_config()


def capability() -> tuple[bool, str]:
    """Whether HyperOffload can run here, and why, in one line."""
    try:
        module = compile_config_module()
    except ImportError as error:
        return False, f"MindSpore can't be imported: {error}"
    if not hasattr(module, "HYPER_OFFLOAD_SELECT_DISTANCE"):
        return False, "this MindSpore has no HyperOffload (2.10.0 has)"
    try:
        compile_config.in_force()
    except OSError as error:
        return False, f"whether settings are in force can't be checked: {error}"
    if shutil.which("npu-smi") is None and not os.path.exists("/dev/davinci_manager"):
        return False, "no Ascend device: MindSpore accepts jit(auto_offload=...) on a CPU and ignores it"
    return True, "HyperOffload can run: an Ascend device and MindSpore's settings are there"
