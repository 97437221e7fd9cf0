"""How a key of MindFormers' YAML is treated. The tables of keys beside this file are made of these words.

Every key is one of four: read (it changes memory or time, and is modelled), ignored on purpose (it changes neither),
restricted to values that are modelled, or a section with keys of its own. A key in no table is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Key:
    """One key.

    Attributes:
        use: ``read``, ``ignored``, ``only``, ``section`` (its keys are in a table of their own) or ``free`` (a section
            whose keys are passed on to someone's class and change neither memory nor time).
        accepted: of an ``only`` key, the values that are modelled.
        why: what another value would do.
        part: the key counts only for models with this part: ``moe``, ``mla`` or, empty, always.
    """

    use: Literal["read", "ignored", "only", "section", "free"]
    accepted: tuple[Any, ...] = ()
    why: str = ""
    part: str = ""

    @property
    def shown(self) -> tuple[Any, ...]:
        """What an error says of ``accepted``: one of the ways to write that something is off."""
        return self.accepted[:1] if self.accepted[:1] == (False,) else self.accepted

    def takes(self, value: Any) -> bool:
        """Whether an ``only`` key may have this value. An accepted None also means an empty or absent one."""
        if value in (None, "", [], {}) and not isinstance(value, bool):
            return True
        return any(value == a and isinstance(value, bool) == isinstance(a, bool) for a in self.accepted)


Table = Mapping[str, Key]


def read(names: str) -> dict[str, Key]:
    """Keys that change memory or time and are modelled."""
    return dict.fromkeys(names.split(), Key("read"))


def ignored(names: str) -> dict[str, Key]:
    """Keys that change neither memory nor time, or too little to show."""
    return dict.fromkeys(names.split(), Key("ignored"))


def section(names: str) -> dict[str, Key]:
    """Keys that hold a section with a table of its own."""
    return dict.fromkeys(names.split(), Key("section"))


def free(names: str) -> dict[str, Key]:
    """Keys that hold a section whose own keys don't matter."""
    return dict.fromkeys(names.split(), Key("free"))


def only(names: str, *accepted: Any, why: str, part: str = "") -> dict[str, Key]:
    """Keys of which only these values are modelled."""
    return dict.fromkeys(names.split(), Key("only", accepted, why, part))


def off(names: str, why: str, part: str = "") -> dict[str, Key]:
    """Keys that must stay switched off."""
    return only(names, False, None, 0, "None", why=why, part=part)
