"""How a device's measured times correct the model: each region by the ratio that its calibration found."""

from __future__ import annotations

from collections.abc import Mapping

from hp_memory.config.estimate import DeviceSettings
from hp_memory.errors import ConfigError
from hp_memory.estimate.times.operations import seconds
from hp_memory.estimate.tracing.record import LayerTrace, Op
from hp_memory.runs.region_times import BETWEEN, HEAD, RegionTimes, read_times

PATH = "estimate.device.times"
SPEEDS = ("teraflops", "memory_bandwidth", "link_bandwidth")


def corrected(trace: LayerTrace, op: Op, device: DeviceSettings) -> float:
    """What an operation takes: modelled, and corrected where the device has been calibrated.

    A forward is corrected region by region. A backward runs whole under every layout, and which region an operation of
    it belongs to isn't always known: it has one factor.
    """
    took, times = seconds(trace, op, device), times_of(trace, device)
    if times is None:
        return took
    return took * (
        times.forward_factor(trace.kind, _row(trace, op.region))
        if op.phase == "forward"
        else times.backward_factor(trace.kind)
    )


def unmodelled(trace: LayerTrace, device: DeviceSettings) -> dict[str, float]:
    """Measured seconds of the forwards of regions in which the model finds nothing that takes time."""
    times = times_of(trace, device)
    if times is None:
        return {}
    rows = times.kinds[trace.kind]
    return {region: row.forward for region, row in rows.items() if not row.modelled_forward}


def times_of(trace: LayerTrace, device: DeviceSettings) -> RegionTimes | None:
    """The calibration that fits the layer, or None without one.

    Raises:
        ConfigError: if it is of a model without these regions, or was compared with other speeds.
    """
    if device.times is None:
        return None
    times = read_times(device.times, PATH)
    _refuse_other_speeds(times, device)
    rows = times.kinds.get(trace.kind)
    if rows is None:
        raise ConfigError(PATH, device.times, f"has no layer of kind {trace.kind}: it is of {times.model}")
    missing = [region for region in trace.regions if trace.kind != HEAD and region not in rows]
    if missing:
        raise ConfigError(PATH, device.times, f"has no {missing[0]} in a {trace.kind} layer: it is of {times.model}")
    return times


def _row(trace: LayerTrace, region: str) -> str:
    # All that stands after the layers was measured as one.
    return BETWEEN if trace.kind == HEAD else region


def _refuse_other_speeds(times: RegionTimes, device: DeviceSettings) -> None:
    for name in SPEEDS:
        if times.speeds[name] != getattr(device, name):
            why = f"was compared with {name}={times.speeds[name]:g}, not {getattr(device, name):g}: calibrate again"
            raise ConfigError(PATH, device.times, why)


def speeds_of(device: DeviceSettings) -> Mapping[str, float]:
    """The figures that the modelled seconds come from."""
    return {name: getattr(device, name) for name in SPEEDS}


def modelled(trace: LayerTrace, device: DeviceSettings) -> dict[str, tuple[float, float]]:
    """Modelled seconds (forward, backward) of each region that the trace has operations of."""
    found: dict[str, tuple[float, float]] = {}
    for op in trace.ops:
        forward, backward = found.get(op.region, (0.0, 0.0))
        took = seconds(trace, op, device)
        found[op.region] = (forward + took, backward) if op.phase == "forward" else (forward, backward + took)
    return found
