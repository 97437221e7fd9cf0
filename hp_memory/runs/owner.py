"""Who a run directory belongs to: one launch at a time, and never a folder with files of somebody else's."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from datetime import datetime
from pathlib import Path

from hp_memory.errors import ConfigError

MARK = ".hp-memory-run"
# Directory -> the file whose lock this process holds; it goes with the process, however that ends.
_held: dict[Path, int] = {}


def claim(path: Path, key: str, value: str | None) -> None:
    """Makes an existing folder this process's run directory.

    Args:
        key, value: the setting that names it, for the error.

    Raises:
        ConfigError: if another launch holds it, if it has files and isn't marked as a run's, or if it is another
            user's: that user could put links in our way.
    """
    if path in _held:
        return
    if path.stat().st_uid != os.geteuid():
        raise ConfigError(key, value, "this folder belongs to another user; name one of your own")
    mark = path / MARK
    first = next((entry.name for entry in path.iterdir()), None)
    if first is not None and not mark.exists():
        raise ConfigError(key, value, f"has files of others ({first}); name a new or an empty folder")
    try:
        descriptor = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ConfigError(key, value, f"{MARK} in it can't be opened: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        whose = os.read(descriptor, 4096).decode(errors="replace")
        os.close(descriptor)
        raise ConfigError(key, value, f"another launch is using it: {_in_words(whose)}") from None
    except OSError:  # a file system without locks: the mark alone has to do
        pass
    os.truncate(descriptor, 0)
    said = {"host": socket.gethostname(), "pid": os.getpid(), "since": datetime.now().isoformat(" ", "seconds")}
    os.pwrite(descriptor, json.dumps(said).encode(), 0)
    _held[path] = descriptor


def release(path: Path) -> None:
    """Lets another launch have it."""
    with contextlib.suppress(KeyError):
        os.close(_held.pop(path))


def _in_words(text: str) -> str:
    try:
        said = json.loads(text)
        return f"process {int(said['pid'])} on {said['host']!s:.64} since {said['since']!s:.32}"
    except (ValueError, TypeError, KeyError):
        return "it has not said whose it is"
