"""Variables that are nobody else's business, known by their names: their values are never written or printed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

HIDDEN = "<not written>"
_NAME = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH|COOKIE", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds something private."""
    return _NAME.search(name) is not None


def hidden(env: Mapping[str, str]) -> dict[str, str]:
    """The variables with private values replaced."""
    return {name: HIDDEN if is_secret(name) else value for name, value in env.items()}


def hidden_below(data: Any) -> Any:
    """Plain data with private values replaced in every mapping called ``env`` or ``extra``, at any depth."""
    if isinstance(data, Mapping):
        return {
            key: hidden(value) if key in ("env", "extra") and isinstance(value, Mapping) else hidden_below(value)
            for key, value in data.items()
        }
    return [hidden_below(item) for item in data] if isinstance(data, list | tuple) else data
