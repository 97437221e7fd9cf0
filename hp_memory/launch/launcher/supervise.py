"""Runs a launch plan: starts every node, watches all ranks, names the first that fails, ends the rest everywhere."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hp_memory.launch import failure
from hp_memory.launch.failure import Failure
from hp_memory.launch.launcher.channel import Channel, ask
from hp_memory.launch.plan import LaunchPlan, NodePlan
from hp_memory.launch.progress import RankView, newly_stalled
from hp_memory.launch.wire import STOP

# Failures that arrive together are collected for this long, so that a cause isn't lost among its consequences.
GATHER = 1.0
# How long a node gets to end its processes and say so (SIGTERM, 2 s, SIGKILL).
FAREWELL = 12.0
OnProgress = Callable[[dict[int, RankView]], None]


@dataclass
class Outcome:
    """How a job ended.

    ``exit_code`` is 0, 1 for a failure, or 128 + signal where a person or a scheduler ended it. ``kind`` is one of
    ``failure.SIGNS``' kinds, ``crash``, ``node lost``, ``stalled``, ``interrupted`` or empty.
    """

    exit_code: int = 0
    failed_rank: int | None = None
    kind: str = ""
    message: str = ""
    log: str = ""
    log_tail: tuple[str, ...] = ()
    seconds: float = 0.0
    reports: dict[int, dict] = field(default_factory=dict)
    """Rank -> what it wrote into ``<run_dir>/reports/rank_<r>.json``, where it did."""
    leftovers: dict[int, list[int]] = field(default_factory=dict)
    """Node -> pids that could not be ended."""
    failures: list[Failure] = field(default_factory=list)


def order_for(plan: LaunchPlan, node: NodePlan) -> dict:
    """Everything a node needs to know, as plain data."""
    settings = plan.settings
    return {
        "do": "run", "run_id": plan.run_id, "node": node.rank, "ranks": node.ranks, "argv": node.argv,
        "env": node.env, "cwd": plan.cwd, "python": plan.python, "run_dir": plan.run_dir, "log_dir": node.log_dir,
        "launcher": settings.launcher, "port": plan.scheduler_port(node.rank),
        "heartbeat": settings.heartbeat, "lost_after": settings.lost_after,
    }  # fmt: skip


def run(plan: LaunchPlan, on_progress: OnProgress = lambda views: None, say: Callable[[str], None] = print) -> Outcome:
    """Runs the plan to its end, whatever that is; no process of it is left on any node that can be reached.

    Args:
        on_progress: called every heartbeat with rank -> view; must return quickly.
        say: gets one line for whatever a person should know at once (a stalled rank, a lost node).

    Returns:
        The outcome; failures don't raise.
    """
    begin = time.monotonic()
    with _signals() as interrupted:
        outcome = _Supervision(plan, on_progress, say, interrupted).run()
    outcome.seconds = time.monotonic() - begin
    outcome.reports = read_reports(plan.run_dir, plan.world_size)
    return outcome


def read_reports(run_dir: str | Path, world: int) -> dict[int, dict]:
    """The reports ranks left in ``<run_dir>/reports``."""
    found = {}
    for rank in range(world):
        with contextlib.suppress(OSError, ValueError):
            found[rank] = json.loads((Path(run_dir) / "reports" / f"rank_{rank}.json").read_text())
    return found


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """Collects SIGINT and SIGTERM instead of dying of them, if called from the main thread.

    What a terminal sends when it closes (SIGHUP), stops a job (Ctrl-Z) or has one write from the background is ignored:
    a launcher that ends or stands still would take its nodes with it.
    """
    received: list[int] = []
    ignored = (signal.SIGHUP, signal.SIGTSTP, signal.SIGTTOU, signal.SIGTTIN)
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    try:
        before = {number: signal.signal(number, lambda number, frame: received.append(number)) for number in numbers}
        before |= {number: signal.signal(number, signal.SIG_IGN) for number in ignored}
    except ValueError:
        before = {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Supervision:
    """One attempt."""

    def __init__(self, plan: LaunchPlan, on_progress: OnProgress, say: Callable[[str], None], interrupted: list[int]):
        self.plan, self.on_progress, self.say, self.interrupted = plan, on_progress, say, interrupted
        self.inbox: queue.Queue = queue.Queue()
        self.channels: dict[int, Channel] = {}
        self.running: set[int] = set()
        self.views = {rank: RankView(rank, node.rank) for node in plan.nodes for rank in node.ranks}
        self.failures: list[Failure] = []
        self.leftovers: dict[int, list[int]] = {}
        self.timed_out: set[int] = set()
        self.missing: set[int] = set()
        self.spoken = 0.0

    def run(self) -> Outcome:
        try:
            for node in self.plan.nodes:
                self.channels[node.rank] = Channel(self.plan, node, order_for(self.plan, node), self.inbox)
                self.channels[node.rank].keep_alive(self.plan.settings.heartbeat)
                self.running.add(node.rank)
            while self.running and not self.failures and not self.interrupted:
                self._listen(self.plan.settings.heartbeat / 4)
                self._tell()
            self._gather()
        finally:
            self._end_all()
        self.on_progress(self.views)
        return self._outcome()

    def _gather(self) -> None:
        deadline = time.monotonic() + (GATHER if self.failures else 0)
        while self.running and time.monotonic() < deadline:
            self._listen(0.1)

    def _listen(self, wait: float) -> None:
        """Takes in what has arrived, waiting at most ``wait`` seconds for it."""
        with contextlib.suppress(queue.Empty):
            self._take(*self.inbox.get(timeout=wait))
            while True:
                self._take(*self.inbox.get_nowait())

    def _take(self, rank: int, message: dict | None) -> None:
        if message is None:
            self._connection_ended(rank)
        elif message["event"] == "alive":
            for worker, record in message["records"].items():
                self.views[int(worker)].update(record)
        elif message["event"] == "failed":
            self._failed(Failure.from_dict(message["failure"]))
        elif message["event"] == "ended":
            self._node_ended(rank, message)

    def _failed(self, found: Failure) -> None:
        self.failures.append(found)
        if found.rank in self.views:
            self.views[found.rank].state = "failed"

    def _node_ended(self, rank: int, message: dict) -> None:
        self.running.discard(rank)
        self.timed_out.update(message["timed_out"])
        self.missing.update(message["missing"])
        if message["left"]:
            self.leftovers[rank] = message["left"]
        badly = bool(message["why"]) or any(found.node == rank for found in self.failures)
        for view in self.views.values():
            if view.node == rank and view.state != "failed":
                view.state = "ended" if badly else "done"
        if message["why"] and not self._ending():
            self.failures.append(Failure("node lost", rank, tail=(f"the node ended its work: {message['why']}",)))

    def _ending(self) -> bool:
        return bool(self.failures or self.interrupted)

    def _connection_ended(self, rank: int) -> None:
        if rank in self.running:
            self.running.discard(rank)
            code = self.channels[rank].process.wait()
            self._lost(rank, f"the connection ended with code {code}", *self.channels[rank].errors())

    def _lost(self, rank: int, *why: str) -> None:
        self.failures.append(Failure("node lost", rank, log=str(self.channels[rank].node.log_dir), tail=why))
        for view in self.views.values():
            if view.node == rank:
                view.state = "lost"

    def _tell(self) -> None:
        """Every heartbeat: a look for silent nodes and stalled ranks. (Each channel sends its words by itself.)"""
        settings = self.plan.settings
        if time.monotonic() - self.spoken < settings.heartbeat:
            return
        self.spoken = time.monotonic()
        for rank in sorted(self.running):
            if self.channels[rank].silence() > settings.lost_after:
                self._lost(rank, f"nothing heard for {settings.lost_after:g} s")
        for view in newly_stalled(self.views, settings.stall_after):
            self._stalled(view)
        self.on_progress(self.views)

    def _stalled(self, view: RankView) -> None:
        settings = self.plan.settings
        step = view.record.get("step", "none")
        self.say(
            f"rank {view.rank} (node {view.node}) has made no step for {settings.stall_after:g} s; last step: {step}"
        )
        if settings.stall_ends:
            text = f"no step for {settings.stall_after:g} s, last step: {step}"
            self.failures.append(Failure("stalled", view.node, view.rank, where=view.where, tail=(text,)))

    def _end_all(self) -> None:
        """Asks every node to end its processes, waits for their word, and sweeps where none came."""
        lost = {f.node for f in self.failures if f.kind == "node lost"}
        for rank in self.running:
            self.channels[rank].word(STOP)
        deadline = time.monotonic() + FAREWELL
        while self.running - lost and time.monotonic() < deadline:
            self._listen(0.1)
        silent = (self.running | lost) & set(self.channels)
        for channel in self.channels.values():
            channel.close()
        self._sweep(silent)

    def _sweep(self, ranks: set[int]) -> None:
        """A last try by new connections; an unreachable node ends its processes itself when it misses our words."""
        orders = {rank: {"do": "sweep", "run_id": self.plan.run_id, "node": rank} for rank in ranks}
        for rank, reply in ask(self.plan, orders, FAREWELL).items():
            if reply.message is None:
                self.say(
                    f"node {rank} ({self.channels[rank].node.host}) can't be reached; it ends its processes by itself"
                    f" {self.plan.settings.lost_after:g} s after the last word it got"
                )
            elif reply.message["left"]:
                self.leftovers[rank] = reply.message["left"]

    def _outcome(self) -> Outcome:
        if self.interrupted:
            number = self.interrupted[0]
            name = signal.Signals(number).name
            return Outcome(128 + number, kind="interrupted", message=f"ended by {name}", leftovers=self.leftovers)
        if not self.failures:
            return Outcome(leftovers=self.leftovers, exit_code=1 if self.leftovers else 0)
        first = failure.first_cause(self.failures)
        if first.kind == failure.TIME_OUT and not first.missing:
            # The scheduler's list of lost ranks is the best source; without it, the ranks that reported no time-out.
            silent = set(self.views) - self.timed_out if self.timed_out else set()
            first.missing = tuple(sorted(self.missing or silent))
        return Outcome(
            1, first.rank, first.kind, first.in_words(), first.log, first.tail,
            leftovers=self.leftovers, failures=self.failures,
        )  # fmt: skip
