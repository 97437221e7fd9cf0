"""Hands settings to MindSpore 2.10.0: environment variables, compile configuration, jit options.

MindSpore reads all of it once per process, at the first compile of any graph. Later changes have no effect and give no
message, so they are refused here.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from hp_memory.errors import ConfigError
from hp_memory.offload.settings import OffloadSettings


@dataclass(frozen=True, slots=True)
class Applied:
    """What was set: environment variables (None: removed) and attributes of the compile configuration."""

    environment: dict[str, str | None]
    compile_config: dict[str, str]


def environment_of(settings: OffloadSettings) -> dict[str, str | None]:
    """The variables MindSpore 2.10.0 reads from the environment only."""
    on = settings.auto_offload != "none"
    percentage = settings.filter_percentage
    return {
        "MS_DEV_HYPER_OFFLOAD": "1" if on else None,
        "MS_DEV_HYPER_OFFLOAD_PEAK_STRATEGY": "1" if on and settings.strategy == "peak" else None,
        "MS_DEV_HYPER_OFFLOAD_FOR_STAGE": ",".join(map(str, settings.stages)) or None,
        "MS_DEV_HYPER_OFFLOAD_FILTER_PERCENTAGE": None if percentage is None else str(percentage),
        "MS_DEV_HYPER_OFFLOAD_ENABLE_ADAPTIVE_RELEASE_DISTANCE": "1" if settings.adaptive_release else None,
        "MS_DEV_HYPER_OFFLOAD_ENABLE_ADAPTIVE_PREFETCH_DISTANCE": "1" if settings.adaptive_prefetch else None,
    }


def compile_config_of(settings: OffloadSettings) -> dict[str, str]:
    """The attributes MindSpore 2.10.0 reads from its compile configuration only, as the text it parses."""
    by_size, by_start, by_end, by_overlap = settings.score_weights
    values = {
        "HYPER_OFFLOAD_SELECT_DISTANCE": settings.select_distance,
        "HYPER_OFFLOAD_SELECT_NUM": settings.select_num,
        "HYPER_OFFLOAD_PREFETCH_DISTANCE": settings.prefetch_distance,
        "HYPER_OFFLOAD_RELEASE_DISTANCE": settings.release_distance,
        "HYPER_OFFLOAD_MAX_DEVICE_MEMORY": settings.max_device_memory,
        "HYPER_OFFLOAD_PEAK_MODELED_HEADROOM_BYTES": settings.headroom,
        "HYPER_OFFLOAD_SCORE_WEIGHT_SIZE": by_size,
        "HYPER_OFFLOAD_SCORE_WEIGHT_COVER_START": by_start,
        "HYPER_OFFLOAD_SCORE_WEIGHT_COVER_END": by_end,
        "HYPER_OFFLOAD_SCORE_WEIGHT_NEIGHBOR_IMPACT": by_overlap,
        "HYPER_OFFLOAD_MEMORY_BLOCK_PATH": settings.memory_block_path,
        "HYPER_OFFLOAD_DYNAMIC_SHAPE_PLACEHOLDER_BYTES": settings.dynamic_shape_placeholder_bytes,
        "HYPER_OFFLOAD_D2H_BANDWIDTH_GBPS": settings.d2h_bandwidth_gbps,
        "HYPER_OFFLOAD_H2D_BANDWIDTH_GBPS": settings.h2d_bandwidth_gbps,
        "HYPER_OFFLOAD_DEFAULT_KERNEL_TIME_US": settings.kernel_time_us,
        "ENABLE_HYPER_OFFLOAD_SLIDE": "1" if settings.sliding_window else "",
    }
    return {name: str(value) for name, value in values.items()}


def apply(settings: OffloadSettings) -> Applied:
    """Set environment and compile configuration.

    Raises:
        ConfigError: a setting is wrong, MindSpore doesn't have it, or a graph was compiled in this process already.
    """
    settings.validate("offload")
    attributes = compile_config_of(settings)
    module = compile_config_module()
    for name in attributes:
        if not hasattr(module, name):
            raise ConfigError("offload", name, f"this MindSpore's compile configuration has no {name}")
    if settings.auto_offload != "none" and has_compiled():
        why = "MindSpore has compiled a graph in this process and reads these settings once: set them before"
        raise ConfigError("offload.auto_offload", settings.auto_offload, why)
    applied = Applied(environment_of(settings), attributes)
    set_all(module, applied.environment, applied.compile_config)
    return applied


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


def set_all(module: ModuleType, environment: dict[str, str | None], attributes: dict[str, str]) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    for name, value in attributes.items():
        setattr(module, name, value)


def compile_config_module() -> ModuleType:
    """The module object MindSpore reads. Its name under ``_extends`` imported as a module is a copy nobody reads."""
    from hp_memory.mindspore import private

    return private.compile_config()


def has_compiled() -> bool:
    """Whether any function or cell was compiled in this process."""
    from hp_memory.mindspore import private

    api = private.graph_api
    return bool(api.ms_compile_cache or api.cells_compile_cache)


def jit_arguments(settings: OffloadSettings) -> dict[str, str]:
    """Keyword arguments for ``mindspore.jit``; empty where nothing is moved."""
    return {} if settings.auto_offload == "none" else {"auto_offload": settings.auto_offload}


def jit_config_arguments(settings: OffloadSettings) -> dict[str, str]:
    """Keyword arguments for ``mindspore.JitConfig`` of a GRAPH_MODE cell.

    ``JitConfig(auto_offload=...)`` lands beside the options, where the backend doesn't look.
    """
    arguments = jit_arguments(settings)
    return {"options": json.dumps(arguments)} if arguments else {}


def capability() -> tuple[bool, str]:
    """Whether HyperOffload can run here, and why, in one line."""
    try:
        module = compile_config_module()
    except ImportError as error:
        return False, f"MindSpore can't be imported: {error}"
    if not hasattr(module, "HYPER_OFFLOAD_SELECT_DISTANCE"):
        return False, "this MindSpore has no HyperOffload (2.10.0 has)"
    if shutil.which("npu-smi") is None and not os.path.exists("/dev/davinci_manager"):
        return False, "no Ascend device: MindSpore accepts jit(auto_offload=...) on a CPU and ignores it"
    return True, "HyperOffload can run: an Ascend device and MindSpore's settings are there"
