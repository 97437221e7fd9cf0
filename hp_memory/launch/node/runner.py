"""Runs one node's msrun: starts it, sees a failing worker before msrun's slow way out does, and leaves no process."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from hp_memory.launch import failure, wire
from hp_memory.launch.failure import Failure
from hp_memory.launch.node import processes
from hp_memory.launch.node.workers import WorkerWatch
from hp_memory.launch.progress import Follower
from hp_memory.runs.parent import die_with_parent, prctl

POLL = 0.2
# After its workers have ended well msrun waits for the scheduler: some seconds, never without end.
FAREWELL = 60.0
_SET_CHILD_SUBREAPER = 36


class Runner:
    """One node of one attempt.

    Args:
        order: the node's plan as plain data, see ``supervise.order_for``.
    """

    def __init__(self, order: dict) -> None:
        self.order = order
        self.run_id, self.node, self.ranks = order["run_id"], order["node"], tuple(order["ranks"])
        self.logs, self.single = Path(order["log_dir"]), order["launcher"] == "process"
        self.lifeline = wire.Lifeline(order["lost_after"])
        self.follower = Follower(order["run_dir"], self.ranks)
        self.records: dict[int, dict] = {}
        self.spoken = 0.0

    def run(self) -> int:
        """Starts, watches, ends, and says how it went."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self.lifeline.start()
        # Orphans become our children, so that they can't stay as zombies that look alive.
        prctl(_SET_CHILD_SUBREAPER, 1)
        with socket.socket(socket.AF_UNIX) as lock:
            failed = self._hold_port(lock) or self._start_and_watch()
            left = processes.end(self.run_id, self.node)
        self._tell_progress(last=True)
        if failed:
            self._say({"event": "failed", "failure": failed.to_dict()})
        why = self.lifeline.over() or ""
        missing = failure.missing_ranks(failure.end_of(self.logs / "scheduler.log"))
        self._say({"event": "ended", "left": left, "why": why, "timed_out": self._timed_out(), "missing": missing})
        return 1 if failed or left or why else 0

    def _on_signal(self, number: int, frame: object) -> None:
        self.lifeline.ended = f"signal {signal.Signals(number).name}"

    def _hold_port(self, lock: socket.socket) -> Failure | None:
        """Holds the scheduler's port against other launches: msrun's scheduler binds it only seconds later."""
        port = self.order["port"]
        if port is None:
            return None
        try:
            lock.bind(processes.port_lock(port))
        except OSError:
            return Failure("port taken", self.node, tail=(f"another launch on this node holds port {port}",))
        return None

    def _start_and_watch(self) -> Failure | None:
        try:
            main = self._start()
        except OSError as error:
            kind = "disk full" if error.errno == errno.ENOSPC else "launcher can't start"
            return Failure(kind, self.node, log=str(self.logs), tail=(str(error),))
        self._say({"event": "started", "pid": main.pid})
        watch = WorkerWatch(main.pid, () if self.single else self.ranks, self.logs / "msrun.log")
        well_since = None
        while not self.lifeline.over():
            self._tell_progress()
            watch.poll()
            code = main.poll()
            if watch.failed():
                return self._worst(watch.failed())
            if code is not None:
                return self._verdict(code)
            if not self.single and watch.all_well():
                well_since = well_since or time.monotonic()
                if time.monotonic() - well_since > FAREWELL:
                    return None
            time.sleep(POLL)
        return None

    def _start(self) -> subprocess.Popen:
        self.logs.mkdir(parents=True, exist_ok=True)
        argv = self.order["argv"]
        # msrun calls `python` from PATH: it must be the one we were told to use.
        path = f"{Path(self.order['python']).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        with open(self.logs / ("worker_0.log" if self.single else "msrun.log"), "wb") as log:
            return subprocess.Popen(
                [shutil.which(argv[0], path=path) or argv[0], *argv[1:]],
                env=os.environ | {"PATH": path} | self.order["env"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def _worst(self, codes: dict[int, int]) -> Failure:
        """The one to name among workers that went down together; msrun kills the others for the first one's sake."""
        ordered = sorted(codes, key=lambda rank: codes[rank] == -signal.SIGKILL)
        return failure.first_cause(self._describe(rank, codes[rank]) for rank in ordered)

    def _verdict(self, code: int) -> Failure | None:
        """Whether msrun (or the one process) has ended well, or why not."""
        if self.single:
            return self._describe(0, code) if code else None
        unseen = [rank for rank in self.ranks if not (self.logs / f"worker_{rank}.log").exists()]
        return self._msrun_failure(code) if code or unseen else None

    def _describe(self, rank: int, code: int) -> Failure:
        log = self.logs / f"worker_{rank}.log"
        text = failure.end_of(log)
        record = self.records.get(rank, {}) | self.follower.news().get(rank, {})
        region = failure.region_of(text) or record.get("region", "")
        where = " ".join(part for part in (record.get("phase", ""), region) if part)
        kind = failure.kind_of(text, code)
        return self._look_around(Failure(kind, self.node, rank, code, str(log), failure.tail(text), where))

    def _msrun_failure(self, code: int) -> Failure:
        """No worker was seen to fail, yet msrun did: its scheduler, or its own refusal."""
        texts = {name: failure.end_of(self.logs / name) for name in ("scheduler.log", "msrun.log")}
        kind = failure.kind_of("\n".join(texts.values()), code) if code else "msrun ended without running its workers"
        name = next((name for name, text in texts.items() if text.strip()), "msrun.log")
        found = Failure(kind, self.node, code=code, log=str(self.logs / name), tail=failure.tail(texts[name]))
        return self._look_around(found)

    def _timed_out(self) -> list[int]:
        """The ranks here that gave up waiting for others: whoever isn't among them is who they waited for."""
        texts = {rank: failure.end_of(self.logs / f"worker_{rank}.log") for rank in self.ranks}
        return [rank for rank, text in texts.items() if failure.kind_of(text, None) == failure.TIME_OUT]

    def _look_around(self, found: Failure) -> Failure:
        """Adds what the scheduler knows, and what a worker on a full disk couldn't write."""
        failure.add_missing(found, failure.end_of(self.logs / "scheduler.log"))
        if not found.tail and _is_full(self.order["run_dir"]):
            found.kind = "disk full"
            found.tail = (f"no space left below {self.order['run_dir']}; nothing could be written to {found.log}",)
        return found

    def _tell_progress(self, last: bool = False) -> None:
        now = time.monotonic()
        if now - self.spoken < self.order["heartbeat"] and not last:
            return
        self.spoken = now
        news = self.follower.news()
        for rank, record in news.items():
            self.records.setdefault(rank, {}).update(record)
        self._say({"event": "alive", "records": {str(rank): record for rank, record in news.items()}})

    def _say(self, message: dict) -> None:
        if not wire.send(sys.stdout, message):
            self.lifeline.ended = self.lifeline.ended or "the launcher is gone"


def _is_full(path: str) -> bool:
    try:
        return os.statvfs(path).f_bavail * os.statvfs(path).f_frsize < 64 * 1024
    except OSError:
        return False
