"""One JSON object a line between the launcher and the program it starts on a node, over any pipe (ssh, srun, none)."""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import IO

# Login shells and srun print their own lines into the same stream; ours are marked.
MARK = "@hp "
STOP = "stop"
ALIVE = "."


def send(stream: IO[str], message: dict) -> bool:
    """Writes one message; False where no one reads any more."""
    try:
        stream.write(MARK + json.dumps(message) + "\n")
        stream.flush()
    except (OSError, ValueError):
        return False
    return True


def parse(line: str) -> dict | None:
    """The message in a line, or None for anybody else's line."""
    if not line.startswith(MARK):
        return None
    try:
        return json.loads(line[len(MARK) :])
    except ValueError:
        return None


@dataclass
class Lifeline:
    """The node's view of its launcher: a word now and then on stdin; end of file or silence means it is gone."""

    lost_after: float
    heard: float = field(default_factory=time.monotonic)
    ended: str | None = None

    def start(self) -> None:
        """Listens on stdin in the background."""
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            self.heard = time.monotonic()
            if line.strip() == STOP:
                self.ended = "stopped by the launcher"
                return
        self.ended = self.ended or "the launcher is gone"

    def over(self) -> str | None:
        """Why to end everything now, or None."""
        if self.ended is None and time.monotonic() - self.heard > self.lost_after:
            return f"no word from the launcher for {self.lost_after:g} s"
        return self.ended
