"""What a rank says of itself at its end, above all its device memory: written by a worker, read by the launcher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MEASURED = "MEASURED"
NOT_AVAILABLE = "not available"


def device_peaks() -> dict:
    """This process's peaks so far, as the device's allocator counts them; to be called by a worker at its end.

    On a CPU MindSpore answers 0 to every such question, without an error: that means that nothing was measured.

    Returns:
        ``kind`` (MEASURED or not available), and where measured ``allocated`` and ``reserved`` in bytes.
    """
    import mindspore as ms

    allocated, reserved = ms.runtime.max_memory_allocated(), ms.runtime.max_memory_reserved()
    if not allocated:
        return {"kind": NOT_AVAILABLE}
    return {"kind": MEASURED, "taken": "peak of the run", "allocated": allocated, "reserved": reserved}


def device_memory() -> dict:
    """What this process has allocated on its device now, for a line of progress; empty on a CPU."""
    import mindspore as ms

    allocated = ms.runtime.memory_allocated()
    return {"memory_bytes": allocated, "memory_kind": MEASURED} if allocated else {}


def write_rank_report(run_dir: Path, rank: int, **facts: object) -> None:
    """Adds to ``<run_dir>/reports/rank_<rank>.json``, which the launcher collects."""
    file = run_dir / "reports" / f"rank_{rank}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(known | facts, indent=1))


def read_rank_reports(run_dir: Path) -> dict[int, dict[str, Any]]:
    """Every rank's report, by rank."""
    files = (run_dir / "reports").glob("rank_*.json")
    return dict(sorted((int(file.stem.partition("_")[2]), json.loads(file.read_text())) for file in files))
