"""Amounts of memory as people write them."""

from __future__ import annotations

import re
from typing import Any

from hp_memory.errors import ConfigError

_UNITS = {"": 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "KB": 10**3, "MB": 10**6, "GB": 10**9}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMG]i?B|B|)\s*")


def bytes_of(text: Any, path: str) -> int:
    """Bytes that ``58GiB``, ``200MiB`` or a plain number of bytes means.

    Raises:
        ConfigError: for what isn't an amount of memory.
    """
    match = _AMOUNT.fullmatch(str(text))
    if match is None:
        raise ConfigError(path, text, "not an amount of memory", ("58GiB", "200MiB", "64GB"))
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def positive_bytes_of(text: Any, path: str) -> int:
    """The same for what can't be nothing."""
    nbytes = bytes_of(text, path)
    if nbytes <= 0:
        raise ConfigError(path, text, "must be above 0")
    return nbytes


def stated_bytes_of(text: Any, path: str) -> int:
    """The same for what must have a unit: a bare number is as often meant in GiB as in bytes."""
    if str(text).strip().replace(".", "", 1).isdigit() and float(str(text)) > 0:
        raise ConfigError(path, text, "has no unit", (f"{text}GiB", f"{text}MiB"))
    return positive_bytes_of(text, path)
