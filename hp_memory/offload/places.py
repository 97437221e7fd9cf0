"""Where each setting of HyperOffload stands for MindSpore 2.10.0: the only table of it. Imports no MindSpore.

An environment variable is read when the first graph is compiled. An attribute of the compile configuration is read when
the first ``nn.Cell`` of the process is made, before any compile; environment variables of those names are ignored,
whatever MindSpore's docstrings say. What to move is an option of the graph itself (:func:`jit_arguments`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from hp_memory.offload.settings import OffloadSettings

ENVIRONMENT, COMPILE_CONFIG = "environment", "compile configuration"


@dataclass(frozen=True, slots=True)
class Place:
    """One name that MindSpore reads. ``text`` of the settings, None where the variable must not be set."""

    name: str
    where: str
    setting: str
    text: Callable[[OffloadSettings], str | None]


def _variable(name: str, setting: str, text: Callable[[OffloadSettings], str | None]) -> Place:
    return Place(name, ENVIRONMENT, setting, text)


def _switch(name: str, setting: str) -> Place:
    return _variable(name, setting, lambda settings: "1" if getattr(settings, setting) else None)


def _attribute(name: str, setting: str) -> Place:
    return Place(name, COMPILE_CONFIG, setting, lambda settings: str(getattr(settings, setting)))


def _weight(name: str, index: int) -> Place:
    return Place(name, COMPILE_CONFIG, "score_weights", lambda settings: str(settings.score_weights[index]))


def _percentage(settings: OffloadSettings) -> str | None:
    return None if settings.filter_percentage is None else str(settings.filter_percentage)


PLACES = (
    _variable("MS_DEV_HYPER_OFFLOAD", "auto_offload", lambda s: "1" if s.auto_offload != "none" else None),
    _variable("MS_DEV_HYPER_OFFLOAD_PEAK_STRATEGY", "strategy", lambda s: "1" if s.strategy == "peak" else None),
    _variable("MS_DEV_HYPER_OFFLOAD_FOR_STAGE", "stages", lambda s: ",".join(map(str, s.stages)) or None),
    _variable("MS_DEV_HYPER_OFFLOAD_FILTER_PERCENTAGE", "filter_percentage", _percentage),
    _switch("MS_DEV_HYPER_OFFLOAD_ENABLE_ADAPTIVE_RELEASE_DISTANCE", "adaptive_release"),
    _switch("MS_DEV_HYPER_OFFLOAD_ENABLE_ADAPTIVE_PREFETCH_DISTANCE", "adaptive_prefetch"),
    _attribute("HYPER_OFFLOAD_SELECT_DISTANCE", "select_distance"),
    _attribute("HYPER_OFFLOAD_SELECT_NUM", "select_num"),
    _attribute("HYPER_OFFLOAD_PREFETCH_DISTANCE", "prefetch_distance"),
    _attribute("HYPER_OFFLOAD_RELEASE_DISTANCE", "release_distance"),
    _attribute("HYPER_OFFLOAD_MAX_DEVICE_MEMORY", "max_device_memory"),
    _attribute("HYPER_OFFLOAD_PEAK_MODELED_HEADROOM_BYTES", "headroom"),
    _weight("HYPER_OFFLOAD_SCORE_WEIGHT_SIZE", 0),
    _weight("HYPER_OFFLOAD_SCORE_WEIGHT_COVER_START", 1),
    _weight("HYPER_OFFLOAD_SCORE_WEIGHT_COVER_END", 2),
    _weight("HYPER_OFFLOAD_SCORE_WEIGHT_NEIGHBOR_IMPACT", 3),
    _attribute("HYPER_OFFLOAD_MEMORY_BLOCK_PATH", "memory_block_path"),
    _attribute("HYPER_OFFLOAD_DYNAMIC_SHAPE_PLACEHOLDER_BYTES", "dynamic_shape_placeholder_bytes"),
    _attribute("HYPER_OFFLOAD_D2H_BANDWIDTH_GBPS", "d2h_bandwidth_gbps"),
    _attribute("HYPER_OFFLOAD_H2D_BANDWIDTH_GBPS", "h2d_bandwidth_gbps"),
    _attribute("HYPER_OFFLOAD_DEFAULT_KERNEL_TIME_US", "kernel_time_us"),
    Place("ENABLE_HYPER_OFFLOAD_SLIDE", COMPILE_CONFIG, "sliding_window", lambda s: "1" if s.sliding_window else ""),
)


def environment_of(settings: OffloadSettings) -> dict[str, str | None]:
    """Every variable; None where it must not be set. Nothing is set where nothing is moved."""
    off = settings.auto_offload == "none"
    return {place.name: None if off else place.text(settings) for place in PLACES if place.where == ENVIRONMENT}


def compile_config_of(settings: OffloadSettings) -> dict[str, str]:
    """Every attribute of the compile configuration, as the text that MindSpore parses: it refuses a float."""
    return {place.name: place.text(settings) or "" for place in PLACES if place.where == COMPILE_CONFIG}


def setting_of(name: str) -> str:
    """The setting that stands under a name."""
    return next(place.setting for place in PLACES if place.name == name)


def jit_arguments(settings: OffloadSettings) -> dict[str, str]:
    """Keyword arguments for ``mindspore.jit``; empty where nothing is moved."""
    return {} if settings.auto_offload == "none" else {"auto_offload": settings.auto_offload}


def jit_config_arguments(settings: OffloadSettings) -> dict[str, str]:
    """Keyword arguments for ``mindspore.JitConfig`` of a GRAPH_MODE cell.

    ``JitConfig(auto_offload=...)`` lands beside the options, where the backend doesn't look.
    """
    arguments = jit_arguments(settings)
    return {"options": json.dumps(arguments)} if arguments else {}
