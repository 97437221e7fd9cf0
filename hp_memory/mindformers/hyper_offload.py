"""HyperOffload in MindSpore 2.10: where each setting has to stand so that it is read, and whether it does.

The optimizer reads its switch and its strategy from the environment and its numbers from attributes of one module, all
of it once per process, at the first compilation. Environment forms of the numbers are ignored, whatever the docstrings
say. What to move is a jit option. So the launcher sets the environment, ``put_in_force`` the rest before anything is
compiled, and a callback can only check.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.offload.settings import OffloadSettings

# Numbers: setting -> attribute of mindspore.graph._parse.compile_config.
_ATTRIBUTES = {
    "select_distance": "HYPER_OFFLOAD_SELECT_DISTANCE",
    "select_num": "HYPER_OFFLOAD_SELECT_NUM",
    "prefetch_distance": "HYPER_OFFLOAD_PREFETCH_DISTANCE",
    "release_distance": "HYPER_OFFLOAD_RELEASE_DISTANCE",
    "max_device_memory": "HYPER_OFFLOAD_MAX_DEVICE_MEMORY",
    "headroom": "HYPER_OFFLOAD_PEAK_MODELED_HEADROOM_BYTES",
    "dynamic_shape_placeholder_bytes": "HYPER_OFFLOAD_DYNAMIC_SHAPE_PLACEHOLDER_BYTES",
    "memory_block_path": "HYPER_OFFLOAD_MEMORY_BLOCK_PATH",
    "d2h_bandwidth_gbps": "HYPER_OFFLOAD_D2H_BANDWIDTH_GBPS",
    "h2d_bandwidth_gbps": "HYPER_OFFLOAD_H2D_BANDWIDTH_GBPS",
    "kernel_time_us": "HYPER_OFFLOAD_DEFAULT_KERNEL_TIME_US",
}
_WEIGHTS = ("SIZE", "COVER_START", "COVER_END", "NEIGHBOR_IMPACT")


def settings(data: Mapping[str, Any], path: str) -> OffloadSettings:
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


def environment(offload: OffloadSettings) -> dict[str, str]:
    """The variables a process must have before it compiles anything; none where nothing is moved."""
    if offload.auto_offload == "none":
        return {}
    variables = {"MS_DEV_HYPER_OFFLOAD": "1"}
    switches = {
        "MS_DEV_HYPER_OFFLOAD_PEAK_STRATEGY": offload.strategy == "peak",
        "MS_DEV_HYPER_OFFLOAD_ENABLE_ADAPTIVE_RELEASE_DISTANCE": offload.adaptive_release,
        "MS_DEV_HYPER_OFFLOAD_ENABLE_ADAPTIVE_PREFETCH_DISTANCE": offload.adaptive_prefetch,
        "ENABLE_HYPER_OFFLOAD_SLIDE": offload.sliding_window,
    }
    variables |= {name: "1" for name, on in switches.items() if on}
    if offload.filter_percentage is not None:
        variables["MS_DEV_HYPER_OFFLOAD_FILTER_PERCENTAGE"] = str(offload.filter_percentage)
    if offload.stages:
        variables["MS_DEV_HYPER_OFFLOAD_FOR_STAGE"] = ",".join(map(str, offload.stages))
    return variables


def attributes(offload: OffloadSettings) -> dict[str, str]:
    """The attributes of MindSpore's compile configuration. Strings: it refuses a float."""
    numbers = {name: str(getattr(offload, setting)) for setting, name in _ATTRIBUTES.items()}
    weights = zip(_WEIGHTS, offload.score_weights, strict=True)
    return numbers | {f"HYPER_OFFLOAD_SCORE_WEIGHT_{name}": str(weight) for name, weight in weights}


def jit_options(offload: OffloadSettings) -> str:
    """The ``options`` of a JitConfig. As a keyword of its own ``auto_offload`` lands where the backend doesn't look."""
    return json.dumps({"auto_offload": offload.auto_offload})


