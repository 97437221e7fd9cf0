"""A real run's memory beside the dry run's, rank by rank and term by term."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.estimate.ranks import Estimate
from hp_memory.estimate.report import GIB, gib
from hp_memory.report.table import Table

PEAKS = ("peak allocated", "peak reserved")
FORMAT = (
    """{"ranks": [{"pipeline_rank": 0, "allocated": BYTES, "reserved": BYTES, "terms": {"parameters": BYTES, ...}}]}"""
)


def read_run(path: str) -> list[dict[str, Any]]:
    """The ranks of a run's report.

    Each names its ``pipeline_rank`` and the peaks ``allocated`` and ``reserved`` in bytes, and may give ``terms`` that
    were measured one by one (``parameters``, ``gradients``, ``optimizer states``, ``activations``).

    Raises:
        ConfigError: for a file that can't be read as that, or that reports no memory.
    """
    try:
        ranks = json.loads(Path(path).read_text())["ranks"]
        found = [dict(r) for r in ranks]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError("report", path, f"isn't a run's report, which looks like {FORMAT}") from error
    for i, rank in enumerate(found):
        for name in ("pipeline_rank", "allocated", "reserved"):
            if not isinstance(rank.get(name), int):
                raise ConfigError(f"report.ranks[{i}].{name}", rank.get(name), "must be a whole number")
        if not rank["allocated"]:
            why = "no memory was measured: on a CPU MindSpore's counters are always 0"
            raise ConfigError(f"report.ranks[{i}].allocated", 0, why)
    if not found:
        raise ConfigError("report.ranks", [], "the report has no rank")
    return found


@dataclass(frozen=True)
class Figure:
    """One measured figure of a rank beside the dry run's, in bytes."""

    rank: int
    name: str
    measured: int
    expected: int

    @property
    def difference(self) -> float:
        """The dry run's figure less the measured one, as a share of the measured one; infinite beside a measured 0."""
        if not self.measured:
            return float("inf") if self.expected else 0.0
        return (self.expected - self.measured) / self.measured


def figures(found: Estimate, ranks: list[dict[str, Any]]) -> list[Figure]:
    """What was measured of each rank, beside what the dry run says.

    ``peak allocated`` and ``peak reserved`` leave out what lies outside the allocator.

    Raises:
        ConfigError: for a pipeline rank or a term that the dry run doesn't have.
    """
    return [figure for rank in ranks for figure in _of_rank(found, rank)]


def _of_rank(found: Estimate, rank: dict[str, Any]) -> Iterator[Figure]:
    stages = {stage.rank: stage for stage in found.stages}
    number = rank["pipeline_rank"]
    if number not in stages:
        raise ConfigError("report.ranks.pipeline_rank", number, "the dry run has no such rank", sorted(stages))
    stage = stages[number]
    terms: Mapping[str, int] = {t.name: t.nbytes for t in stage.static} | {"activations": stage.worst.nbytes}
    inside = stage.peak - sum(terms.get(name, 0) for name in ("reserve", "communicators"))
    yield Figure(number, PEAKS[0], rank["allocated"], inside - stage.fragmentation)
    yield Figure(number, PEAKS[1], rank["reserved"], inside)
    for name, measured in rank.get("terms", {}).items():
        if name not in terms:
            raise ConfigError(f"report.ranks.terms.{name}", measured, "the dry run has no such term", terms)
        yield Figure(number, name, measured, terms[name])


def compare(found: list[Figure]) -> Table:
    """A row per rank and figure: MEASURED beside estimated, and the difference."""
    caption = "GiB. allocated and reserved leave out what lies outside the allocator: the reserve and communicators"
    columns = ["rank", "figure", "MEASURED", "dry run", "difference", "%"]
    return Table("A run beside its dry run", columns, [_row(figure) for figure in found], caption)


def outside(found: list[Figure], band: float) -> list[str]:
    """A line for each peak that differs by more than ``band``, those that are dangerous first.

    A dry run that says too little lets a job start that runs out of memory; one that says too much wastes memory.
    """
    peaks = sorted((f for f in found if f.name in PEAKS and abs(f.difference) > band), key=lambda f: f.difference)
    return [
        f"rank {f.rank}, {f.name}: the dry run says {abs(f.difference):.1%} too {_meaning(f)}; the band is {band:.1%}"
        for f in peaks
    ]


def _meaning(figure: Figure) -> str:
    if figure.difference < 0:
        return "little, which is dangerous: a plan that fits by it can run out of memory"
    return "much, which is safe but wastes memory"


def _row(figure: Figure) -> list[str]:
    difference = figure.expected - figure.measured
    numbers = [gib(figure.measured), gib(figure.expected), f"{difference / GIB:+.2f}", f"{figure.difference:+.1%}"]
    return [str(figure.rank), figure.name, *numbers]
