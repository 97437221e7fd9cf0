"""Each rank's device memory at the end of a run, beside what was estimated before it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table

# Written by whoever estimated the run: {"kind": "MODELLED", "peak_bytes": {"<rank>": bytes}}.
ESTIMATE = "estimate.json"
MEASURED = "MEASURED"
NOT_AVAILABLE = "not available"


def device_peaks() -> dict:
    """This process's peaks so far, as the device's allocator counts them; to be called by a worker at its end.

    On a CPU MindSpore answers 0 to every such question, without an error: that means that nothing was measured.

    Returns:
        ``kind`` (MEASURED or not available), and where measured ``allocated_bytes`` and ``reserved_bytes``.
    """
    import mindspore as ms

    allocated, reserved = ms.runtime.max_memory_allocated(), ms.runtime.max_memory_reserved()
    if not allocated:
        return {"kind": NOT_AVAILABLE}
    return {"kind": MEASURED, "taken": "peak of the run", "allocated_bytes": allocated, "reserved_bytes": reserved}


def write_rank_report(run_dir: Path, rank: int, **facts: object) -> None:
    """Adds to ``<run_dir>/reports/rank_<rank>.json``, which the launcher collects."""
    file = run_dir / "reports" / f"rank_{rank}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | facts, indent=1))


def estimates(run_dir: str | Path) -> tuple[dict[int, int], str]:
    """Rank -> estimated peak bytes and their kind; empty where the run was not estimated."""
    try:
        found = json.loads((Path(run_dir) / ESTIMATE).read_text())
        return {int(rank): int(size) for rank, size in found["peak_bytes"].items()}, str(found["kind"])
    except (OSError, ValueError, KeyError, AttributeError):
        return {}, ""


def peaks_table(reports: Mapping[int, dict], run_dir: str | Path) -> Table | None:
    """Rank, allocated, reserved, estimate and how far off it was; None where no rank measured anything."""
    peaks = {rank: report["peaks"] for rank, report in reports.items() if "peaks" in report}
    measured = {rank: found for rank, found in peaks.items() if found["kind"] == MEASURED}
    if not measured:
        return None
    expected, kind = estimates(run_dir)
    shown = Table(
        "rank", f"allocated ({MEASURED})", "reserved", f"estimate{f' ({kind})' if kind else ''}", "off by",
        title="Device memory, peak of the run", title_justify="left",
    )  # fmt: skip
    for rank, found in sorted(measured.items()):
        size, guess = found["allocated_bytes"], expected.get(rank)
        shown.add_row(
            str(rank), _mib(size), _mib(found["reserved_bytes"]), _mib(guess) if guess else "-",
            f"{(guess - size) / size:+.1%}" if guess else "-",
        )  # fmt: skip
    return shown


def _mib(size: float) -> str:
    return f"{size / 2**20:.0f} MiB"
