"""A line to one node: the node program, started directly or through the connection command, and its messages."""

from __future__ import annotations

import contextlib
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hp_memory.launch import failure, wire
from hp_memory.launch.plan import LaunchPlan, NodePlan, reach

# Not by -m, which looks into the working directory first: whoever can write there would have us run their modules.
_START = "import sys; sys.path.pop(0); from hp_memory.launch.node.program import main; sys.exit(main())"
PROGRAM = ("-c", _START)


def node_command(plan: LaunchPlan, node: NodePlan) -> list[str]:
    """What starts the node program: by itself here, through ``launch.connect`` elsewhere."""
    if node.here:
        return [sys.executable, *PROGRAM]
    program = [plan.python, *PROGRAM]
    # ssh gives one string to a shell at the other end; `ip netns exec` or `kubectl exec` take a list.
    return [*reach(plan.settings, node.host), *([shlex.join(program)] if plan.settings.connect_shell else program)]


@dataclass(frozen=True)
class Reply:
    """A node's answer to one question; ``message`` is None where none came, and ``error`` says why."""

    message: dict | None
    received: float
    """Seconds since the epoch, by this machine's clock."""
    error: str = ""


def ask(plan: LaunchPlan, orders: Mapping[int, dict], seconds: float) -> dict[int, Reply]:
    """Asks several nodes at once, node rank -> order, and waits for all of them at most so long."""
    inbox: queue.Queue = queue.Queue()
    channels = {node.rank: Channel(plan, node, orders[node.rank], inbox) for node in plan.nodes if node.rank in orders}
    replies: dict[int, Reply] = {}
    deadline = time.monotonic() + seconds
    while len(replies) < len(channels):
        try:
            rank, message = inbox.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            break
        if rank not in replies:
            channel = channels[rank]
            error = "" if message else " / ".join(channel.errors()) or f"code {channel.process.wait()}"
            replies[rank] = Reply(message, time.time(), error)
    for channel in channels.values():
        channel.close()
    silence = Reply(None, time.time(), f"no answer in {seconds:g} s")
    return {rank: replies.get(rank, silence) for rank in channels}


class Channel:
    """One node program. Its messages arrive in ``inbox`` as ``(node rank, message or None at the end)``.

    Args:
        order: the first line it gets.
        inbox: shared by all nodes' channels.
    """

    def __init__(self, plan: LaunchPlan, node: NodePlan, order: dict, inbox: queue.Queue) -> None:
        self.node, self.heard, self.closed = node, time.monotonic(), False
        self._ending, self._speaking = threading.Event(), threading.Lock()
        self._errors = Path(node.log_dir) / "connection.log"
        self._errors.parent.mkdir(parents=True, exist_ok=True)
        with open(self._errors, "ab") as errors:
            self.process = subprocess.Popen(
                node_command(plan, node),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                errors="replace",  # a login message may be in any encoding
                start_new_session=True,
            )
        self._orders, self._words = _pipes(self.process)
        wire.send(self._orders, order)
        threading.Thread(target=self._read, args=(inbox,), daemon=True).start()

    def _read(self, inbox: queue.Queue) -> None:
        for line in self._words:
            message = wire.parse(line)
            if message is not None:
                self.heard = time.monotonic()
                inbox.put((self.node.rank, message))
        self.closed = True
        inbox.put((self.node.rank, None))

    def keep_alive(self, every: float) -> None:
        """Says a word to the node every so many seconds, in a thread that waits for nothing but this one node."""

        def speak() -> None:
            while not self._ending.wait(every):
                self.word()

        threading.Thread(target=speak, daemon=True).start()

    def word(self, text: str = wire.ALIVE) -> None:
        """Says a word to the node; a broken pipe shows as the end of its messages."""
        # A connection that takes nothing any more keeps the lock: such a node ends its work by itself.
        if self._speaking.acquire(timeout=1):
            try:
                with contextlib.suppress(OSError, ValueError):
                    self._orders.write(text + "\n")
                    self._orders.flush()
            finally:
                self._speaking.release()

    def silence(self) -> float:
        """Seconds since it was last heard."""
        return time.monotonic() - self.heard

    def errors(self) -> tuple[str, ...]:
        """What the connection command complained of."""
        return failure.tail(failure.end_of(self._errors), 5)

    def close(self) -> None:
        """Ends the connection; the node program ends what it started when its stdin does."""
        self._ending.set()
        # Where a word is stuck, closing would wait for it: what starts the node program is ended instead.
        if self._speaking.acquire(timeout=1):
            with contextlib.suppress(OSError, ValueError):
                self._orders.close()
            self._speaking.release()
        try:
            self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    """A process's stdin and stdout, both of which were asked for."""
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout
