"""Which kernels and collectives a device has."""

from __future__ import annotations

from types import ModuleType

import mindspore as ms


def kernels() -> ModuleType:
    """The kernels of the device that is set: Ascend's own, or their stand-ins on a CPU."""
    if ms.get_context("device_target") == "CPU":
        from hp_memory.kernels.cpu import kernels as on_cpu

        return on_cpu
    from hp_memory.kernels.ascend import kernels as on_ascend

    return on_ascend


def collectives() -> ModuleType:
    """The collectives of the device that is set."""
    if ms.get_context("device_target") == "CPU":
        from hp_memory.kernels.cpu import collectives as on_cpu

        return on_cpu
    from hp_memory.kernels.ascend import collectives as on_ascend

    return on_ascend
