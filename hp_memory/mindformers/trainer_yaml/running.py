"""What is refused of a PyNative Trainer's YAML before it is run: nothing of MindFormers is imported yet."""

from __future__ import annotations

from collections.abc import Mapping

from hp_memory.errors import ConfigError
from hp_memory.mindformers import conflicts
from hp_memory.mindformers.trainer_yaml.callbacks import OURS
from hp_memory.mindformers.trainer_yaml.check import check_keys
from hp_memory.mindformers.trainer_yaml.document import load


def check(file: str) -> None:
    """Refuses the other Trainer's file, misspelt keys, and settings that exclude each other or our plan.

    Raises:
        ConfigError: with all that was found.
    """
    document = load(file)
    if document.trainer == "graph":
        why = "is the graph Trainer's: MindFormers' run_mindformer.py runs it, with HPMemoryGraphCallback for a plan"
        raise ConfigError("yaml", file, why)
    check_keys(document, modelled=False)
    entries = document.get("callbacks", [])
    types = [entry.get("type") for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []
    if OURS["graph"] in types:
        index = str(types.index(OURS["graph"]))
        document.refuse(("callbacks", index, "type"), OURS["graph"], "is the graph Trainer's", (OURS["pynative"],))
    for conflict in conflicts.found(document.data, OURS["pynative"] in types):
        value = document.get(conflict.path)
        document.refuse(conflict.path, "..." if isinstance(value, (list, dict)) else value, conflict.in_words())
    document.finish()
