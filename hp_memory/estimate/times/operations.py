"""Seconds of one operation: products by their FLOPs, everything else by the bytes it moves, collectives by the link."""

from __future__ import annotations

from hp_memory.config.estimate import DeviceSettings
from hp_memory.estimate.tracing.record import EXCHANGE, LayerTrace, Op


def seconds(trace: LayerTrace, op: Op, device: DeviceSettings) -> float:
    """What an operation takes: the longer of its products and of reading and writing its storages once.

    A view takes nothing. A collective takes what the larger side, sent or received, needs at the link's speed.
    """
    if op.name == EXCHANGE:
        return max(trace.nbytes(op.reads), trace.nbytes(op.writes)) / device.link_bandwidth
    touched = trace.nbytes({*op.reads, *op.writes}) if set(op.writes) - set(op.reads) else 0
    return max(op.flops / (device.teraflops * 1e12), touched / device.memory_bandwidth)
