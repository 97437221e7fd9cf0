"""The summary of a regression: a table for people, JSON for machines. No MindSpore here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hp_memory.pipeline.regression.cases import Case
from hp_memory.pipeline.regression.job import REPORT, Result
from hp_memory.report.table import Table
from hp_memory.runs.environment import environment


def summary(cases: Sequence[Case], results: Mapping[str, Result]) -> Table:
    """One line per schedule, size and layout."""
    groups: dict[tuple, list[Result | None]] = {}
    for case in cases:
        key = (case.order, f"p{case.stages} m{case.microbatches}", case.layout)
        groups.setdefault(key, []).append(results.get(case.name))
    rows = [(*key, *_counts(found)) for key, found in groups.items()]
    return Table(
        "Pipeline regression",
        ("schedule", "size", "layout", "passed", "refused", "failed", "peak per rank"),
        rows,
        "refused: combinations that must fail, and did, with their own error. peak: most bytes autograd held after any "
        "step, MEASURED, in KiB by rank, largest over the cases (with pre-fire: replayed tensors included).",
    )


def _counts(found: Sequence[Result | None]) -> tuple[str, str, str, str]:
    done = [r for r in found if r is not None]
    passed = sum(r.passed and not r.refused for r in done)
    refused = sum(r.passed and r.refused for r in done)
    peaks: dict[int, int] = {}
    for result in done:
        for rank, peak in result.peak_bytes.items():
            peaks[rank] = max(peak, peaks.get(rank, 0))
    words = " ".join(f"{peaks[rank] / 1024:.1f}" for rank in sorted(peaks))
    return str(passed), str(refused), str(len(found) - passed - refused), words


def failures(cases: Sequence[Case], results: Mapping[str, Result]) -> list[str]:
    """A line for each failed check, and for each case that never ran."""
    lines = []
    for case in cases:
        result = results.get(case.name)
        if result is None:
            lines.append(f"{case.name}: didn't run")
        else:
            lines += [f"{case.name}: {check}: {why}" for check, why in result.failures.items()]
    return lines


def write(run_dir: Path, cases: Sequence[Case], results: Mapping[str, Result]) -> Path:
    """``pipeline.json``: every case with its checks, the totals, and what it ran on."""
    listed = [asdict(case) | asdict(results[case.name]) for case in cases if case.name in results]
    totals = {
        "cases": len(cases),
        "passed": sum(r.passed and not r.refused for r in results.values()),
        "refused": sum(r.passed and r.refused for r in results.values()),
        "failed": sum(not r.passed for r in results.values()),
        "missing": len(cases) - len(results),
    }
    path = run_dir / REPORT
    path.write_text(json.dumps({"totals": totals, "cases": listed, "environment": environment()}, indent=1))
    return path
