"""Watching the workers of one msrun: who they are, which has ended, and with what code."""

from __future__ import annotations

import re
import time
from pathlib import Path

from hp_memory.launch import failure
from hp_memory.launch.node import processes

# msrun asks each worker once a second; by then its log names an exit code that we were too late to read.
SETTLE = 1.5
_MSRUN_SAYS = re.compile(r"Worker process (\d+) exit with exception\. Error code: (-?\d+)")


class WorkerWatch:
    """Polled several times a second; sees a worker's end before msrun, which then takes half a minute to say so."""

    def __init__(self, msrun_pid: int, ranks: tuple[int, ...], msrun_log: Path) -> None:
        self._msrun, self._ranks, self._log = msrun_pid, ranks, msrun_log
        self._pids: dict[int, int] = {}
        self._gone_since: dict[int, float] = {}
        self.codes: dict[int, int] = {}
        """Rank -> exit code of the workers that have ended, in the order they were seen to."""

    def poll(self) -> None:
        """Looks again."""
        if len(self._pids) < len(self._ranks):
            self._pids = processes.workers(self._msrun) | self._pids
        gone = {rank for rank, pid in self._pids.items() if not processes.is_alive(pid)}
        # msrun writes which worker failed before it kills the others: look first, read then, and none is missed.
        said = {int(pid): int(code) for pid, code in _MSRUN_SAYS.findall(failure.end_of(self._log))}
        gone |= self._place_unseen(said)
        for rank in sorted(gone - set(self.codes), key=lambda rank: (self._pids[rank] not in said, rank)):
            code = self._code_of(rank, self._pids[rank], said)
            if code is not None:
                self.codes[rank] = code

    def failed(self) -> dict[int, int]:
        """Rank -> code of those that ended badly."""
        return {rank: code for rank, code in self.codes.items() if code}

    def all_well(self) -> bool:
        """Every worker has ended with 0."""
        return len(self.codes) == len(self._ranks) and not self.failed()

    def _place_unseen(self, said: dict[int, int]) -> set[int]:
        """A worker that died before we saw it alive must be one of the ranks we haven't seen; they start in order."""
        unseen = [rank for rank in self._ranks if rank not in self._pids]
        strangers = sorted(pid for pid in said if pid not in self._pids.values())
        placed = dict(zip(unseen, strangers, strict=False))
        self._pids |= placed
        return set(placed)

    def _code_of(self, rank: int, pid: int, said: dict[int, int]) -> int | None:
        code = processes.exit_code(pid)
        code = said.get(pid) if code is None else code
        if code is not None:
            return code
        # Reaped by msrun before we looked, and msrun has no complaint about it (yet).
        since = self._gone_since.setdefault(rank, time.monotonic())
        return 0 if time.monotonic() - since > SETTLE else None
