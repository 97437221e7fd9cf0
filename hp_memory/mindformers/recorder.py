"""What a rank says of its steps while MindFormers' Trainer runs: losses, seconds, device memory, a progress line each.

Taken from the Trainer's events, which are the same with and without a pipeline. Under a pipeline only the last stage
has losses; the other ranks' lines have a step and its time, so that whoever watches sees every rank.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

from hp_memory.errors import NotFinite
from hp_memory.runs.progress import Progress
from hp_memory.runs.rank_report import device_memory, device_peaks, write_rank_report


class Recorder:
    """Steps of this process.

    Args:
        run_dir: gets ``progress/rank_<rank>.jsonl`` and ``reports/rank_<rank>.json``; None writes neither.
        rank: this process's.

    Attributes:
        losses: of this rank's steps, in nats per token, averaged over data parallel ranks; empty where another
            pipeline stage has them.
        seconds: of this rank's steps.
    """

    def __init__(self, run_dir: Path | None, rank: int) -> None:
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._run_dir, self._rank, self._began = run_dir, rank, 0.0
        self._progress = Progress(run_dir, rank) if run_dir is not None else None

    def begin(self) -> None:
        """A step begins."""
        self._began = time.perf_counter()

    def end(self, step: int, loss: Any) -> None:
        """A step ended.

        Args:
            step: its number, from 1.
            loss: what the Trainer hands out: a tensor, or None on the stages before the last.

        Raises:
            NotFinite: if the loss isn't.
        """
        found: dict[str, float] = {}
        if loss is not None:
            self.losses.append(float(loss.asnumpy().ravel()[0]))
            found["loss"] = self.losses[-1]
            if not math.isfinite(self.losses[-1]):
                raise NotFinite(f"the loss of step {step} is {self.losses[-1]} on rank {self._rank}")
        self.seconds.append(time.perf_counter() - self._began)
        if self._progress is not None:
            self._progress.write(step=step, seconds=round(self.seconds[-1], 4), **found, **device_memory())

    def close(self) -> None:
        """Training ended: leaves this rank's peaks for the launcher."""
        if self._run_dir is not None:
            write_rank_report(self._run_dir, self._rank, peaks=device_peaks())
