"""What each region took on a device: written by ``hp-memory calibrate``, read where a step's time is modelled."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.runs.files import read_text, write_whole

FORMAT = 1
HEAD = "head"
"""The kind under which everything after the blocks stands, in one row."""
BETWEEN = ""
"""The row of the operations between a layer's regions."""
MOST_SPREAD = 0.3
"""Middle half of the repetitions over their median; above it the machine was busy with something else."""


@dataclass(frozen=True)
class RegionTime:
    """Seconds of one micro-batch in one region of one layer, as measured and as modelled at the same sizes.

    ``spread`` is the middle half of the repetitions over their median.
    """

    forward: float
    backward: float
    modelled_forward: float
    modelled_backward: float
    spread: float = 0.0


@dataclass(frozen=True)
class RegionTimes:
    """A calibration.

    Attributes:
        model: what was measured, in words.
        family: of the model.
        device: what it was measured on.
        speeds: the figures of ``estimate.device`` that the model computed with.
        kinds: kind of layer -> region -> its seconds; the slowest rank's.
    """

    model: str
    family: str
    device: str
    speeds: Mapping[str, float]
    kinds: Mapping[str, Mapping[str, RegionTime]]

    def forward_factor(self, kind: str, region: str) -> float:
        """Measured over modelled seconds of the region's forward; 1 where nothing is modelled."""
        row = self.kinds[kind][region]
        return row.forward / row.modelled_forward if row.modelled_forward else 1.0

    def backward_factor(self, kind: str) -> float:
        """The same for the backward of a whole layer, which every layout runs."""
        rows = self.kinds[kind].values()
        modelled = sum(row.modelled_backward for row in rows)
        return sum(row.backward for row in rows) / modelled if modelled else 1.0

    @property
    def spread(self) -> float:
        """Mean spread of the rows, by the seconds they took."""
        rows = [row for regions in self.kinds.values() for row in regions.values()]
        total = sum(row.forward + row.backward for row in rows)
        return sum(row.spread * (row.forward + row.backward) for row in rows) / total if total else 0.0

    def write(self, file: Path) -> None:
        """As JSON."""
        write_whole(file, json.dumps({"format": FORMAT, **asdict(self)}, indent=1))


@functools.cache
def read_times(file: str, path: str) -> RegionTimes:
    """A calibration's file; ``path`` is the setting that names it, for errors.

    Raises:
        ConfigError: for a file that can't be read, isn't a calibration, or was made on a busy machine.
    """
    try:
        data = json.loads(read_text(file))
        found = _from_dict(data)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(path, file, f"not a file of `hp-memory calibrate`: {error}") from error
    if data["format"] != FORMAT:
        raise ConfigError(path, file, f"has format {data['format']}", (FORMAT,))
    if found.spread > MOST_SPREAD:
        why = f"was measured on a busy machine: repetitions differ by {found.spread:.0%}, at most {MOST_SPREAD:.0%}"
        raise ConfigError(path, file, f"{why}. Calibrate again")
    return found


def _from_dict(data: dict[str, Any]) -> RegionTimes:
    kinds = {k: {region: RegionTime(**row) for region, row in rows.items()} for k, rows in data["kinds"].items()}
    for row in (row for rows in kinds.values() for row in rows.values()):
        if not all(isinstance(v, float | int) and math.isfinite(v) and v >= 0 for v in asdict(row).values()):
            raise ValueError(f"seconds must be finite and not negative: {row}")
    return RegionTimes(data["model"], data["family"], data["device"], data["speeds"], kinds)
