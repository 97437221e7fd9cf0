"""``hp-memory diff RUN RUN``: what two runs were given, and what came out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hp_memory.errors import ConfigError
from hp_memory.report.table import Table
from hp_memory.report.table import console as make_console
from hp_memory.train.run_files import read_config

_RESULTS = ("result.json", "environment.json")
# Where a run was put says nothing about what it is.
_ASIDE = ("run_dir", "run_root")


def run(words: Sequence[str]) -> int:
    """Prints the settings, versions and results that differ; returns 0 if none do, 1 otherwise."""
    if len(words) != 2:
        raise ConfigError("diff", " ".join(words), "names two run directories")
    first, second = (_facts(Path(word)) for word in words)
    keys = [key for key in dict.fromkeys((*first, *second)) if first.get(key) != second.get(key)]
    console = make_console()
    if not keys:
        console.print("the same settings, plan, versions and results")
        return 0
    rows = [[key, _shown(first, key), _shown(second, key)] for key in keys]
    console.print(
        Table("What differs", ["what", "first", "second"], rows, f"first {words[0]}, second {words[1]}").rich()
    )
    return 1


def _facts(run_dir: Path) -> dict[str, Any]:
    if not (run_dir / "config.yaml").is_file():
        raise ConfigError("diff", str(run_dir), "is no run directory: it has no config.yaml")
    found = dict(_flat("", OmegaConf.to_container(read_config(run_dir))))
    for name in _RESULTS:
        if (run_dir / name).is_file():
            found |= dict(_flat(f"{Path(name).stem}.", json.loads((run_dir / name).read_text())))
    plan = run_dir / "plan.txt"
    if plan.is_file():
        found["plan"] = plan.read_text().splitlines()[0]
    return {key: value for key, value in found.items() if key not in _ASIDE}


def _flat(prefix: str, data: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _flat(f"{prefix}{key}.", value)
    elif isinstance(data, list) and any(isinstance(item, Mapping | list) for item in data):
        for i, item in enumerate(data):
            yield from _flat(f"{prefix.rstrip('.')}[{i}].", item)
    else:
        yield prefix.rstrip("."), data


def _shown(facts: Mapping[str, Any], key: str) -> str:
    return str(facts[key]) if key in facts else "-"
