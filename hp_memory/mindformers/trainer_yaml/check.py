"""Every key of a file against the tables: what isn't read or ignored on purpose is refused, with its nearest match."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from hp_memory.errors import nearest
from hp_memory.mindformers.trainer_yaml.document import Document, Trainer
from hp_memory.mindformers.trainer_yaml.keys import Table
from hp_memory.mindformers.trainer_yaml.keys_graph import GRAPH
from hp_memory.mindformers.trainer_yaml.keys_pynative import PYNATIVE

TABLES: dict[Trainer, Mapping[str, Table]] = {"pynative": PYNATIVE, "graph": GRAPH}


# Sections of the PyNative Trainer whose keys go to classes that may be the user's own.
_OPEN = ("", "model", "optimizer")


def check_keys(document: Document, modelled: bool = True) -> None:
    """Notes an error for each key that is in no table and, with ``modelled``, each value that isn't modelled.

    Without, a file is only to be run: of a section that takes keys of the user's own, those alone are refused that are
    almost like one of MindFormers'.
    """
    _section(document, TABLES[document.trainer], (), document.data, modelled)


def _section(
    document: Document, tables: Mapping[str, Table], at: tuple[str, ...], data: Mapping[str, Any], modelled: bool
) -> None:
    table = tables[".".join(at)]
    for name, value in data.items():
        here = (*at, str(name))
        key = table.get(str(name))
        if key is None and not modelled and ".".join(at) in _OPEN and not get_close_matches(here[-1], table, 1, 0.85):
            continue
        if key is None:
            document.refuse(here, _short(value), _unknown(document, table, here))
        elif key.use == "section" and value is not None:
            if isinstance(value, Mapping):
                _section(document, tables, here, value, modelled)
            else:
                document.refuse(here, _short(value), "must be a section with keys")
        elif key.use == "only" and modelled and not key.takes(value):
            document.refuse(here, _short(value), key.why, key.shown)


def _unknown(document: Document, table: Table, here: tuple[str, ...]) -> str:
    """Why a key is refused, with the nearest one of its section or the place where it belongs."""
    name = here[-1]
    elsewhere = [f"{path}.{name}".lstrip(".") for path, keys in TABLES[document.trainer].items() if name in keys]
    near = nearest(name, table)
    hint = f"; it belongs to {elsewhere[0]}" if elsewhere else f"; did you mean {near!r}?" if near else ""
    return f"isn't a key of MindFormers 2.0 or 2.1 here{hint} (if it is harmless: ignore=[{'.'.join(here)}])"


def _short(value: Any) -> Any:
    """A value as an error shows it; what holds other values may hold very many."""
    return "..." if isinstance(value, (Mapping, list)) and value else value
