"""What a regression is told to do and what it found, as files in its run directory. No MindSpore here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hp_memory.layout import LayoutSettings
from hp_memory.layout.settings import LayerOverride
from hp_memory.pipeline.regression.cases import MatrixSettings

JOB, RESULTS, REPORT = "matrix.json", "results", "pipeline.json"


@dataclass
class Result:
    """Outcome of a case: the reason of each failed check, and the peaks by rank. No reason, no failure.

    Attributes:
        refused: the case is one that must be refused, and its checks are about that.
        checks: the names of the checks that were made.
        peak_bytes: most bytes autograd held after any step, by pipeline rank. MEASURED, and as predicted.
    """

    case: str
    refused: bool = False
    failures: dict[str, str] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    peak_bytes: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.failures


@dataclass(frozen=True)
class Job:
    matrix: MatrixSettings
    layouts: Mapping[str, LayoutSettings]


def write_job(run_dir: Path, job: Job) -> None:
    """Leaves the job for the workers."""
    layouts = {name: asdict(layout) for name, layout in job.layouts.items()}
    (run_dir / JOB).write_text(json.dumps({"matrix": asdict(job.matrix), "layouts": layouts}))


def read_job(run_dir: Path) -> Job:
    """What ``write_job`` wrote."""
    data = json.loads((run_dir / JOB).read_text())
    layouts = {}
    for name, layout in data["layouts"].items():
        overrides = [LayerOverride(**o) for o in layout.pop("layers")]
        layouts[name] = LayoutSettings(**layout, layers=overrides)
    return Job(MatrixSettings(**data["matrix"]), layouts)


def write_results(run_dir: Path, rank: int, results: Sequence[Result]) -> None:
    """One rank's results, after each case again: a run that dies keeps what it found."""
    folder = run_dir / RESULTS
    folder.mkdir(exist_ok=True)
    temporary = folder / f".rank_{rank}.json"
    temporary.write_text(json.dumps([asdict(r) for r in results]))
    temporary.replace(folder / f"rank_{rank}.json")


def read_results(run_dir: Path) -> list[Result]:
    """All ranks' results by case: a case fails if it fails on any rank, and its time is that of the slowest."""
    merged: dict[str, Result] = {}
    for file in sorted((run_dir / RESULTS).glob("rank_*.json")):
        for data in json.loads(file.read_text()):
            data["peak_bytes"] = {int(rank): peak for rank, peak in data["peak_bytes"].items()}
            found = Result(**data | {"checks": tuple(data["checks"])})
            found.failures = {f"{check} ({file.stem})": why for check, why in found.failures.items()}
            known = merged.setdefault(found.case, found)
            known.failures |= found.failures
            for rank, peak in found.peak_bytes.items():
                known.peak_bytes[rank] = max(peak, known.peak_bytes.get(rank, 0))
            known.seconds = max(known.seconds, found.seconds)
    return list(merged.values())
