"""What a person sees of a job, written by its own thread: a reader that stands still or goes away delays nothing."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any

from rich.console import Console

from hp_memory.launch.launcher.view import Watcher
from hp_memory.launch.progress import RankView

# Lines that may wait for a reader; later ones are dropped, as frames always are but for the newest.
WAITING = 1000


class Screen:
    """Prints and draws in the background. Inside of ``with``; its end waits until everything has been written."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._lines: queue.Queue = queue.Queue(WAITING)
        self._frame: dict[int, RankView] | None = None
        self._wake = threading.Event()
        self._over = False
        self._thread = threading.Thread(target=self._write_all, daemon=True)

    def __enter__(self) -> Screen:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over = True
        self._wake.set()
        self._thread.join()

    def print(self, *what: Any, **how: Any) -> None:
        """As ``Console.print``, sooner or later."""
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait((what, how))
        self._wake.set()

    def say(self, text: str, style: str | None = None) -> None:
        """Text as it is: paths and commands are to be copied, so they are neither wrapped nor coloured."""
        self.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    def show(self, views: dict[int, RankView]) -> None:
        """The newest state of all ranks takes the place of one that hasn't been drawn."""
        self._frame = views
        self._wake.set()

    def end_frames(self) -> None:
        """Takes the table away before the lines that follow."""
        self._frame = None
        self._wake.set()

    def _write_all(self) -> None:
        # A reader that has gone shows as OSError, or as the SystemExit that rich makes of it: the job goes on unseen.
        with contextlib.suppress(OSError, ValueError, SystemExit):
            while True:
                over = self._over
                self._wake.clear()
                self._write_lines()
                if self._frame is not None:
                    self._draw()
                elif over and self._lines.empty():
                    return
                else:
                    self._wake.wait()

    def _draw(self) -> None:
        """Frames until there are no more; lines appear above the table."""
        with Watcher(self.console) as watcher:
            while (frame := self._frame) is not None and not self._over:
                watcher(frame)
                self._wake.wait()
                self._wake.clear()
                self._write_lines()
        self._frame = None

    def _write_lines(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                what, how = self._lines.get_nowait()
                self.console.print(*what, **how)
