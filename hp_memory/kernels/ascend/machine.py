"""What a machine has of Ascend, read from its files: no device is opened and nothing is imported."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

# Where CANN says its version, newest layout first; relative to its home, which an environment variable names.
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_DEFAULT_HOME = "usr/local/Ascend/ascend-toolkit/latest"
_VERSION_FILES = ("*-linux/ascend_toolkit_install.info", "version.cfg", "compiler/version.info")
_VERSION = re.compile(r"^[^#\n]*?[vV]ersion\s*=\s*\[?([\w.]+)", re.MULTILINE)


def devices(root: Path = Path("/")) -> list[int]:
    """Numbers of the device files ``/dev/davinci<n>``."""
    names = (path.name.removeprefix("davinci") for path in (root / "dev").glob("davinci*"))
    return sorted(int(name) for name in names if name.isdigit())


def visible(found: list[int], env: Mapping[str, str]) -> list[int]:
    """The devices a process may use: those there are, as far as ASCEND_RT_VISIBLE_DEVICES lists them."""
    listed = env.get("ASCEND_RT_VISIBLE_DEVICES", "")
    if not listed:
        return found
    wanted: set[int] = set()
    for part in listed.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdigit():
            wanted.update(range(int(first), int(last or first) + 1))
    return [number for number in found if number in wanted]


def cann_version(env: Mapping[str, str], root: Path = Path("/")) -> str | None:
    """CANN's version, or None where CANN isn't installed."""
    homes = [Path(env[name]) for name in _HOMES if env.get(name)] + [root / _DEFAULT_HOME]
    return _first_version(file for home in homes for pattern in _VERSION_FILES for file in sorted(home.glob(pattern)))


def driver_version(root: Path = Path("/")) -> str | None:
    """The device driver's version, or None."""
    return _first_version([root / "usr/local/Ascend/driver/version.info"])


def _first_version(files: Iterable[Path]) -> str | None:
    for file in files:
        match = _VERSION.search(file.read_text(errors="replace")) if file.is_file() else None
        if match:
            return match.group(1)
    return None
