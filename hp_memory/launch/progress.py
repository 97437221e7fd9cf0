"""Following the progress files of ranks: ``<run_dir>/progress/rank_<r>.jsonl``, one JSON object a step."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path


def progress_file(run_dir: str | Path, rank: int) -> Path:
    """Where a rank appends one line a step: step, loss, seconds, tokens, memory, phase, region as far as known."""
    return Path(run_dir) / "progress" / f"rank_{rank}.jsonl"


@dataclass
class Follower:
    """Reads what is new in the progress files of some ranks. Lines written before it began are skipped."""

    run_dir: str
    ranks: tuple[int, ...]
    offsets: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = {rank: _size(progress_file(self.run_dir, rank)) for rank in self.ranks}

    def news(self) -> dict[int, dict]:
        """Rank -> its last record since the previous call."""
        found = {rank: self._last_record(rank) for rank in self.ranks}
        return {rank: record for rank, record in found.items() if record}

    def _last_record(self, rank: int) -> dict | None:
        try:
            with open(progress_file(self.run_dir, rank), "rb") as file:
                file.seek(self.offsets[rank])
                # A line still being written waits for the next call.
                lines = file.read().rpartition(b"\n")[0].splitlines()
                self.offsets[rank] += sum(len(line) + 1 for line in lines)
        except OSError:
            return None
        records = [record for line in lines if (record := _parse(line))]
        merged: dict = {}
        for record in records:
            merged |= record
        return merged or None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _parse(line: bytes) -> dict | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


@dataclass
class RankView:
    """What is known of one rank at this moment."""

    rank: int
    node: int
    record: dict = field(default_factory=dict)
    """Everything its progress file has said last: step, loss, seconds, memory_bytes, phase, region..."""
    heard: float = field(default_factory=time.monotonic)
    """Monotonic time of its last line, or of the start."""
    stalled: bool = False
    state: str = "starting"

    def update(self, record: dict) -> None:
        """Takes in a new line."""
        self.record |= record
        self.heard, self.stalled, self.state = time.monotonic(), False, "running"

    @property
    def where(self) -> str:
        """Phase and region it was in, where it says so."""
        return " ".join(str(self.record[key]) for key in ("phase", "region") if self.record.get(key))


def newly_stalled(views: dict[int, RankView], after: float) -> list[RankView]:
    """Marks and returns the ranks that haven't made a step for ``after`` seconds; 0 means never."""
    now = time.monotonic()
    late = [
        v
        for v in views.values()
        if after and not v.stalled and v.state in ("starting", "running") and now - v.heard > after
    ]
    for view in late:
        view.stalled = True
    return late
