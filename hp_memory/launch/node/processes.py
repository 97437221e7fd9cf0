"""Finding and ending a run's processes by the mark in their environment.

msrun's workers are sessions of their own, so neither a process group nor a parent leads to all of them; the mark does,
also after msrun itself has gone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from hp_memory.runs.variables import NODE, RUN_ID

PROC = Path("/proc")
_STATE, _PARENT, _EXIT_CODE = 0, 1, 49  # Fields of /proc/<pid>/stat after the command's closing bracket.


def environment_of(pid: int) -> dict[str, str]:
    """The environment a process was started with; empty where it is gone or not ours to read."""
    try:
        raw = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0") if "=" in entry)
    return {name: value for name, _, value in pairs}


def port_lock(port: int) -> str:
    """The abstract socket that a launch holds as long as it uses a scheduler's port.

    Such a name belongs to one network namespace, as the port does, and goes with the process that holds it.
    """
    return f"\0hp-memory.port.{port}"


def all_pids() -> Iterator[int]:
    """Every process of this machine except ourselves."""
    for entry in PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            yield int(entry.name)


def marked(run_id: str, node: int | None = None) -> list[int]:
    """The run's living processes on this machine, of one node or of all."""
    return [
        pid
        for pid in all_pids()
        if (env := environment_of(pid)).get(RUN_ID) == run_id
        and (node is None or env.get(NODE) == str(node))
        and is_alive(pid)
    ]


def workers(parent: int) -> dict[int, int]:
    """Rank -> pid of the workers msrun (``parent``) has started so far."""
    found = {}
    for pid in all_pids():
        fields = _stat(pid)
        if fields and int(fields[_PARENT]) == parent:
            env = environment_of(pid)
            if env.get("MS_ROLE") == "MS_WORKER" and "RANK_ID" in env:
                found[int(env["RANK_ID"])] = pid
    return found


def is_alive(pid: int) -> bool:
    """Whether a process exists and has not ended; a zombie has ended."""
    fields = _stat(pid)
    return bool(fields) and fields[_STATE] not in ("Z", "X")


def exit_code(pid: int) -> int | None:
    """The code of a process that has ended and whose parent hasn't asked yet: 0-255, or minus the signal."""
    fields = _stat(pid)
    if not fields or fields[_STATE] not in ("Z", "X") or len(fields) <= _EXIT_CODE:
        return None
    return os.waitstatus_to_exitcode(int(fields[_EXIT_CODE]))


def ancestors() -> frozenset[int]:
    """The pids of our parents, up to the first process."""
    found, pid = [], os.getppid()
    while pid > 1 and (fields := _stat(pid)):
        found.append(pid)
        pid = int(fields[_PARENT])
    return frozenset(found)


def end(run_id: str, node: int | None = None, grace: float = 2.0, spare: frozenset[int] = frozenset()) -> list[int]:
    """Ends the run's processes here but for ``spare``: SIGTERM, after ``grace`` seconds SIGKILL until none is left.

    Returns:
        Pids that are still there 5 seconds later (stuck in the kernel); normally none.
    """
    _signal(_others(run_id, node, spare), signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline:
        if not _others(run_id, node, spare):
            return []
        time.sleep(0.05)
    deadline = time.monotonic() + 5
    # Again and again: a process may have started another one while we read the list.
    while (left := _others(run_id, node, spare)) and time.monotonic() < deadline:
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)
    return left


def _others(run_id: str, node: int | None, spare: frozenset[int]) -> list[int]:
    return [pid for pid in marked(run_id, node) if pid not in spare]


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _stat(pid: int) -> list[str]:
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