def put_in_force(offload: OffloadSettings) -> None:
    """Sets environment and compile configuration in this process; without effect once anything was compiled."""
    if offload.auto_offload == "none":
        return
    os.environ.update(environment(offload))
    # From this name: a second import of the module under its old name would be a copy that nobody reads.
    from hp_memory.mindspore import private

    compile_config = private.compile_config()

    for name, value in attributes(offload).items():
        setattr(compile_config, name, value)


def configure(network: Any, offload: OffloadSettings, path: str = "offload") -> None:
    """Gives a graph-mode network its jit options and marks its remote parameters, after checking everything else.

    Raises:
        ConfigError: with the reason why HyperOffload would not do what the settings say.
    """
    from mindspore import JitConfig

    refuse(network, offload, path)
    if not network.jit_config_dict:
        network.set_jit_config(JitConfig(jit_level="O0", options=jit_options(offload)))
    elif json.loads(network.jit_config_dict.get("options") or "{}").get("auto_offload") != offload.auto_offload:
        why = "the network has another jit configuration already, which can be set once only"
        raise ConfigError(f"{path}.auto_offload", offload.auto_offload, why)
    if offload.moves_parameters:
        mark_remote(network.trainable_params())


def mark_remote(parameters: Iterable[Any]) -> int:
    """Marks parameters to live on the host, as ``Parameter(..., device="Remote")`` does; returns how many."""
    marked = 0
    for parameter in parameters:
        parameter._set_user_data("parameter_device", "Remote")
        marked += 1
    return marked


def refuse(network: Any, offload: OffloadSettings, path: str) -> None:
    """Raises ConfigError, with the reason, where these settings can't take effect in this process any more."""
    import mindspore as ms

    value = offload.auto_offload
    if value == "none":
        raise ConfigError(f"{path}.auto_offload", value, "moves nothing", ("weight", "activation", "all"))
    if ms.get_context("device_target") != "Ascend":
        why = (
            f"HyperOffload exists on Ascend only, this is {ms.get_context('device_target')}: MindSpore ignores it here"
        )
        raise ConfigError(f"{path}.auto_offload", value, why)
    if any(getattr(cell, "compile_cache", None) for _, cell in network.cells_and_names()):
        raise ConfigError(
            f"{path}.auto_offload", value, "the network is compiled already: MindSpore has read its settings"
        )
    refuse_out_of_force(offload, path)


def refuse_out_of_force(offload: OffloadSettings, path: str) -> None:
    """Raises ConfigError for the first setting that doesn't stand where MindSpore reads it."""
    from hp_memory.mindspore import private

    compile_config = private.compile_config()

    for name, wanted in environment(offload).items():
        if os.environ.get(name) != wanted:
            why = f"the launcher has to set {name}={wanted} before the process starts; it is {os.environ.get(name)!r}"
            raise ConfigError(path, offload.auto_offload, why)
    for name, wanted in attributes(offload).items():
        found = str(getattr(compile_config, name))
        if found != wanted:
            why = f"MindSpore's compile configuration has {name}={found}, not {wanted}"
            raise ConfigError(path, offload.auto_offload, why)


def refuse_pynative(model: Any, replays: bool, offload: OffloadSettings, path: str = "offload") -> None:
    """HyperOffload in a PyNative run: only a jitted graph inside the model has a place for it.

    Args:
        model: the model.
        replays: whether a plan saves and replays regions of the same execution.

    Raises:
        ConfigError: with the reason.
    """
    if replays:
        why = "the plan replays regions with saved-tensor hooks; one execution has those or HyperOffload, never both"
        raise ConfigError(f"{path}.auto_offload", offload.auto_offload, why)
    if not any(_is_jitted(type(cell).construct) or _is_jitted(cell.construct) for _, cell in model.cells_and_names()):
        why = "this PyNative model has no jitted graph: HyperOffload is a pass of the graph compiler"
        raise ConfigError(f"{path}.auto_offload", offload.auto_offload, why)
    refuse(model, offload, path)


def _is_jitted(function: Any) -> bool:
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code is not None and code.co_name == "staging_specialize"
