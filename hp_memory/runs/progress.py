"""One JSON line per step and rank, for whoever watches the run."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

FOLDER = "progress"


class Progress:
    """Appends to ``<run_dir>/progress/rank_<rank>.jsonl``; a line is complete once it can be seen."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        folder = run_dir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"rank_{rank}.jsonl").open("a", buffering=1)

    def write(self, **fields: Any) -> None:
        """One line, with these fields. A full disk loses lines: they are no reason to end a training."""
        with contextlib.suppress(OSError):
            self._file.write(json.dumps(fields) + "\n")


def read_progress(run_dir: Path, rank: int = 0) -> list[dict[str, Any]]:
    """All lines of a rank so far."""
    path = run_dir / FOLDER / f"rank_{rank}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
