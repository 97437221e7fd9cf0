"""A real run's memory beside the dry run's, rank by rank and term by term."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hp_memory.errors import ConfigError
from hp_memory.estimate.ranks import Estimate
from hp_memory.estimate.report import GIB, gib
from hp_memory.report.table import Table

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


def compare(found: Estimate, ranks: list[dict[str, Any]]) -> Table:
    """A row per rank and figure: MEASURED beside estimated, and the difference."""
    stages = {stage.rank: stage for stage in found.stages}
    rows = []
    for rank in ranks:
        number = rank["pipeline_rank"]
        if number not in stages:
            raise ConfigError("report.ranks.pipeline_rank", number, "the dry run has no such rank", sorted(stages))
        stage = stages[number]
        outside = {t.name: t.nbytes for t in stage.static if t.name in ("reserve", "communicators")}
        terms: Mapping[str, int] = {t.name: t.nbytes for t in stage.static} | {"activations": stage.worst.nbytes}
        inside = stage.peak - sum(outside.values())
        rows.append(_row(number, "peak allocated", rank["allocated"], inside - stage.fragmentation))
        rows.append(_row(number, "peak reserved", rank["reserved"], inside))
        for name, measured in rank.get("terms", {}).items():
            if name not in terms:
                raise ConfigError(f"report.ranks.terms.{name}", measured, "the dry run has no such term", terms)
            rows.append(_row(number, name, measured, terms[name]))
    caption = "GiB. allocated and reserved leave out what lies outside the allocator: the reserve and communicators"
    return Table(
        "A run beside its dry run", ["rank", "figure", "MEASURED", "dry run", "difference", "%"], rows, caption
    )


def _row(rank: int, name: str, measured: int, expected: int) -> list[str]:
    difference = expected - measured
    return [str(rank), name, gib(measured), gib(expected), f"{difference / GIB:+.2f}", f"{difference / measured:+.1%}"]
