"""HyperOffload in a callback: which networks can have it, and that its settings are in force by then.

A callback comes after the model, and MindSpore has read its settings by then: a launcher or the worker sets them (see
``hp_memory.offload.apply``), a callback can only give the network its jit options and check the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.offload.apply import refuse_out_of_force
from hp_memory.offload.places import jit_config_arguments
from hp_memory.offload.settings import OffloadSettings


def configure(network: Any, offload: OffloadSettings, path: str = "offload") -> None:
    """Gives a graph-mode network its jit options and marks its remote parameters, after checking everything else.

    Raises:
        ConfigError: with the reason why HyperOffload would not do what the settings say.
    """
    from mindspore import JitConfig

    refuse(network, offload, path)
    if not network.jit_config_dict:
        network.set_jit_config(JitConfig(jit_level="O0", **jit_config_arguments(offload)))
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
