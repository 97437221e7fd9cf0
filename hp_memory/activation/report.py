"""The saved-tensor report: per region what is held after forward, how much and why."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rich.table import Table

from hp_memory.activation.observing import Observation


class Report:
    """A rich renderable with ``.to_dict()``; bytes are storages, counted once each."""

    def __init__(self, observation: Observation) -> None:
        self.held = list(observation.held)
        self.runs = dict(observation.runs)

    @property
    def total(self) -> int:
        return sum(item.nbytes for item in self.held)

    def by_region(self) -> dict[str, list]:
        regions: dict[str, list] = defaultdict(list)
        for item in self.held:
            regions[item.region].append(item)
        return dict(regions)

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": "MEASURED",
            "taken": "after forward",
            "total_bytes": self.total,
            "regions": {
                name: {
                    "bytes": sum(item.nbytes for item in items),
                    "held": [
                        {"shape": list(i.shape), "dtype": i.dtype, "bytes": i.nbytes, "reason": i.reason} for i in items
                    ],
                }
                for name, items in self.by_region().items()
            },
            "runs": {name: vars(runs).copy() for name, runs in self.runs.items()},
        }

    def __rich__(self) -> Table:
        table = Table(title="Held after forward (MEASURED)", show_footer=True)
        table.add_column("region", footer="total")
        table.add_column("shape")
        table.add_column("dtype")
        table.add_column("bytes", justify="right", footer=f"{self.total:,}")
        table.add_column("why")
        table.add_column("replays", justify="right")
        for name, items in self.by_region().items():
            replays = str(self.runs[name].replays) if name in self.runs else ""
            for item in items:
                shape = "x".join(map(str, item.shape))
                table.add_row(name, shape, item.dtype, f"{item.nbytes:,}", item.reason, replays)
                name = replays = ""
        return table


def report(observation: Observation) -> Report:
    """What the observation found, as a table (``rich.print``) and as data (``.to_dict()``)."""
    return Report(observation)
