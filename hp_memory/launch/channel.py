"""A line to one node: the node program, started directly or through the connection command, and its messages."""

from __future__ import annotations

import contextlib
import queue
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

from hp_memory.launch import failure, wire
from hp_memory.launch.plan import LaunchPlan, NodePlan, reach

PROGRAM = ("-m", "hp_memory.launch.node")


def node_command(plan: LaunchPlan, node: NodePlan) -> list[str]:
    """What starts the node program: by itself here, through ``launch.connect`` elsewhere."""
    if node.here:
        return [sys.executable, *PROGRAM]
    program = [plan.python, *PROGRAM]
    # ssh gives one string to a shell at the other end; `ip netns exec` or `kubectl exec` take a list.
    return [*reach(plan.settings, node.host), *([shlex.join(program)] if plan.settings.connect_shell else program)]


class Channel:
    """One node program. Its messages arrive in ``inbox`` as ``(node rank, message or None at the end)``.

    Args:
        order: the first line it gets.
        inbox: shared by all nodes' channels.
    """

    def __init__(self, plan: LaunchPlan, node: NodePlan, order: dict, inbox: queue.Queue) -> None:
        self.node, self.heard, self.closed = node, time.monotonic(), False
        self._errors = Path(node.log_dir) / "connection.log"
        self._errors.parent.mkdir(parents=True, exist_ok=True)
        with open(self._errors, "ab") as errors:
            self.process = subprocess.Popen(
                node_command(plan, node),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        wire.send(self.process.stdin, order)
        threading.Thread(target=self._read, args=(inbox,), daemon=True).start()

    def _read(self, inbox: queue.Queue) -> None:
        for line in self.process.stdout:
            message = wire.parse(line)
            if message is not None:
                self.heard = time.monotonic()
                inbox.put((self.node.rank, message))
        self.closed = True
        inbox.put((self.node.rank, None))

    def word(self, text: str = wire.ALIVE) -> None:
        """Says a word to the node; a broken pipe shows as the end of its messages."""
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(text + "\n")
            self.process.stdin.flush()

    def silence(self) -> float:
        """Seconds since it was last heard."""
        return time.monotonic() - self.heard

    def errors(self) -> tuple[str, ...]:
        """What the connection command complained of."""
        return failure.tail(failure.end_of(self._errors), 5)

    def close(self) -> None:
        """Ends the connection; the node program ends what it started when its stdin does."""
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.close()
        try:
            self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
