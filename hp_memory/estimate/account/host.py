"""What a layer holds on the host: the rules of ``hp_memory.host.window`` and of offloaded regions."""

from __future__ import annotations

from collections.abc import Sequence

from hp_memory.estimate.account.held import HeldStorage, uses
from hp_memory.estimate.tracing.record import LayerTrace
from hp_memory.layout import Layout

_MOVES = ("float16", "bfloat16", "float32", "float64")


def on_host(trace: LayerTrace, layout: Layout, entries: Sequence[HeldStorage], least: int) -> set[int]:
    """The storages among ``entries`` that move: of ``least`` bytes or more, and held by offloaded regions only.

    A storage that a saved region's backward reads too stays on the device for it.
    """
    saved_in = {use.storage: use.saved_in for use in uses(trace)}
    found = set()
    for entry in entries:
        storage = trace.storages[entry.storage]
        if storage.nbytes < max(least, 1) or not storage.dtype.lower().endswith(_MOVES):
            continue
        holders = [entry.region]
        if entry.reason == "saved for backward":
            holders = [region for region in saved_in[entry.storage] if layout.action(region) != "recompute"]
        elif entry.reason not in ("output read by the replay", "output kept by the layout"):
            continue
        if all(region and layout.action(region) == "offload" for region in holders):
            found.add(entry.storage)
    return found
